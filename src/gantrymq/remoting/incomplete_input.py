"""IncompleteInputs: one limit and one deadline for everything that peers began to send and did not complete.

TLS handshakes, connection prefaces, header blocks and frames cost memory until they are complete, and a peer needs only
a few bytes to begin one. Each peer has one entry here. When all entries together exceed `max_bytes`, the oldest peers
are disconnected first: an honest peer completes its input within milliseconds, so the oldest entries are attackers'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

#: Of all peers together.
MAX_BYTES = 64 * 1024 * 1024
#: From the beginning of an input to its end, s.
DEADLINE_S = 10.0


class Peer(Protocol):
    """Sends an input that is incomplete."""

    @property
    def is_paused(self) -> bool:
        """The input is incomplete because this side doesn't read: the deadline doesn't count."""

    def input_refused(self, reason: str) -> None:
        """The limit or the deadline is exceeded: the peer is disconnected."""


@dataclass(slots=True)
class _Input:
    size: int
    deadline: float


class IncompleteInputs:
    """Of one server; a plain table that gets the time."""

    def __init__(self, max_bytes: int = MAX_BYTES, deadline_s: float = DEADLINE_S) -> None:
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self.bytes = 0
        #: The oldest first.
        self._inputs: dict[Peer, _Input] = {}

    def __len__(self) -> int:
        return len(self._inputs)

    def begin(self, peer: Peer, size: int, now: float) -> None:
        """The peer began an input that takes `size` bytes so far. Replaces its former entry."""
        self.complete(peer)
        self._inputs[peer] = _Input(size, now + self._deadline_s)
        self.bytes += size
        self._make_room()

    def resize(self, peer: Peer, size: int) -> None:
        """The input takes `size` bytes. Its age and deadline stay."""
        entry = self._inputs.get(peer)
        if entry is not None:
            self.bytes += size - entry.size
            entry.size = size
            self._make_room()

    def lift_deadline(self, peer: Peer) -> None:
        """The entry counts for the limit only."""
        entry = self._inputs.get(peer)
        if entry is not None:
            entry.deadline = math.inf

    def complete(self, peer: Peer) -> None:
        """The input is complete, or its peer is gone. A second call does no harm."""
        entry = self._inputs.pop(peer, None)
        if entry is not None:
            self.bytes -= entry.size

    def close_expired(self, now: float) -> None:
        """Disconnects peers whose deadline has passed."""
        for peer in [peer for peer, entry in self._inputs.items() if entry.deadline < now and not peer.is_paused]:
            self.complete(peer)
            peer.input_refused(f"its input is incomplete after {self._deadline_s:g} s")

    def _make_room(self) -> None:
        while self.bytes > self._max_bytes and len(self._inputs) > 1:
            oldest = next(iter(self._inputs))
            self.complete(oldest)
            oldest.input_refused(f"all peers together have more than {self._max_bytes} bytes of incomplete input")
