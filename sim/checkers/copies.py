"""Repeated deliveries of delayed and timed messages, and repeated commits of transactions.

A planned change of master or an orderly restart repeats nothing. A crash repeats each message at most once, and only
messages that were delivered shortly before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.history import Delay
from sim.scene import has_wrong_clocks

if TYPE_CHECKING:
    from sim.run import Run

#: Longest time until a broker has stored its progress and its slaves have copied it, in seconds.
_KEPT_S = 15.0
#: Longest time after a crash in which a broker repeats deliveries, in seconds.
_SETTLED_S = 60.0


def delayed_are_delivered_once(run: Run) -> Iterator[str]:
    """Checks that each delayed copy is delivered once."""
    for name, copies in run.clients.scene.copies.items():
        sent = run.history.sent.get(name)
        if sent is not None and sent.delay is not Delay.NONE:
            yield from _judge(run, name, copies.stored_at, max(copies.waited, 1), "delivered")


def transactions_are_committed_once(run: Run) -> Iterator[str]:
    """Checks that each half message is committed once."""
    for name, copies in run.clients.scene.copies.items():
        for stored_at in copies.committed_at.values():
            yield from _judge(run, name, stored_at, 1, "committed")


def _judge(run: Run, name: str, stored_at: list[float], wanted: int, what: str) -> Iterator[str]:
    if len(stored_at) <= wanted or any(fault.kind in ("lies", "lying") for fault in run.plan.faults):
        return
    first, *others = sorted(stored_at)
    crashes = run.history.crashes
    if not has_wrong_clocks(run.plan):
        crashes = [
            (since, until)
            for since, until in crashes
            if first >= since - _KEPT_S and any(since <= again <= until + _SETTLED_S for again in others)
        ]
    if len(stored_at) > wanted + len(crashes):
        at = ", ".join(f"{time:.1f}" for time in sorted(stored_at))
        yield f"{name} was {what} at {at} s, {wanted} of it waited, and {len(crashes)} crashes excuse the rest"
