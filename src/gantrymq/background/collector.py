"""Avoids long pauses by Python's garbage collector in a server process.

A full collection visits every object and stops all other work: 130 ms for two million objects, which 200,000 pops
create. It repeats each time the number of objects grows by a quarter. Objects that survive one full collection usually
live on. This module therefore freezes them, which takes no time. Later collections skip them and take 10 ms at most.

Reference counting still frees frozen objects, except those in a cycle. To free cycles, a complete collection runs
whenever the number of frozen objects has doubled.

Decision record: docs/decisions/garbage-collection.md.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Objects that may be added to twice the last number of frozen objects before a complete collection.
ADDED_OBJECTS = 300_000
#: Number of the oldest generation, which a full collection visits.
_FULL = 2


class Collector:
    """Freezes objects after full collections. Does nothing on Python 3.14, which collects in small steps."""

    def __init__(self, added_objects: int = ADDED_OBJECTS) -> None:
        self._added_objects = added_objects
        #: Estimated number of frozen objects. Includes objects that were freed after the last count.
        self._frozen = 0
        self._limit = added_objects
        #: True if nothing is frozen, so that the next full collection visits everything.
        self._is_whole_next = False

    def start(self) -> None:
        if sys.version_info < (3, 14) and self._ended not in gc.callbacks:
            self._frozen = gc.get_freeze_count()
            gc.callbacks.append(self._ended)

    def stop(self) -> None:
        """Restores the normal behaviour of the collector."""
        if self._ended in gc.callbacks:
            gc.callbacks.remove(self._ended)
            gc.unfreeze()

    def _ended(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != _FULL:
            return
        if self._is_whole_next:
            self._is_whole_next = False
            gc.freeze()
            self._frozen = gc.get_freeze_count()
            self._limit = self._added_objects + 2 * self._frozen
            return
        self._frozen += len(gc.get_objects(generation=_FULL))
        gc.freeze()
        if self._frozen > self._limit:
            # Counting takes 10 ns per object, so it is done only near the limit.
            self._frozen = gc.get_freeze_count()
            if self._frozen > self._limit:
                # The next full collection, which comes soon, frees the cycles. A callback cannot start a collection.
                gc.unfreeze()
                self._is_whole_next = True


@contextmanager
def without_collections() -> Iterator[None]:
    """Turns collections off while many objects are created that stay, so that none of them visits these objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
