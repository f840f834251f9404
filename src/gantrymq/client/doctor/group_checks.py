"""Checks of consumer groups: equal subscriptions, and lag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gantrymq.client.doctor.finding import Finding, ok, problem, warning
from gantrymq.client.doctor.groups_seen import GroupSeen, Subscriptions
from gantrymq.client.doctor.observation import Observation, named
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX
from gantrymq.system.clock import now_ms

#: A group with lag is late if its last consumed message is older than this, ms.
LATE_MS = 10 * 60 * 1000


def check_groups(seen: Observation) -> Iterator[Finding]:
    for group in seen.groups:
        yield from check_subscriptions(group)
        yield from check_lag(group)
    for name, count in seen.dead_letters.items():
        yield dead_letter_finding(name, count)
    if seen.groups:
        count = len(seen.groups)
        groups = f"{count} consumer group{'' if count == 1 else 's'}"
        if count != seen.group_count:
            groups = f"{count} of {seen.group_count} consumer groups"
        where = "" if seen.topic is None else f" for topic {seen.topic!r}"
        yield ok(f"{groups} checked{where}{'' if count == seen.group_count else ': those with the largest lag'}")


def dead_letter_finding(group: str, count: int) -> Finding:
    """Returns the warning about the dead-letter messages of a group."""
    topic = DLQ_TOPIC_PREFIX + group
    return warning(
        f"group {group} has {count:,} dead-letter messages",
        f"its handlers failed on each of them as often as the group allows; they are in {topic}.",
        f"Fix the handler (gantry consume '{topic}' shows the messages), then send them again: gantry admin resendDlq "
        f"-g {group}",
    )


def check_subscriptions(group: GroupSeen) -> Iterator[Finding]:
    """Checks that all members have the same subscriptions."""
    by_subscription: dict[Subscriptions, list[str]] = defaultdict(list)
    for client_id, subscriptions in group.subscriptions.items():
        by_subscription[subscriptions].append(client_id)
    if len(by_subscription) > 1:
        told = "; ".join(f"{named(clients, 3)}: {_summary(what)}" for what, clients in sorted(by_subscription.items()))
        yield problem(
            f"the consumers of group {group.name} subscribe to different things: {told}",
            "a broker keeps one subscription for a group and topic, that of the last heartbeat: queues go to consumers "
            "that don't want them, and messages that a filter leaves out count as consumed.",
            "Give all consumers of a group the same subscriptions, and other ones a group of their own.",
        )


def _summary(subscriptions: Subscriptions) -> str:
    return ", ".join(f"{topic} {kind} {expression!r}" for topic, kind, expression in subscriptions) or "nothing"


def check_lag(group: GroupSeen, *, even_without: bool = False) -> Iterator[Finding]:
    """Checks the group's lag in each topic. With `even_without`, also reports topics without lag."""
    for topic, lag in sorted(group.lags.items()):
        if not lag.messages:
            if even_without:
                yield ok(f"group {group.name} has consumed all of topic {topic}")
            continue
        what = f"group {group.name} has a lag of {lag.messages:,} messages in topic {topic}"
        is_late = lag.last_ms is not None and 0 < lag.last_ms < now_ms() - LATE_MS
        if group.members == [] and not group.has_joined:
            what += ", and no consumer has ever joined it"
            if not is_late:
                yield ok(f"{what}: a reader such as a Spark query commits its offsets")
                continue
            yield warning(
                what,
                "its offsets come from a reader that does not join the group, such as a Spark query with "
                "consumerGroup; that reader has stopped, or it is slower than its producers.",
                "Check the query's progress. If the group is unused, delete it: gantry admin deleteSubGroup "
                f"-g {group.name} -c CLUSTER",
            )
        elif group.members == []:
            yield warning(
                f"{what}, and no consumer",
                "no consumer runs, or those that run can't reach the brokers.",
                f"Start a consumer. If the group is unused, delete it: gantry admin deleteSubGroup -g {group.name} "
                "-c CLUSTER",
            )
        elif is_late and lag.last_ms is not None:
            minutes = (now_ms() - lag.last_ms) // 60_000
            yield warning(
                f"{what}, for {minutes:,} minutes",
                "its consumers are slower than the producers, fail repeatedly, or wait for another system.",
                f"Look at gantry admin consumerProgress -g {group.name} and at the consumers' logs. More consumers "
                "help if there are more queues than consumers.",
            )
        else:
            yield ok(what)
