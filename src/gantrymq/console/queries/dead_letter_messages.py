"""The dead-letter messages of one group that match a filter, as a page or an export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from gantrymq.console.bodies import Body, contains, preview_of, start_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.pages import parse_time
from gantrymq.console.queries.queue_reader import QueueReader, parse_token
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX

#: Largest number of dead-letter messages of one export.
MAX_EXPORTED = 10_000
MAX_SHOWN = 200
#: Largest number of dead-letter messages that are read for one page, even if only a few of them match.
MAX_READ = 5000
_EXPORT_PAGE = 50
#: Largest size of a body in an export, bytes.
EXPORTED_BYTES = 64 * 1024


class DeadLetterFilter(msgspec.Struct, kw_only=True):
    """A filter: dead-letter messages of the original `topic`, between two times, with `search` in keys, tags or body.

    Only the beginning of a body is searched (`contains`).
    """

    group: str
    topic: str = ""
    begin: str = ""
    end: str = ""
    search: str = ""

    def times(self) -> tuple[int | None, int | None]:
        """Returns both times in ms; None for a missing time. Raises BadArguments."""
        return parse_time(self.begin), parse_time(self.end)

    def matches(self, message: MessageExt) -> bool:
        """Returns True if a message matches. Does not check the times."""
        topic, wanted = self.topic.strip(), self.search.strip()
        if topic and message.properties.get(names.RETRY_TOPIC) != topic:
            return False
        return not wanted or contains(message, wanted)


class DeadLetterMessagesArguments(DeadLetterFilter, kw_only=True):
    """Arguments of the page. `token` is the token from the previous page."""

    group: str = ""
    token: str = ""
    size: int = 50


class DeadLetterRow(msgspec.Struct):
    """A dead-letter message in a list. `topic` is its original topic. Times are in ms. `bytes` is the stored size."""

    broker: str
    queue_id: int
    offset: int
    died_ms: int
    id: str
    topic: str
    reconsume_times: int
    tags: str
    keys: list[str]
    bytes: int
    start: str

    @property
    def place(self) -> str:
        return f"{self.broker}:{self.queue_id}:{self.offset}"


class DeadLetterMessagesPage(msgspec.Struct):
    """Dead-letter messages in `dead_topic`, earliest first. `looked` is the number of messages that were read.

    `token` requests the next page.
    """

    group: str
    dead_topic: str
    rows: list[DeadLetterRow]
    looked: int
    token: str | None
    unasked: list[Unasked]


class ExportedDeadLetter(msgspec.Struct):
    """A dead-letter message as one line of an export."""

    group: str
    topic: str
    id: str
    died_ms: int
    born_ms: int
    reconsume_times: int
    keys: list[str]
    tags: str
    properties: dict[str, str]
    body: Body


def dead_topic(group: str) -> str:
    return DLQ_TOPIC_PREFIX + group


async def dead_letter_messages(view: ClusterView, arguments: DeadLetterMessagesArguments) -> DeadLetterMessagesPage:
    """Returns the page. It is empty for a group without dead-letter messages. Raises BadArguments."""
    group = arguments.group.strip()
    begin_ms, end_ms = arguments.times()
    token = parse_token(arguments.token) if arguments.token else {}
    page = DeadLetterMessagesPage(group, dead_topic(group), [], 0, None, [])
    if not group:
        return page
    reader = QueueReader(view, page.dead_topic, _row, wanted=arguments.matches, max_read=MAX_READ)
    try:
        await reader.open(begin_ms, end_ms)
    except NoRouteInfo:
        return page
    reader.resume(token)
    rows = await reader.next_ones(min(max(arguments.size, 1), MAX_SHOWN))
    page.rows = [row for row in rows if isinstance(row, DeadLetterRow)]
    page.looked, page.token, page.unasked = reader.messages_read, reader.token(), reader.unasked
    return page


async def export(
    view: ClusterView, arguments: DeadLetterFilter, is_open: Callable[[], bool] = lambda: True
) -> AsyncIterator[bytes]:
    """Yields lines of JSON, earliest message first, up to MAX_EXPORTED, while `is_open` returns true."""

    def exported(message: MessageExt) -> ExportedDeadLetter:
        return ExportedDeadLetter(
            arguments.group,
            message.properties.get(names.RETRY_TOPIC, ""),
            message.msg_id,
            message.store_timestamp,
            message.born_timestamp,
            message.reconsume_times,
            message.keys,
            message.tags or "",
            message.properties,
            preview_of(message, EXPORTED_BYTES),
        )

    reader = QueueReader(view, dead_topic(arguments.group), exported, wanted=arguments.matches)
    try:
        await reader.open(*arguments.times())
    except NoRouteInfo:
        return
    for _ in range(MAX_EXPORTED // _EXPORT_PAGE):
        rows = await reader.next_ones(_EXPORT_PAGE)
        if not rows or not is_open():
            return
        for row in rows:
            yield msgspec.json.encode(row) + b"\n"
        await asyncio.sleep(0)


def _row(message: MessageExt) -> DeadLetterRow:
    return DeadLetterRow(
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.store_timestamp,
        message.msg_id,
        message.properties.get(names.RETRY_TOPIC, ""),
        message.reconsume_times,
        message.tags or "",
        message.keys[:8],
        len(message.stored_body),
        start_of(message),
    )
