"""The dead letters of one group: those that a filter finds, a page at a time or all as an export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.bodies import Body, beginning_of, preview_of, start_of
from gantrymq.console.eye import Eye
from gantrymq.console.queries.reading import Reader, parse_token
from gantrymq.console.times import parse_time
from gantrymq.errors import NoRouteInfo, ProtocolError
from gantrymq.protocol import properties as names
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX

#: Letters of one export.
MAX_EXPORTED = 10_000
MAX_SHOWN = 200
#: Letters that are looked at for one page, or one part of an export: few of them may match.
MAX_LOOKED = 5000
_EXPORT_PAGE = 50
#: Bytes of a body in an export; bytes of it in which a filter searches.
EXPORTED_BYTES = 64 * 1024
SEARCHED_BYTES = 1024 * 1024


class LetterFilter(msgspec.Struct, kw_only=True):
    """Of the `topic` that they were sent to first, that died between two times, with `search` in keys, tags or body.

    Of a body, the first SEARCHED_BYTES are searched.
    """

    group: str
    topic: str = ""
    begin: str = ""
    end: str = ""
    search: str = ""

    def times(self) -> tuple[int | None, int | None]:
        """ms; None where none is given. Raises BadArguments."""
        return parse_time(self.begin), parse_time(self.end)

    def matches(self, letter: MessageExt) -> bool:
        """Of all but the times."""
        topic, wanted = self.topic.strip(), self.search.strip()
        if topic and letter.properties.get(names.RETRY_TOPIC) != topic:
            return False
        if not wanted or wanted in (letter.tags or "") or any(wanted in key for key in letter.keys):
            return True
        try:
            return wanted.encode() in beginning_of(letter, SEARCHED_BYTES)
        except ProtocolError:
            return False


class LettersArguments(LetterFilter, kw_only=True):
    """`token` is of the page before."""

    group: str = ""
    token: str = ""
    size: int = 50


class LetterRow(msgspec.Struct):
    """A dead letter in a list; `topic` is where it was sent to first. Times in ms, `bytes` as stored."""

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


class LettersPage(msgspec.Struct):
    """The earliest first, of `dead_topic`. So many were `looked` at; `token` gets the next page, None without one."""

    group: str
    dead_topic: str
    rows: list[LetterRow]
    looked: int
    token: str | None
    unasked: list[Unasked]


class Letter(msgspec.Struct):
    """One line of an export."""

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


async def letters(eye: Eye, arguments: LettersArguments) -> LettersPage:
    """Raises BadArguments. A group that has none is no error."""
    group = arguments.group.strip()
    begin_ms, end_ms = arguments.times()
    token = parse_token(arguments.token) if arguments.token else {}
    page = LettersPage(group, dead_topic(group), [], 0, None, [])
    if not group:
        return page
    reader = Reader(eye, page.dead_topic, _row, wanted=arguments.matches, max_looked=MAX_LOOKED)
    try:
        await reader.look(begin_ms, end_ms)
    except NoRouteInfo:
        return page
    reader.go_on(token)
    rows = await reader.next_ones(min(max(arguments.size, 1), MAX_SHOWN))
    page.rows = [row for row in rows if isinstance(row, LetterRow)]
    page.looked, page.token, page.unasked = reader.looked, reader.token(), reader.unasked
    return page


async def export(eye: Eye, arguments: LetterFilter, is_open: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
    """The letters as lines of JSON, the earliest first, up to MAX_EXPORTED, until `is_open` says no."""

    def letter(message: MessageExt) -> Letter:
        return Letter(
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

    reader = Reader(eye, dead_topic(arguments.group), letter, wanted=arguments.matches)
    try:
        await reader.look(*arguments.times())
    except NoRouteInfo:
        return
    for _ in range(MAX_EXPORTED // _EXPORT_PAGE):
        rows = await reader.next_ones(_EXPORT_PAGE)
        if not rows or not is_open():
            return
        for row in rows:
            yield msgspec.json.encode(row) + b"\n"
        await asyncio.sleep(0)


def _row(message: MessageExt) -> LetterRow:
    return LetterRow(
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
