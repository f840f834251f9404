"""One consumer: what it says of itself, and where its handlers are: why it is slow."""

from __future__ import annotations

import msgspec

from gantrymq.client.doctor.groups_seen import subscriptions_of
from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye
from gantrymq.console.queries.groups import Rate, Subscription, rates_of
from gantrymq.console.queries.servers import servers_of
from gantrymq.errors import ClientError

#: Characters of stacks that are shown; one has some thousand.
MAX_STACKS = 200_000


class MemberArguments(msgspec.Struct):
    group: str
    client_id: str


class MemberQueue(msgspec.Struct):
    """What it holds of one queue; times in ms. `waiting` messages were pulled, or popped, and wait for a handler."""

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
    #: Of a Java client all threads, of ours the handlers at work; empty where the client doesn't tell.
    stacks: str
    unasked: list[Unasked]


async def member(eye: Eye, arguments: MemberArguments) -> MemberPage:
    """By way of the first broker that knows it. Raises ClientError when none does."""
    group, client_id = arguments.group, arguments.client_id
    servers = await servers_of(eye)
    answers = await eye.each(
        servers.masters.values(),
        lambda address: eye.admin.consumer_running_info(group, client_id, jstack=True, broker=address),
        3 * eye.settings.timeout_ms / 1000,
    )
    if not answers.answers:
        why = "; ".join(unasked.why for unasked in answers.unasked)
        raise ClientError(f"no broker reaches {client_id!r} of group {group!r}: {why}")
    info = next(iter(answers.answers.values()))
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
