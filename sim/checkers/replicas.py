"""Checks of replication, based on the log and queue offsets that clients received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from sim.history import Received, Sent
from sim.plan import TOPIC
from sim.replicas_plan import ASYNC_MASTER, CONTROLLED

if TYPE_CHECKING:
    from sim.run import Run

#: In seconds: until a slave has a copied message, until a slave becomes acting master, and until due messages then
#: arrive.
_COPIED_S, _STANDS_IN_S, _DELIVERED_S = 1.0, 20.0, 5.0
#: Longest time until a message is on the disk of its broker, in seconds.
_FLUSHED_S = 1.0


def one_master_acknowledges(run: Run) -> Iterator[str]:
    """Checks the log offsets of acknowledged messages, even after a change of master.

    If a message is sent after another one was acknowledged, its log offset must be higher.
    """
    if not _is_lasting(run):
        return
    logs: dict[str, list[Sent]] = defaultdict(list)
    for sent in run.history.sent.values():
        if sent.stored_at is not None and sent.physical_offset >= 0:
            logs[sent.broker].append(sent)
    for log in logs.values():
        acknowledged: list[tuple[float, int, str]] = []
        last: Sent | None = None
        for sent in sorted(log, key=lambda one: one.asked_at):
            while acknowledged and acknowledged[0][0] < sent.asked_at:
                before = run.history.sent[heappop(acknowledged)[2]]
                if last is None or before.physical_offset > last.physical_offset:
                    last = before
            if last is not None and sent.physical_offset <= last.physical_offset:
                yield (
                    f"{sent.name} was sent after {last.name} was acknowledged, and stands before it, at "
                    f"{sent.physical_offset} of {sent.stored_by} and {last.physical_offset} of {last.stored_by}"
                )
            assert sent.stored_at is not None
            heappush(acknowledged, (sent.stored_at, sent.physical_offset, sent.name))


def one_message_has_a_place(run: Run) -> Iterator[str]:
    """Checks that no two messages are acknowledged or delivered at the same offset of a queue."""
    if not _is_lasting(run):
        return
    names: dict[tuple[str, str, int, int], str] = {}
    for sent in run.history.sent.values():
        if sent.stored_at is not None and sent.place is not None:
            other = names.setdefault((sent.topic, *sent.place), sent.name)
            if other != sent.name:
                yield f"{other} and {sent.name} were acknowledged at one place of {sent.topic}: {sent.place}"
    if run.plan.mode != CONTROLLED or run.plan.failures or run.plan.extras:
        # In the other modes, a message is delivered as soon as the master has it.
        return
    for one in run.history.received:
        # Redelivered pops are in another topic.
        if one.group != "pop" and not _is_lost(run, one):
            other = names.setdefault((TOPIC, one.broker, one.queue, one.offset), one.name)
            if other != one.name:
                yield f"{one.group} had {one.name} at {(one.broker, one.queue, one.offset)}, where {other} was"


def _is_lost(run: Run, one: Received) -> bool:
    """Returns true if a power failure may have destroyed a delivered message, so that its offset is used again.

    Brokers deliver messages before they flush them, also with SYNC_FLUSH, as Java's brokers do. If the other replicas
    are not in sync, the master can be the only broker that has the message.
    """
    return any(
        outage.broker == one.in_memory_of and one.at <= outage.at <= one.at + _FLUSHED_S
        for outage in run.history.outages
    )


def slaves_stand_in(run: Run) -> Iterator[str]:
    """Checks that due messages are delivered during an absence of the master.

    Applies only to plans without other faults.
    """
    absences = run.clients.scene.absences
    if not run.plan.acting or any(fault.kind != "away" for fault in run.plan.faults) or len(absences) != 1:
        return
    name, since, until = absences[0]
    first: dict[str, float] = {}
    for one in run.history.received:
        if one.group == "push":
            first.setdefault(one.name, one.at)
    for sent in run.history.sent.values():
        # A slave of an ASYNC_MASTER can lack the newest acknowledged messages.
        if sent.broker != name or not sent.not_before or sent.stored_at is None or sent.stored_at > since - _COPIED_S:
            continue
        due = max(sent.not_before, since + _STANDS_IN_S)
        if due < until and first.get(sent.name, inf) > due + _DELIVERED_S:
            yield f"push had {sent.name} of {name} at {first.get(sent.name, inf):.1f} s, and a slave stood in"


def _is_lasting(run: Run) -> bool:
    """Returns true if acknowledged messages keep their position despite all faults of this plan."""
    kinds = {fault.kind for fault in run.plan.faults}
    keeps = run.plan.is_synced or not kinds & {"power", "power-at-sync"}
    return keeps and "lies" not in kinds and run.plan.mode != ASYNC_MASTER
