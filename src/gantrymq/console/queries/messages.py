"""Pages about messages: a topic's messages by time, key, tag or id; a message with its consumers; a message's trace."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from gantrymq.client.admin.trace import TraceView, decode_trace
from gantrymq.console.bodies import Body, beginning_of, contains, preview_of, start_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked, query_each
from gantrymq.console.pages import BadArguments, parse_time
from gantrymq.console.queries.queue_reader import QueueReader, parse_token
from gantrymq.errors import BodyError, ClientError, GantryError, NoRouteInfo
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import TRACE_TOPIC
from gantrymq.system.clock import now_ms
from gantrymq.times import point_in_time

MAX_MESSAGES = 200
#: Number of messages that a broker returns at most for a key or tag, by its default `maxMsgsNumBatch`.
BROKER_LIMIT = 64
#: Largest number of groups whose state of a message is queried.
MAX_GROUPS = 32
#: Limits: number of trace messages that are read, and their size, bytes. Clients write up to 128,000 bytes.
MAX_TRACES = 128
MAX_TRACE_BYTES = 1024 * 1024
#: Largest number of topics in which a traced message is searched. Only a forged trace has several topics.
MAX_TRACED_TOPICS = 4
_STEPS = {"Pub": "send", "SubAfter": "consume", "EndTransaction": "end"}


#: Time ranges that end now, s.
SPANS = {"5m": 300, "15m": 900, "1h": 3600, "6h": 6 * 3600, "1d": 86400}
#: Largest number of messages that are read for one page with `search`, even if only a few of them match.
MAX_SEARCHED = 5000


class MessageFilter(msgspec.Struct, kw_only=True):
    """Selects messages by `key`, `tag`, `id`, or time. Default: the newest messages.

    Brokers find keys and tags in their index; brokers before RocketMQ 5.5 have no tags there.
    `span` is a time range that ends now: 5m, 15m, 1h, 6h or 1d. `begin` and `end` override it. `search` is a text in
    keys, tags or body. `order` is newest (first) or earliest. `token` is the token from the previous page. With `id`,
    the other fields have no effect.
    """

    begin: str = ""
    end: str = ""
    span: str = ""
    key: str = ""
    tag: str = ""
    id: str = ""
    search: str = ""
    order: str = "newest"
    token: str = ""
    size: int = 40

    @property
    def is_filtered(self) -> bool:
        return any((self.begin, self.end, self.span, self.key, self.tag, self.id, self.search))


class MessagesArguments(MessageFilter, kw_only=True):
    """Selects messages of a topic."""

    topic: str = ""


class MessageRow(msgspec.Struct):
    """A message in a list. Times are in ms. `bytes` is the stored size."""

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
    """A list of messages. `order` is newest or earliest first. `token` requests the next page; None on the last one."""

    topic: str
    order: str
    rows: list[MessageRow]
    token: str | None
    unasked: list[Unasked]
    #: Number of messages that were read; more than the rows if `search` is given.
    looked: int = 0
    #: Number of further messages that match a key or tag. They have no token.
    more: int = 0
    #: Time, ms. Earlier messages with the key or tag may not have been searched. None if all were searched.
    searched_from_ms: int | None = None


class MessageArguments(msgspec.Struct, kw_only=True):
    """Selects a message by an `id` of either kind, or by broker, queue and offset."""

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
    """One message. Times are in ms."""

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
    #: The state of the message in each group.
    tracks: list[Track]
    unasked: list[Unasked]


class TracesArguments(msgspec.Struct, kw_only=True):
    id: str = ""
    trace_topic: str = TRACE_TOPIC


class TraceStep(msgspec.Struct):
    """One step of a trace: a send, a store, a consumption, or the end of a transaction.

    `begin` and `length` are fractions of the whole trace. `attempt` counts the consumptions of a group from 1. `state`
    is the outcome of a transaction.
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
    #: The reason if there are no steps.
    problem: str
    unasked: list[Unasked]


async def messages(view: ClusterView, arguments: MessagesArguments) -> MessagesPage:
    """Returns a list of messages. Raises NoRouteInfo or BadArguments."""
    topic = arguments.topic.strip()
    if not topic:
        return MessagesPage("", "newest", [], None, [])
    return await filtered(view, topic, arguments)


