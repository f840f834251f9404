"""Checks of one consumer group: members, their activity, lag, and obstacles."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator

from gantrymq.client.doctor.finding import Finding, ok, problem, warning
from gantrymq.client.doctor.group_checks import check_lag, check_subscriptions, dead_letter_finding
from gantrymq.client.doctor.observation import named
from gantrymq.client.doctor.one_group import OneGroup
from gantrymq.protocol.bodies.consumer import ConsumerRunningInfo
from gantrymq.protocol.bodies.heartbeat import BROADCASTING
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.system.clock import now_ms

#: A member without a pull from one of its queues for this time is idle there, ms (`PULL_MAX_IDLE_TIME`).
IDLE_MS = 120_000


def check_one_group(group: OneGroup) -> Iterator[Finding]:
    if not (group.configs or group.members or group.progress):
        yield _unknown(group)
        return
    yield from _check_configs(group)
    yield from _check_members(group)
    summary = group.summary
    yield from check_subscriptions(summary)
    yield from check_lag(summary, even_without=True)
    for client_id, info in sorted(group.running.items()):
        yield from _check_member(group, client_id, info)
    yield from _check_queues(group)
    if group.dead_letters:
        yield dead_letter_finding(group.name, group.dead_letters)


def _unknown(group: OneGroup) -> Finding:
    similar = difflib.get_close_matches(group.name, group.known, n=3, cutoff=0.8)
    return problem(
        f"no broker knows group {group.name}",
        "no consumer with that name has ever connected, and nobody has created it."
        + (f" Is {named(similar)} meant?" if similar else ""),
        "Correct the name, or see the consumer's log for why it can't connect.",
    )


def _check_configs(group: OneGroup) -> Iterator[Finding]:
    for address, config in sorted(group.configs.items()):
        if not config.consume_enable:
            yield problem(
                f"group {group.name} may not consume on broker {group.brokers[address]} (consumeEnable=false)",
                "somebody has switched it off there: the broker refuses each pull.",
                f"Switch it on, with the group's other settings: gantry admin updateSubGroup -b {address} -g "
                f"{group.name} -s true",
            )
        connected = group.connected.get(address)
        is_broadcast = connected is not None and bool(connected.connection_set) and _is_broadcast(group)
        if is_broadcast and not config.consume_broadcast_enable:
            yield problem(
                f"group {group.name} may not read as broadcasting on broker {group.brokers[address]}",
                "its members want each message for each of them, and consumeBroadcastEnable=false: the broker refuses "
                "each pull.",
                f"Allow it, with the group's other settings: gantry admin updateSubGroup -b {address} -g {group.name} "
                "-d true",
            )


def _is_broadcast(group: OneGroup) -> bool:
    return any(answer.message_model == BROADCASTING for answer in group.connected.values() if answer.connection_set)


def _check_members(group: OneGroup) -> Iterator[Finding]:
    members = group.members
    if not members:
        if group.progress and not group.has_joined:
            yield ok(
                f"group {group.name} has no members, and no consumer has ever joined it: a reader such as a Spark "
                "query commits its offsets"
            )
        elif group.connected and not any(lag.messages for lag in group.summary.lags.values()):
            yield warning(
                f"group {group.name} has no consumer at the moment",
                "no consumer runs, or those that run can't reach the brokers.",
                "Start a consumer and read its log. With access control, it needs the permission Sub on topic and "
                "group.",
            )
        return
    pulls = next(answer for answer in group.connected.values() if answer.connection_set)
    kind = "broadcasting" if _is_broadcast(group) else "clustering"
    topics = sorted({topic for topic in pulls.subscription_table if not topic.startswith(RETRY_TOPIC_PREFIX)})
    yield ok(
        f"group {group.name} ({kind}) has {len(members)} member{'s' * (len(members) > 1)}, and reads {named(topics)}"
    )
    for address, answer in sorted(group.connected.items()):
        there = {one.client_id for one in answer.connection_set}
        missing = [member for member in members if member not in there]
        if missing and (there or address in group.configs):
            yield warning(
                f"broker {group.brokers[address]} has not heard of {len(missing)} members of group {group.name}: "
                f"{named(missing, 3)}",
                "a member sends each broker of its topics a heartbeat in 30 s: these have just come, can't reach the "
                "broker, or read no topic of it. Others share out the queues there without them.",
                "Look again in a minute; if it stays so, see whether that machine reaches the broker's address.",
            )
    for client_id, error in sorted(group.silent.items()):
        yield warning(
            f"member {client_id} says nothing of itself: {error}",
            "it hangs or has just gone; brokers take it for dead two minutes after its last heartbeat, and others have "
            "its queues then.",
            "Look at that process: is it stopped, or busy in a handler that holds its event loop?",
        )


def _check_member(group: OneGroup, client_id: str, info: ConsumerRunningInfo) -> Iterator[Finding]:
    now = now_ms()
    asked = {queue: one.last_pull_timestamp for queue, one in info.mq_table.items() if not one.droped}
    asked |= {queue: one.last_pop_timestamp for queue, one in info.mq_pop_table.items() if not one.droped}
    held = sum(one.cached_msg_count for one in info.mq_table.values())
    held += sum(one.wait_ack_count for one in info.mq_pop_table.values())
    if not asked:
        yield ok(f"member {client_id} has no queue: there are more members than queues, or they are being shared out")
        return
    last_ms = max(asked.values())
    ago = "never" if not last_ms else f"{max(0, now - last_ms) / 1000:.1f} s ago"
    yield ok(
        f"member {client_id} has {len(asked)} queue{'s' * (len(asked) > 1)} and {held:,} messages in its process "
        f"queues; its last pull was {ago}"
    )
    idle = [queue for queue, at_ms in asked.items() if 0 < at_ms < now - IDLE_MS and _lag(group, queue)]
    if idle:
        waiting = sum(_lag(group, queue) for queue in idle)
        longest_s = (now - min(asked[queue] for queue in idle)) // 1000
        yield problem(
            f"member {client_id} has not pulled from {len(idle)} of its queues for {longest_s:,} s, and "
            f"their lag is {waiting:,} messages: {_places(idle)}",
            "it is paused, or its process queues are full: its handlers take long, or hang.",
            f"Print its stacks: gantry admin consumerStatus -g {group.name} -i '{client_id}' -s. If handlers wait for "
            "another system, set a timeout in the handler, or a higher concurrency.",
        )


def _check_queues(group: OneGroup) -> Iterator[Finding]:
    members = group.members
    if not members or set(members) != group.running.keys() or _is_broadcast(group):
        return
    taken: dict[MessageQueue, list[str]] = defaultdict(list)
    for client_id, info in group.running.items():
        for queue in info.mq_table.keys() | info.mq_pop_table.keys():
            taken[queue].append(client_id)
    subscribed = {one.topic for info in group.running.values() for one in info.subscription_set}
    free = [queue for queue in group.progress if queue not in taken and queue.topic in subscribed]
    waiting = sum(_lag(group, queue) for queue in free)
    if waiting:
        yield warning(
            f"{waiting:,} messages wait for group {group.name} in queues that no member has: "
            f"{_places([queue for queue in free if _lag(group, queue)])}",
            "members rebalance every 20 s: one has just joined or left, or brokers send them different member lists.",
            "Check again in a minute. If the finding remains, compare the members' subscriptions and the brokers that "
            "they are connected to.",
        )


def _lag(group: OneGroup, queue: MessageQueue) -> int:
    offsets = group.progress.get(queue)
    return 0 if offsets is None else offsets.lag


def _places(queues: list[MessageQueue]) -> str:
    return named((f"{queue.topic} {queue.broker_name}:{queue.queue_id}" for queue in queues), 3)
