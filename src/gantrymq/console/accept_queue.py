"""The queue of accepted sockets that have no HTTP connection yet, fair to addresses.

A connection costs more time than an accepted socket. If one address opens connections faster than the console can
serve them, browsers of other addresses don't wait for it.
"""

from __future__ import annotations

from gantrymq.console.connections import MAX_PER_ADDRESS
from gantrymq.console.fair_queue import FairQueue
from gantrymq.system.network import Socket


class AcceptQueue(FairQueue[Socket]):
    """Sockets by source, which take turns. Each source has MAX_PER_ADDRESS of them at most."""

    def add(self, item: Socket, source: str) -> None:
        """Closes the oldest socket of the source if it has too many."""
        super().add(item, source)
        if self.count_of(source) > MAX_PER_ADDRESS:
            self.take_of(source).close()
