"""Epochs: which master wrote which part of the log, in controller mode (ha/autoswitch/EpochFileCache).

Each time a controller makes a broker master, its log gets an epoch, which begins where the log ends then. Two logs that
have an epoch with the same number and beginning are the same up to where the earlier of the two ends in it.
Source of the file: utils/CheckpointFile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import StoreError


class Epoch(NamedTuple):
    """`start_offset` is the physical offset of its first byte."""

    number: int
    start_offset: int


class Epochs:
    """Those of one log, the oldest first."""

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        self._epochs = list(epochs)

    def all(self) -> tuple[Epoch, ...]:
        return tuple(self._epochs)

    @property
    def last(self) -> Epoch | None:
        return self._epochs[-1] if self._epochs else None

    def append(self, epoch: Epoch) -> bool:
        """Begins an epoch; False where it is no later one.

        Those before it in which nothing was written are dropped. Java keeps them, and not the new one: what its master
        writes then has the number of an epoch in which another has written.
        """
        last = self.last
        if last is not None and epoch.number <= last.number:
            return False
        self.truncate_from(epoch.start_offset)
        self._epochs.append(epoch)
        return True

    def put_back(self, before: Iterable[Epoch]) -> None:
        """They are what they were."""
        self._epochs = list(before)

    def at(self, offset: int) -> tuple[Epoch, int | None] | None:
        """The epoch that has an offset, and where the next one begins; None before the first."""
        found = None
        for number, epoch in enumerate(self._epochs):
            if epoch.start_offset > offset:
                break
            after = self._epochs[number + 1].start_offset if number + 1 < len(self._epochs) else None
            found = epoch, after
        return found

    def consistent_point(self, end: int, other: Epochs, other_end: int) -> int | None:
        """Up to which physical offset two logs with these ends are the same; None when they have no epoch in common."""
        known = dict(other._with_ends(other_end))
        for epoch, own_end in reversed(self._with_ends(end)):
            if epoch in known:
                return min(own_end, known[epoch])
        return None

    def is_before(self, other: Epochs) -> bool:
        """All of these are older than the other log's first one."""
        return bool(self._epochs and other._epochs) and self._epochs[-1].number < other._epochs[0].number

    def truncate_from(self, offset: int, known: Collection[Epoch] = ()) -> bool:
        """The log ends there: epochs that begin there or behind it never were, but for those known to others.

        Whether there were any.
        """
        before = self._epochs
        self._epochs = [epoch for epoch in before if epoch.start_offset < offset or epoch in known]
        return len(self._epochs) < len(before)

    def forget_before(self, offset: int) -> None:
        """The log begins there: epochs that ended before are of no use."""
        self._epochs = [epoch for epoch, end in self._with_ends(offset + 1) if end > offset]

    def encode(self) -> str:
        """The text of epochFileCheckpoint."""
        lines = "".join(f"{epoch.number}-{epoch.start_offset}\n" for epoch in self._epochs)
        return f"{len(self._epochs)}\n{crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}"

    @classmethod
    def decode(cls, text: str) -> Epochs:
        """Raises StoreError for a damaged file."""
        try:
            count, crc, *lines = text.splitlines()
            parts = [line.split("-") for line in lines]
            epochs = [Epoch(int(number), int(start)) for number, start in parts]
            # 0: not to be checked.
            computed = crc32("".join(f"{line}\n" for line in lines).encode()) & 0x7FFFFFFF
            if len(epochs) != int(count) or int(crc) not in (0, computed):
                raise ValueError("wrong count or CRC")
        except ValueError as e:
            raise StoreError(f"the file of epochs is damaged: {e}") from e
        return cls(epochs)

    def _with_ends(self, last_end: int) -> list[tuple[Epoch, int]]:
        starts = [epoch.start_offset for epoch in self._epochs[1:]]
        return list(zip(self._epochs, [*starts, last_end], strict=True)) if self._epochs else []