async def filtered(view: ClusterView, topic: str, arguments: MessageFilter) -> MessagesPage:
    """Returns the messages of a topic that match a filter. Raises NoRouteInfo or BadArguments."""
    size = min(max(arguments.size, 1), MAX_MESSAGES)
    begin_ms, end_ms = _times(arguments)
    if arguments.order not in ("newest", "earliest"):
        raise BadArguments(f"{arguments.order!r}: expected newest or earliest")
    if arguments.id:
        async with view.bodies:
            one, unasked = await _by_id(view, topic, arguments.id.strip())
            found = [] if one is None else [one]
            return MessagesPage(topic, "newest", await rows_of(view, found), None, unasked)
    wanted = arguments.search.strip()
    if arguments.key or arguments.tag:
        async with view.bodies:
            # Brokers return the newest messages.
            is_complete = not wanted and arguments.order == "newest" and not (arguments.key and arguments.tag)
            max_num = size if is_complete else MAX_MESSAGES
            # Only spaces separate keys. Other white space is part of a key.
            key_type: Literal["K", "T"] = "K" if arguments.key else "T"
            key = arguments.key.strip(" ") if arguments.key else arguments.tag
            keyed, unasked, searched_from_ms = await _by_key(view, topic, key, max_num, begin_ms, end_ms, key_type)
            matching = [one for one in keyed if not arguments.tag or one.tags == arguments.tag]
            if wanted:
                # In a thread, because it can decompress the bodies.
                tagged = matching
                matching = await asyncio.to_thread(lambda: [one for one in tagged if contains(one, wanted)])
            if arguments.order == "newest":
                matching.reverse()
            listed = await rows_of(view, matching[:size])
            more = len(matching) - len(listed)
            return MessagesPage(topic, arguments.order, listed, None, unasked, len(keyed), more, searched_from_ms)
    reader = QueueReader(
        view,
        topic,
        row_of,
        wanted=(lambda message: contains(message, wanted)) if wanted else None,
        max_read=MAX_SEARCHED if wanted else None,
    )
    is_newest = arguments.order == "newest"
    token = parse_token(arguments.token) if arguments.token else {}
    await reader.open(begin_ms, end_ms)
    if is_newest:
        reader.resume_backwards(token)
        rows = await reader.previous_ones(size)
    else:
        reader.resume(token)
        rows = await reader.next_ones(size)
    return MessagesPage(
        topic,
        arguments.order,
        _rows(rows),
        reader.token_backwards() if is_newest else reader.token(),
        reader.unasked,
        reader.messages_read,
    )


async def _by_id(view: ClusterView, topic: str, message_id: str) -> tuple[MessageExt | None, list[Unasked]]:
    """Returns the message with an id of either kind, and the failed brokers. Raises the errors of `each_holder`."""
    responses = await view.each_holder(
        topic, lambda address: view.admin.message_by_id(topic, message_id, broker=address)
    )
    found = [message for message in responses.results.values() if message is not None]
    return min(found, key=lambda message: message.store_timestamp, default=None), responses.unasked


async def _by_key(
    view: ClusterView,
    topic: str,
    key: str,
    max_num: int,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    key_type: Literal["K", "T"] = "K",
) -> tuple[list[MessageExt], list[Unasked], int | None]:
    """Returns messages with a key or tag, earliest first, the failed brokers, and the time of complete results.

    The time is None if the result has all messages. Otherwise, earlier messages can be missing, because a broker
    returns only its newest ones. Raises the errors of `each_holder`.
    """
    responses = await view.each_holder(
        topic,
        lambda address: view.admin.messages_by_key(
            topic,
            key,
            max_num=max_num,
            begin=point_in_time(begin_ms or 0),
            end=point_in_time(end_ms) if end_ms is not None else 2**63 - 1,
            broker=address,
            key_type=key_type,
        ),
    )
    found = [message for of_broker in responses.results.values() for message in of_broker]
    searched_from_ms = max(
        (
            min(message.store_timestamp for message in of_broker)
            for of_broker in responses.results.values()
            if len(of_broker) >= min(max_num, BROKER_LIMIT)
        ),
        default=None,
    )
    return sorted(found, key=lambda message: message.store_timestamp), responses.unasked, searched_from_ms


def _times(arguments: MessageFilter) -> tuple[int | None, int | None]:
    """Returns the begin and the end of the filter, ms. Raises BadArguments."""
    begin_ms, end_ms = parse_time(arguments.begin), parse_time(arguments.end)
    if arguments.span and begin_ms is None and end_ms is None:
        if arguments.span not in SPANS:
            raise BadArguments(f"{arguments.span!r}: expected one of {', '.join(SPANS)}")
        begin_ms = now_ms() - SPANS[arguments.span] * 1000
    return begin_ms, end_ms


async def message(view: ClusterView, arguments: MessageArguments) -> MessagePage:
    """Returns the page of a message. Raises ClientError if there is no such message, NoRouteInfo or BadArguments."""
    async with view.bodies:
        found, unasked = await _find(view, arguments)
        body = await asyncio.to_thread(preview_of, found)
        # The memory of the body is freed while the groups are queried.
        found.body = b""
    tracks: list[Track] = []
    groups: list[str] = []
    try:
        groups, failed = await view.groups_of_topic(found.topic)
        unasked += failed
    except GantryError as e:
        unasked.append(Unasked(found.topic, str(e)))
    responses = await view.each(groups[:MAX_GROUPS], lambda group: view.admin.track(found, group))
    unasked += responses.unasked
    tracks = [Track(one.consumer_group, one.status, one.reason) for _, one in sorted(responses.results.items())]
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
        list(dict.fromkeys(unasked)),
    )


