"""One consumer: its running info, and the stacks of its handlers, which show why a consumer is slow."""

from __future__ import annotations

import msgspec

from gantrymq.client.doctor.groups_seen import subscriptions_of
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.queries.groups import Rate, Subscription, rates_of
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import ClientError

#: Largest size of the stacks on a page, characters. One stack has some thousand.
MAX_STACKS = 200_000


class MemberArguments(msgspec.Struct):
    group: str
    client_id: str


class MemberQueue(msgspec.Struct):
    """The consumer's state of one queue. Times are in ms.

    `waiting` is the number of pulled or popped messages that wait for a handler.
    """

    topic: str
    broker: str
    queue_id: int
    mode: str
    waiting: int
    mib: int
    pulled_ms: int
    consumed_ms: int
    dropped: bool


class MemberPage(msgspec.Struct):
    group: str
    client_id: str
    properties: dict[str, str]
    subscriptions: list[Subscription]
    queues: list[MemberQueue]
    rates: list[Rate]
    #: Stacks of all threads of a Java client, or of the running handlers of a GantryMQ client. Empty if not reported.
    stacks: str
    unasked: list[Unasked]


async def member(view: ClusterView, arguments: MemberArguments) -> MemberPage:
    """Returns the page. Queries the consumer through a broker. Raises ClientError if it is not connected to any."""
    group, client_id = arguments.group, arguments.client_id
    servers = await servers_of(view)
    answers = await view.each(
        servers.masters.values(),
        lambda address: view.admin.consumer_running_info(group, client_id, jstack=True, broker=address),
        3 * view.settings.timeout_ms / 1000,
    )
    if not answers.results:
        why = "; ".join(unasked.why for unasked in answers.unasked)
        raise ClientError(f"no broker has a connection to {client_id!r} of group {group!r}: {why}")
    info = next(iter(answers.results.values()))
    queues = [
        MemberQueue(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            "PULL",
            one.cached_msg_count,
            one.cached_msg_size_in_mib,
            one.last_pull_timestamp,
            one.last_consume_timestamp,
            one.droped,
        )
        for queue, one in sorted(info.mq_table.items())
    ] + [
        MemberQueue(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            "POP",
            popped.wait_ack_count,
            0,
            popped.last_pop_timestamp,
            0,
            popped.droped,
        )
        for queue, popped in sorted(info.mq_pop_table.items())
    ]
    return MemberPage(
        group,
        client_id,
        dict(sorted(info.properties.items())),
        [Subscription(*subscription) for subscription in subscriptions_of(info)],
        queues,
        rates_of(info),
        (info.jstack or "")[:MAX_STACKS],
        [],
    )
