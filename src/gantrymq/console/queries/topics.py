"""Topics: all of them, and one with its queues, its readers and how far back its messages go."""

from __future__ import annotations

import msgspec

from gantrymq.client.admin.base import any_address
from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye, TopicSeen, message_type
from gantrymq.console.listing import Cut, ListArguments, cut
from gantrymq.console.queries.kinds import topic_kind
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.protocol.message import MessageQueue

#: Queues of which the oldest message's time is asked for.
MAX_QUEUES_WITH_TIMES = 128


class TopicsArguments(ListArguments, kw_only=True):
    """`kind` is topic, retry, dlq, system or all."""

    kind: str = "topic"


class Topic(msgspec.Struct):
    """A topic; queues of all brokers together. `perm` is rw, r, w or - of the broker that allows the most."""

    name: str
    kind: str
    message_type: str
    read_queues: int
    write_queues: int
    perm: str
    brokers: list[str]


class Topics(msgspec.Struct):
    #: None while they are being asked for.
    table: Cut[Topic] | None
    kind: str
    clusters: list[str]
    unasked: list[Unasked]


class TopicArguments(msgspec.Struct):
    name: str


class Queue(msgspec.Struct):
    """One queue. Times are store times in ms, 0 for an empty queue; the oldest is None where it wasn't told."""

    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    oldest_ms: int | None
    newest_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


class TopicOnBroker(msgspec.Struct):
    broker: str
    address: str
    read_queues: int
    write_queues: int
    perm: str


class TopicPage(msgspec.Struct):
    name: str
    kind: str
    clusters: list[str]
    message_type: str
    in_tps: float
    messages: int
    brokers: list[TopicOnBroker]
    queues: list[Queue]
    #: Consumer groups that read it, or have committed offsets in it.
    groups: list[str]
    unasked: list[Unasked]


async def topics(eye: Eye, arguments: TopicsArguments) -> Topics:
    known = await eye.topics.get()
    servers = await servers_of(eye)
    clusters = sorted(servers.info.cluster_addr_table)
    if known is None:
        return Topics(None, arguments.kind, clusters, [])
    rows = [
        _topic(name, kind, seen)
        for name, seen in known.seen.items()
        if (kind := topic_kind(name, servers)) == arguments.kind or arguments.kind == "all"
    ]
    columns = {
        "name": lambda t: t.name,
        "message_type": lambda t: t.message_type,
        "write_queues": lambda t: t.write_queues,
        "read_queues": lambda t: t.read_queues,
        "brokers": lambda t: len(t.brokers),
        "perm": lambda t: t.perm,
    }
    table = cut(rows, arguments, columns, text=lambda t: t.name, default="name")
    return Topics(table, arguments.kind, clusters, known.unasked)


async def topic(eye: Eye, arguments: TopicArguments) -> TopicPage:
    """Raises NoRouteInfo."""
    name = arguments.name
    route = await eye.admin.topic_route(name)
    unasked: list[Unasked] = []
    addresses = {data.broker_name: address for data in route.broker_datas if (address := any_address(data))}
    names = {address: broker for broker, address in addresses.items()}
    configs = await eye.each(names, lambda address: eye.admin.topic_config(address, name))
    unasked += configs.unasked
    config = next(iter(configs.answers.values()), None)
    queues: list[Queue] = []
    in_tps = 0.0
    groups: list[str] = []
    try:
        stats = await eye.admin.topic_stats(name)
    except GantryError as e:
        unasked.append(Unasked(name, str(e)))
    else:
        in_tps = stats.topic_put_tps
        oldest = await oldest_times(
            eye, addresses, [queue for queue, of_queue in stats.offset_table.items() if of_queue.max_offset]
        )
        queues = [
            Queue(
                queue.broker_name,
                queue.queue_id,
                of_queue.min_offset,
                of_queue.max_offset,
                oldest.get(queue),
                of_queue.last_update_timestamp,
            )
            for queue, of_queue in sorted(stats.offset_table.items())
        ]
    try:
        groups = await eye.admin.groups_of_topic(name)
    except GantryError as e:
        unasked.append(Unasked(name, str(e)))
    return TopicPage(
        name,
        topic_kind(name, await eye.servers.get()),
        sorted({data.cluster for data in route.broker_datas}),
        message_type(config) if config is not None else "",
        in_tps,
        sum(queue.messages for queue in queues),
        _on_brokers(route, addresses),
        queues,
        groups,
        list(dict.fromkeys(unasked)),
    )


async def oldest_times(eye: Eye, addresses: dict[str, str], queues: list[MessageQueue]) -> dict[MessageQueue, int]:
    """When the oldest message of each was stored, ms; of the first MAX_QUEUES_WITH_TIMES, where brokers tell."""
    asked = {str(n): queue for n, queue in enumerate(queues[:MAX_QUEUES_WITH_TIMES]) if queue.broker_name in addresses}

    async def ask(number: str) -> int:
        queue = asked[number]
        return await eye.admin.api.earliest_store_time(
            addresses[queue.broker_name], queue.topic, queue.queue_id, eye.settings.timeout_ms
        )

    answers = await eye.each(asked, ask)
    return {asked[number]: time for number, time in answers.answers.items() if time > 0}


def perm_text(perm: int) -> str:
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "-"


def _topic(name: str, kind: str, seen: TopicSeen) -> Topic:
    return Topic(name, kind, seen.message_type, seen.read_queues, seen.write_queues, perm_text(seen.perm), seen.brokers)


def _on_brokers(route: TopicRouteData, addresses: dict[str, str]) -> list[TopicOnBroker]:
    return [
        TopicOnBroker(
            data.broker_name,
            addresses.get(data.broker_name, ""),
            data.read_queue_nums,
            data.write_queue_nums,
            perm_text(data.perm),
        )
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
    ]
