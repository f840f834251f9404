"""Messages: of a topic by time, by key or id; one with its body, its properties and who has consumed it; its trace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from gantrymq.client.admin.trace import TraceView, decode_trace
from gantrymq.console.asking import Unasked
from gantrymq.console.bodies import Body, beginning_of, preview_of, start_of
from gantrymq.console.eye import Eye
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.reading import Reader, parse_token
from gantrymq.console.times import parse_time
from gantrymq.errors import BodyError, ClientError, GantryError, NoRouteInfo
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import TRACE_TOPIC

MAX_MESSAGES = 200
#: Groups that are asked whether they have consumed a message.
MAX_GROUPS = 32
#: Trace messages that are read, and their size; clients write up to 128,000 bytes.
MAX_TRACES = 128
MAX_TRACE_BYTES = 1024 * 1024
#: Topics in which the traced message is looked up; one, unless a trace is forged.
MAX_TRACED_TOPICS = 4
_STEPS = {"Pub": "send", "SubAfter": "consume", "EndTransaction": "end"}


class MessagesArguments(msgspec.Struct, kw_only=True):
    """One of `key`, `id`, or times: `begin` and `end`; else the newest messages. `token` is of the page before."""

    topic: str = ""
    begin: str = ""
    end: str = ""
    key: str = ""
    id: str = ""
    token: str = ""
    size: int = 40


class MessageRow(msgspec.Struct):
    """A message in a list; times in ms, `bytes` as stored."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    stored_ms: int
    id: str
    tags: str
    keys: list[str]
    bytes: int
    start: str


class MessagesPage(msgspec.Struct):
    """`order` is newest or earliest first; `token` gets the next page, None when this is the last."""

    topic: str
    order: str
    rows: list[MessageRow]
    token: str | None
    unasked: list[Unasked]


class MessageArguments(msgspec.Struct, kw_only=True):
    """By either id, or by broker, queue and offset."""

    topic: str
    id: str = ""
    broker: str = ""
    queue: int = 0
    offset: int = -1


class Track(msgspec.Struct):
    group: str
    status: str
    reason: str


