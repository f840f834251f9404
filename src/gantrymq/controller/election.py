"""Selects the next master of a broker set (elect/impl/DefaultElectPolicy)."""

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
    """Returns the id of the broker to elect, or None if there is no candidate.

    A live master keeps its role unless another broker is designated. If a broker is designated, only this broker can be
    elected. Otherwise the broker with the most data is elected, then the one with the highest priority, then the lowest
    id.

    Args:
        candidates: Sets of broker ids. A later set is used only if no broker of the earlier sets can be elected.
        live: Returns the data of an active broker, or None for others.
        old_master: Id of the current master.
        designated: Id of the only broker that may be elected, if any.
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
