"""Limits the total size and the age of the incomplete input of all peers.

TLS handshakes, connection prefaces, header blocks and frames use memory until they are complete. A peer needs only a
few bytes to begin one. Each peer has one entry here. If all entries together exceed `max_bytes`, the oldest peers are
disconnected first. An honest peer completes its input within milliseconds, so old entries point to an attack.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from gantrymq.limits import INCOMPLETE_INPUTS_BYTES

#: Longest time from the start of an input to its end, in seconds.
DEADLINE_S = 10.0


class Peer(Protocol):
    """A peer with an incomplete input."""

    @property
    def is_paused(self) -> bool:
        """True if the input is incomplete because this side does not read. In this case there is no deadline."""

    def input_refused(self, reason: str) -> None:
        """Disconnects the peer. Called when the limit or the deadline is exceeded."""


@dataclass(slots=True)
class _Input:
    size: int
    deadline: float


class IncompleteInputs:
    """Limits the size and the age of partly received inputs of one server. Callers pass the current time."""

    def __init__(self, max_bytes: int = INCOMPLETE_INPUTS_BYTES, deadline_s: float = DEADLINE_S) -> None:
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self.bytes = 0
        #: Oldest first.
        self._inputs: OrderedDict[Peer, _Input] = OrderedDict()

    def __len__(self) -> int:
        return len(self._inputs)

    def begin(self, peer: Peer, size: int, now: float) -> None:
        """Adds an input of which `size` bytes have arrived. Replaces the peer's previous entry."""
        self.complete(peer)
        self._inputs[peer] = _Input(size, now + self._deadline_s)
        self.bytes += size
        self._free_bytes()

    def resize(self, peer: Peer, size: int) -> None:
        """Sets the current size of the input. Its age and deadline do not change."""
        entry = self._inputs.get(peer)
        if entry is not None:
            self.bytes += size - entry.size
            entry.size = size
            self._free_bytes()

    def lift_deadline(self, peer: Peer) -> None:
        """Removes the deadline of the input. It still counts towards the limit."""
        entry = self._inputs.get(peer)
        if entry is not None:
            entry.deadline = math.inf

    def complete(self, peer: Peer) -> None:
        """Removes the input because it is complete or its peer is disconnected. Further calls have no effect."""
        entry = self._inputs.pop(peer, None)
        if entry is not None:
            self.bytes -= entry.size

    def close_expired(self, now: float) -> None:
        """Disconnects the peers whose deadline has passed."""
        for peer in [peer for peer, entry in self._inputs.items() if entry.deadline < now and not peer.is_paused]:
            self.complete(peer)
            peer.input_refused(f"its input is incomplete after {self._deadline_s:g} s")

    def _free_bytes(self) -> None:
        while self.bytes > self._max_bytes and len(self._inputs) > 1:
            oldest = next(iter(self._inputs))
            self.complete(oldest)
            oldest.input_refused(f"all peers together have more than {self._max_bytes} bytes of incomplete input")
