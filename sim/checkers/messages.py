"""Checks of the messages, based on what clients sent and received."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from sim.faults import SCRIPTS
from sim.history import Delay, Received, Sent
from sim.scene import CLOCKS
from sim.scripts import HANDOVERS, RELIEFS

if TYPE_CHECKING:
    from sim.run import Run

_EARLY_S = 0.002
#: Longest delay of a message without faults, in seconds. A slot of the timer is one second long.
_LATE_S = 5.0
#: A broker rejects a pop that is older than its poll time plus this time, in seconds.
_LATE_POP_S = 0.5
#: Precision with which the times of rejected pops are added up, in seconds.
_STEP_S = 0.1
#: Longest time until the check of an open transaction, in seconds: `transactionTimeOut` plus
#: `transactionCheckInterval`.
_ASKED_S = 15.0
#: Longest time until a committed offset is on the broker's disk, in seconds. Consumers commit each 5 s, and brokers
#: flush each 5 s.
_KEPT_S = 20.0
#: Time in which clients recover after a fault, in seconds.
_SETTLED_S = 60.0
#: A fault can cause a redelivery at its begin, when its victim is missed, and at its end.
_DELIVERIES_PER_FAULT = 3
#: Weights of faults. A script counts as several faults. Each handover can redeliver a popped message, and all messages
#: that slaves do not have as consumed yet: slaves copy offsets each 5 s. If all brokers are down at once, clients
#: return to each of them one by one. A queue then moves between consumers until both brokers have all of them.
_OF_A_SCRIPT, _FAULTS_OF = 3, {"handed": HANDOVERS, "relieved": RELIEFS, "kill-all": 2, "end-all": 2}


def nothing_is_lost(run: Run) -> Iterator[str]:
    """Checks that each group received all acknowledged messages."""
    for group in run.clients.scene.reads:
        lost = run.clients.scene.lacks(group)
        if lost:
            yield f"{group} never had {len(lost)} of the messages that were acknowledged: {', '.join(lost[:5])}"


def nothing_is_invented(run: Run) -> Iterator[str]:
    """Checks that each received message was sent and not rolled back."""
    for one in run.history.received:
        sent = run.history.sent.get(one.name)
        if sent is None:
            yield f"{one.group} had {one.name!r}, which nobody sent"
        elif sent.is_void:
            yield f"{one.group} had {one.name}, which was rolled back"


def nothing_is_early(run: Run) -> Iterator[str]:
    """Checks that delayed messages are not too early.

    The difference of the clocks that determine the delivery time is allowed.
    """
    for one in run.history.received:
        sent = run.history.sent.get(one.name)
        if sent is not None and one.at < sent.not_before - _EARLY_S:
            early_s = sent.not_before - one.at
            if early_s > _clocks_differ_s(run, sent, one) + _EARLY_S:
                yield f"{one.group} had {one.name} {early_s:.3f} s before its time"


def _clocks_differ_s(run: Run, sent: Sent, one: Received) -> float:
    """Returns how far the delivering broker's clock was ahead of the clock that set the delivery time, in seconds."""
    errors = run.clients.scene.clock_errors
    least, most = errors(one.broker, sent.asked_at, one.at)
    set_least, set_most = errors(sent.broker, sent.asked_at, sent.stored_at or one.at)
    if sent.delay is Delay.AT:
        set_least = sent.clock_error_s
    if sent.delay is Delay.LEVEL and least < set_most:
        # If the store time is in the future, the broker delivers at once.
        return inf
    return max(most - set_least, 0.0)


def nothing_is_late(run: Run) -> Iterator[str]:
    """Checks that messages arrive soon if there are no faults but those of wall clocks.

    The time counts from the store time, and for delayed messages from the delivery time. With wrong clocks, only
    messages that enter their queue at once count. Times in which the broker rejects all pops do not count.
    """
    if any(fault.kind not in CLOCKS for fault in run.plan.faults) or run.plan.failures or run.clients.extras:
        return
    most_s = _LATE_S + (_ASKED_S if run.plan.transactions else 0.0)
    for group, had in run.history.by_group().items():
        for name, deliveries in had.items():
            sent = run.history.sent.get(name)
            is_plain = sent is not None and sent.place is not None
            if sent is not None and sent.stored_at is not None and (is_plain or not run.plan.faults):
                since, until = max(sent.not_before, sent.stored_at), deliveries[0].at
                late_s = until - since
                if late_s > most_s and group == "pop":
                    late_s -= _rejected_s(run, sent, since, until)
                if late_s > most_s:
                    yield f"{group} had {name} {late_s:.2f} s late, without a fault but of clocks"


