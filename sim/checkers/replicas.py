"""What replication promises of messages, judged by what clients saw of places in logs and queues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from sim.history import Sent
from sim.replicas_plan import ASYNC_MASTER, CONTROLLED

if TYPE_CHECKING:
    from sim.run import Run


def one_master_acknowledges(run: Run) -> Iterator[str]:
    """What is sent after something was acknowledged stands behind it in its broker's log, whoever is master by then."""
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
    """No two messages are acknowledged or shown at one offset of a queue."""
    if not _is_lasting(run):
        return
    names: dict[tuple[str, int, int], str] = {}
    for sent in run.history.sent.values():
        if sent.stored_at is not None and sent.place is not None:
            other = names.setdefault(sent.place, sent.name)
            if other != sent.name:
                yield f"{other} and {sent.name} were acknowledged at one place: {sent.place}"
    if run.plan.mode != CONTROLLED or run.plan.failures or run.plan.extras:
        # Elsewhere a message is shown as soon as its master has it.
        return
    for one in run.history.received:
        # What is popped again is in another topic.
        if one.group != "pop":
            other = names.setdefault((one.broker, one.queue, one.offset), one.name)
            if other != one.name:
                yield f"{one.group} had {one.name} at {(one.broker, one.queue, one.offset)}, where {other} was"


def _is_lasting(run: Run) -> bool:
    """What was acknowledged keeps its place, whatever happens in this plan."""
    kinds = {fault.kind for fault in run.plan.faults}
    return (run.plan.is_synced or "power" not in kinds) and "lies" not in kinds and run.plan.mode != ASYNC_MASTER
