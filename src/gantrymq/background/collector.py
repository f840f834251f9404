"""Collector: Python's collector of cycles, in a process that is a server, without long pauses.

A full collection looks at every object there is, and nothing else runs meanwhile: 130 ms with two million of them, as
200,000 pops make, and it comes again each time that a quarter is added. But who outlived one full collection mostly
lives on. So those are frozen, which takes no time: later collections pass them by, and each looks at what has come
since the one before, some 10 ms of it at most. What is frozen is still freed with its last reference; only a cycle
isn't. For those, everything is looked at again when twice as many are frozen as were left the last time.

Alternatives that lost: to freeze once after the start, which helps with what is there then, a tenth; to collect never,
as connections, tasks and exceptions do make cycles; a collection in a thread, which holds the interpreter all the same.
"""

from __future__ import annotations

import gc
import sys

#: So many objects more than twice those of the last time are frozen before everything is looked at again.
ROOM = 300_000
#: The generation of a full collection.
_FULL = 2


class Collector:
    """Of this process. Python 3.14 collects in small steps by itself, and is left alone."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        #: How many are frozen; those that were freed since they were counted are among them.
        self._frozen = 0
        self._limit = room
        #: Nothing is frozen, as everything is to be looked at.
        self._is_whole_next = False

    def start(self) -> None:
        if sys.version_info < (3, 14) and self._ended not in gc.callbacks:
            self._frozen = gc.get_freeze_count()
            gc.callbacks.append(self._ended)

    def stop(self) -> None:
        """All is as it was."""
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
            self._limit = self._room + 2 * self._frozen
            return
        self._frozen += len(gc.get_objects(generation=_FULL))
        gc.freeze()
        if self._frozen > self._limit:
            # 10 ns for each: not done each time.
            self._frozen = gc.get_freeze_count()
            if self._frozen > self._limit:
                # By the next full collection, which comes soon: from in here none can be made.
                gc.unfreeze()
                self._is_whole_next = True