class MessagePage(msgspec.Struct):
    """One message; times in ms."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    id: str
    offset_id: str
    born_ms: int
    born_host: str
    stored_ms: int
    store_host: str
    reconsume_times: int
    properties: dict[str, str]
    body: Body
    #: None when nobody was asked.
    tracks: list[Track]
    unasked: list[Unasked]


class TracesArguments(msgspec.Struct, kw_only=True):
    id: str = ""
    trace_topic: str = TRACE_TOPIC


class TraceStep(msgspec.Struct):
    """A send, store, consume or end of a transaction: when it began, ms, how long it took, ms, and where in the whole
    it lies, 0 to 1. `attempt` counts a group's consumptions from 1; `state` says how a transaction ended.
    """

    type: str
    group: str
    client: str
    began_ms: int
    took_ms: int
    success: bool
    begin: float = 0.0
    length: float = 0.0
    attempt: int = 0
    state: str = ""


class TracesPage(msgspec.Struct):
    id: str
    topic: str
    steps: list[TraceStep]
    #: Why there is nothing.
    problem: str
    unasked: list[Unasked]


async def messages(eye: Eye, arguments: MessagesArguments) -> MessagesPage:
    """Raises NoRouteInfo, BadArguments."""
    topic = arguments.topic.strip()
    if not topic:
        return MessagesPage("", "newest", [], None, [])
    size = min(max(arguments.size, 1), MAX_MESSAGES)
    begin_ms, end_ms = parse_time(arguments.begin), parse_time(arguments.end)
    if arguments.id:
        async with eye.bodies:
            one = await eye.admin.message_by_id(topic, arguments.id.strip())
            found = [] if one is None else [one]
            await _name_brokers(eye, found)
            return MessagesPage(topic, "newest", await asyncio.to_thread(_rows_of, found), None, [])
    if arguments.key:
        async with eye.bodies:
            keyed = await eye.admin.messages_by_key(
                topic,
                # Only spaces separate keys: other white space is part of a key.
                arguments.key.strip(" "),
                max_num=size,
                begin_ms=begin_ms or 0,
                end_ms=end_ms if end_ms is not None else 2**63 - 1,
            )
            await _name_brokers(eye, keyed)
            newest = list(reversed(keyed))[:size]
            return MessagesPage(topic, "newest", await asyncio.to_thread(_rows_of, newest), None, [])
    reader = Reader(eye, topic, row_of)
    token = parse_token(arguments.token) if arguments.token else None
    await reader.look(begin_ms, end_ms)
    if begin_ms is None and token is None:
        rows = await reader.latest(size)
        return MessagesPage(topic, "newest", _rows(rows), None, reader.unasked)
    if token is not None:
        reader.go_on(token)
    rows = await reader.next_ones(size)
    return MessagesPage(topic, "earliest", _rows(rows), reader.token(), reader.unasked)


async def message(eye: Eye, arguments: MessageArguments) -> MessagePage:
    """Raises ClientError when there is none, NoRouteInfo, BadArguments."""
    async with eye.bodies:
        found = await find(eye, arguments)
        body = await asyncio.to_thread(preview_of, found)
        # It isn't needed while the groups are queried.
        found.body = b""
    tracks: list[Track] = []
    unasked: list[Unasked] = []
    try:
        groups = await eye.admin.groups_of_topic(found.topic)
    except GantryError as e:
        groups = []
        unasked.append(Unasked(found.topic, str(e)))
    asked = await eye.each(groups[:MAX_GROUPS], lambda group: eye.admin.track(found, group))
    unasked += asked.unasked
    tracks = [Track(one.consumer_group, one.status, one.reason) for _, one in sorted(asked.answers.items())]
    return MessagePage(
        found.topic,
        found.broker_name,
        found.queue_id,
        found.queue_offset,
        found.msg_id,
        found.offset_msg_id,
        found.born_timestamp,
        found.born_host,
        found.store_timestamp,
        found.store_host,
        found.reconsume_times,
        dict(sorted(found.properties.items())),
        body,
        tracks,
        unasked,
    )


async def find(eye: Eye, arguments: MessageArguments) -> MessageExt:
    """Raises as `message`."""
    if arguments.id:
        found = await eye.admin.message_by_id(arguments.topic, arguments.id.strip())
        if found is not None:
            await _name_brokers(eye, [found])
    elif arguments.broker and arguments.offset >= 0:
        queue = MessageQueue(arguments.topic, arguments.broker, arguments.queue)
        found = await eye.admin.message_at(queue, arguments.offset)
    else:
        raise BadArguments("an id is needed, or broker, queue and offset")
    if found is None:
        raise ClientError(f"no such message in topic {arguments.topic!r}")
    return found


async def traces(eye: Eye, arguments: TracesArguments) -> TracesPage:
    message_id = arguments.id.strip()
    if not message_id:
        return TracesPage("", arguments.trace_topic, [], "", [])
    try:
        async with eye.bodies:
            found = await eye.admin.messages_by_key(arguments.trace_topic, message_id, max_num=MAX_TRACES)
            views = await asyncio.to_thread(_views_of, found, message_id)
    except NoRouteInfo as e:
        return TracesPage(message_id, arguments.trace_topic, [], str(e), [])
    problem = "" if views else f"no client has told of message {message_id}"
    topics = dict.fromkeys(view.topic for view in views if view.topic)

    async def stored_in(topic: str) -> MessageExt | None:
        async with eye.bodies:
            message = await eye.admin.message_by_id(topic, message_id)
        if message is not None:
            # The timeline has its times and its address only.
            message.body = b""
        return message

    stored = await eye.each(list(topics)[:MAX_TRACED_TOPICS], stored_in)
    messages = [message for message in stored.answers.values() if message is not None]
    return TracesPage(message_id, arguments.trace_topic, timeline(views, messages), problem, stored.unasked)


def _views_of(found: Sequence[MessageExt], message_id: str) -> list[TraceView]:
    """What trace messages tell of one message, by time. Raises BodyError."""
    views: list[TraceView] = []
    for message in found:
        body = beginning_of(message, MAX_TRACE_BYTES + 1)
        if len(body) > MAX_TRACE_BYTES:
            raise BodyError(f"a trace of more than {MAX_TRACE_BYTES} bytes can't be shown")
        views += [view for view in decode_trace(body, message.born_host, ends=True) if view.msg_id == message_id]
    return sorted(views, key=lambda view: view.timestamp)


def timeline(views: list[TraceView], stored: Sequence[MessageExt] = ()) -> list[TraceStep]:
    """The steps by when they began, each with its place in the time of all; a message that is `stored` has one, too.

    A send's time is its begin, a consumption's its end (`TraceDataEncoder`); old clients don't say the latter.
    """
    steps = [
        TraceStep(
            _STEPS[view.msg_type],
            view.group,
            view.client_host,
            view.timestamp - (view.cost_time if view.msg_type == "SubAfter" and view.timestamp else 0),
            view.cost_time,
            view.success,
            state=view.transaction_state,
        )
        for view in views
    ]
    steps += [TraceStep("store", "", one.store_host, one.store_timestamp, 0, True) for one in stored]
    timed = [step for step in steps if step.began_ms > 0]
    if timed:
        begin = min(step.began_ms for step in timed)
        whole = max(max(step.began_ms + step.took_ms for step in timed) - begin, 1)
        for step in timed:
            step.begin = (step.began_ms - begin) / whole
            step.length = step.took_ms / whole
    steps.sort(key=lambda step: step.began_ms)
    attempts: Counter[str] = Counter()
    for step in steps:
        if step.type == "consume":
            attempts[step.group] += 1
            step.attempt = attempts[step.group]
    return steps


def row_of(message: MessageExt) -> MessageRow:
    return MessageRow(
        message.topic,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
        message.store_timestamp,
        message.msg_id,
        message.tags or "",
        message.keys[:8],
        len(message.stored_body),
        start_of(message),
    )


def _rows_of(messages: Sequence[MessageExt]) -> list[MessageRow]:
    return [row_of(message) for message in messages]


def _rows(rows: list[msgspec.Struct]) -> list[MessageRow]:
    return [row for row in rows if isinstance(row, MessageRow)]


async def _name_brokers(eye: Eye, found: list[MessageExt]) -> None:
    """What comes by key or id doesn't say which broker it comes from but by its address."""
    servers = await eye.servers.get()
    names = {
        address: name
        for name, broker in (servers.info.broker_addr_table.items() if servers is not None else ())
        for address in broker.broker_addrs.values()
    }
    for one in found:
        one.broker_name = one.broker_name or names.get(one.store_host, "")
