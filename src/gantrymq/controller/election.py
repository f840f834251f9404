"""elect: who is to be the next master of a broker set (elect/impl/DefaultElectPolicy)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gantrymq.controller.live_brokers import LiveBroker


def elect(
    candidates: Iterable[Iterable[int]],
    live: Callable[[int], LiveBroker | None],
    *,
    old_master: int | None,
    designated: int | None,
) -> int | None:
    """A broker id, or None when nobody can be elected.

    `candidates` are sets of ids, in the first of which somebody is looked for first; `live` tells of a broker that is
    active, None for one that isn't. A master that lives stays, unless another is `designated`; then it is that one or
    none. Else it is the broker whose log is the furthest, of those the one that wants it most, then the lowest id.
    """
    for some in candidates:
        alive = {broker_id: broker for broker_id in sorted(some) if (broker := live(broker_id)) is not None}
        if old_master in alive and designated in (None, old_master):
            return old_master
        if designated is not None:
            if designated in alive:
                return designated
        elif alive:
            return min(alive, key=lambda broker_id: _rank(alive[broker_id]))
    return None


def _rank(broker: LiveBroker) -> tuple[int, int, int]:
    return -broker.epoch, -broker.max_offset, broker.election_priority