def _rejected_s(run: Run, sent: Sent, since: float, until: float) -> float:
    """Returns how long between two times the broker of a message rejects the pops of all consumers, in seconds.

    A pop contains its creation time. If the client's clock is behind the broker's, the pop looks older than it is. The
    broker rejects it as too old to be useful. Java's broker does the same, also with the pops of Java's clients
    (`PopMessageRequestHeader.isTimeoutTooMuch`), and holds other pops in the same way. The message arrives as soon as
    the clocks agree.
    """
    broker = next(one for one in run.servers.brokers if run.servers.address_of(one) == sent.stored_by)
    hosts = [one.host for one in run.clients.consumers if one.name.startswith("pop-")]

    def are_rejected(at: float) -> bool:
        broker_error_s, _ = broker.host.clock_errors(at, at)
        return all(broker_error_s - host.clock_errors(at, at)[1] > _LATE_POP_S for host in hosts)

    steps = int((until - since) / _STEP_S)
    return _STEP_S * sum(are_rejected(since + _STEP_S * step) for step in range(steps))


def nothing_is_altered(run: Run) -> Iterator[str]:
    """Checks that bodies have their sent length."""
    for name, length in run.clients.scene.lengths.items():
        if set(run.clients.scene.received_lengths[name]) - {length}:
            yield f"{name} was sent with {length} bytes and received with {run.clients.scene.received_lengths[name]}"


def retries_are_few(run: Run) -> Iterator[str]:
    """Checks that a message is not redelivered more often than the faults of the plan can explain."""
    faults = sum(_FAULTS_OF.get(fault.kind, _OF_A_SCRIPT if fault.kind in SCRIPTS else 1) for fault in run.plan.faults)
    most = 1 + _DELIVERIES_PER_FAULT * faults
    for group, had in run.history.by_group().items():
        if group in run.clients.scene.rewound:
            continue
        for name, deliveries in had.items():
            if len(deliveries) > most:
                yield f"{group} had {name} {len(deliveries)} times, with {len(run.plan.faults)} faults"


def what_is_done_is_kept(run: Run) -> Iterator[str]:
    """Checks that messages handled at least 20 s before a fault, or 60 s after it, are not redelivered."""
    if run.plan.failures:
        return
    spans = [(since - _KEPT_S, until + _SETTLED_S) for since, until in run.history.faults]
    for group, had in run.history.by_group().items():
        if group in run.clients.scene.rewound:
            continue
        for name, deliveries in had.items():
            first = deliveries[0].at
            if len(deliveries) > 1 and not any(since <= first <= until for since, until in spans):
                yield f"{group} had {name} at {first:.1f} s, and at {deliveries[-1].at:.1f} s once more"


def orderly_is_in_order(run: Run) -> Iterator[str]:
    """Checks that first deliveries to the orderly group are in order for each key and queue."""
    highest: dict[tuple[str, str, int], int] = {}
    seen: set[str] = set()
    for one in run.history.received:
        sent = run.history.sent.get(one.name)
        if one.group != "orderly" or sent is None or not sent.key:
            continue
        place = (sent.key, one.broker, one.queue)
        if one.name not in seen and sent.number < highest.get(place, -1):
            yield f"orderly had {one.name} after number {highest[place]} of its key, in the same queue"
        seen.add(one.name)
        highest[place] = max(highest.get(place, -1), sent.number)


def nothing_is_twice(run: Run) -> Iterator[str]:
    """Checks that without faults, each group receives each message once."""
    if run.plan.faults or run.plan.failures:
        return
    for group, had in run.history.by_group().items():
        if group in run.clients.scene.rewound:
            continue
        twice = [name for name, deliveries in had.items() if len(deliveries) > 1]
        if twice:
            yield f"{group} had {len(twice)} messages more than once, without a fault: {', '.join(twice[:5])}"


def workloads_are_content(run: Run) -> Iterator[str]:
    """Yields the problems of the additional workloads."""
    yield from run.clients.problems


def noted_at_once(run: Run) -> Iterator[str]:
    """Yields violations that clients detected during the run."""
    yield from run.history.problems[:5]