async def find(view: ClusterView, arguments: MessageArguments) -> MessageExt:
    """Returns a message. Raises the same errors as `message`."""
    return (await _find(view, arguments))[0]


async def _find(view: ClusterView, arguments: MessageArguments) -> tuple[MessageExt, list[Unasked]]:
    """Returns a message, and the brokers that failed in the search for its id."""
    unasked: list[Unasked] = []
    if arguments.id:
        found, unasked = await _by_id(view, arguments.topic, arguments.id.strip())
        if found is not None:
            await _name_brokers(view, [found])
    elif arguments.broker and arguments.offset >= 0:
        queue = MessageQueue(arguments.topic, arguments.broker, arguments.queue)
        found = await view.admin.message_at(queue, arguments.offset)
    else:
        raise BadArguments("an id is required, or broker, queue and offset")
    if found is None:
        failed = "".join(f"; {one.what}: {one.why}" for one in unasked)
        raise ClientError(f"no such message in topic {arguments.topic!r}{failed}")
    return found, unasked


async def traces(view: ClusterView, arguments: TracesArguments) -> TracesPage:
    message_id = arguments.id.strip()
    if not message_id:
        return TracesPage("", arguments.trace_topic, [], "", [])
    try:
        async with view.bodies:
            found, unasked, _ = await _by_key(view, arguments.trace_topic, message_id, MAX_TRACES)
            events = await asyncio.to_thread(_events_of, found, message_id)
    except NoRouteInfo as e:
        return TracesPage(message_id, arguments.trace_topic, [], str(e), [])
    problem = "" if events or unasked else f"no client has traced message {message_id}"
    topics = dict.fromkeys(event.topic for event in events if event.topic)

    async def stored_in(topic: str) -> MessageExt | None:
        async with view.bodies:
            message, failed = await _by_id(view, topic, message_id)
        unasked.extend(failed)
        if message is not None:
            # The memory of the message is freed, because the timeline needs only its times and its address.
            message.body = b""
        return message

    stored = await query_each(list(topics)[:MAX_TRACED_TOPICS], stored_in, None)
    unasked = list(dict.fromkeys([*unasked, *stored.unasked]))
    messages = [message for message in stored.results.values() if message is not None]
    return TracesPage(message_id, arguments.trace_topic, timeline(events, messages), problem, unasked)


def _events_of(found: Sequence[MessageExt], message_id: str) -> list[TraceView]:
    """Returns the events of one message in trace messages, by time. Raises BodyError for an invalid trace message."""
    events: list[TraceView] = []
    for message in found:
        body = beginning_of(message, MAX_TRACE_BYTES + 1)
        if len(body) > MAX_TRACE_BYTES:
            raise BodyError(f"a trace of more than {MAX_TRACE_BYTES} bytes can't be shown")
        events += [event for event in decode_trace(body, message.born_host, ends=True) if event.msg_id == message_id]
    return sorted(events, key=lambda event: event.timestamp)


def timeline(events: list[TraceView], stored: Sequence[MessageExt] = ()) -> list[TraceStep]:
    """Returns the steps by start time. Each message in `stored` adds a step.

    The recorded time of a send is its start. For a consumption, it is the end, which old clients omit
    (`TraceDataEncoder`).
    """
    steps = [
        TraceStep(
            _STEPS[event.msg_type],
            event.group,
            event.client_host,
            event.timestamp - (event.cost_time if event.msg_type == "SubAfter" and event.timestamp else 0),
            event.cost_time,
            event.success,
            state=event.transaction_state,
        )
        for event in events
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


async def rows_of(view: ClusterView, found: list[MessageExt]) -> list[MessageRow]:
    """Returns rows of messages that were found by key or id. Hold `view.bodies` until the messages are released."""
    await _name_brokers(view, found)
    # In a thread, because it can decompress the bodies.
    return await asyncio.to_thread(lambda: [row_of(message) for message in found])


def _rows(rows: list[msgspec.Struct]) -> list[MessageRow]:
    return [row for row in rows if isinstance(row, MessageRow)]


async def _name_brokers(view: ClusterView, found: list[MessageExt]) -> None:
    """Sets the broker names of messages. Messages found by key or id have only the broker's address."""
    servers = await view.servers.get()
    names = {
        address: name
        for name, broker in (servers.info.broker_addr_table.items() if servers is not None else ())
        for address in broker.broker_addrs.values()
    }
    for one in found:
        one.broker_name = one.broker_name or names.get(one.store_host, "")
