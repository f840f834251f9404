"""Checks of a finished run, based on the history of its clients and on the final stores.

A checker is a function that takes the run and yields problems. Its name is in `ALL`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sim.checkers import copies, messages, offsets, outages, programs, replicas

if TYPE_CHECKING:
    from sim.run import Run

ALL: list[Callable[[Run], Iterator[str]]] = [
    messages.nothing_is_lost,
    messages.nothing_is_invented,
    messages.nothing_is_altered,
    messages.nothing_is_early,
    messages.nothing_is_late,
    messages.orderly_is_in_order,
    messages.nothing_is_twice,
    messages.retries_are_few,
    messages.what_is_done_is_kept,
    copies.delayed_are_delivered_once,
    copies.transactions_are_committed_once,
    messages.workloads_are_content,
    messages.noted_at_once,
    offsets.handled_is_committed,
    outages.acknowledged_is_on_the_disk,
    replicas.one_master_acknowledges,
    replicas.one_message_has_a_place,
    replicas.slaves_stand_in,
    programs.nobody_is_refused,
    programs.producers_get_on,
    programs.everybody_works,
    programs.nothing_went_unhandled,
    programs.nothing_was_seen,
    programs.stores_are_whole,
]
