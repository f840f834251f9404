"""The epochs of a log in controller mode: which master wrote which part (ha/autoswitch/EpochFileCache).

When the controller elects a master, its log gets a new epoch that begins at the current end of the log. If two logs
have an epoch with the same number and start, they are equal up to the point where this epoch ends first.
Source of the file format: utils/CheckpointFile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple
from zlib import crc32

from gantrymq.errors import StoreError


class Epoch(NamedTuple):
    """One epoch. `start_offset` is the physical offset of its first byte."""

    number: int
    start_offset: int


class Epochs:
    """The epochs of one log, oldest first."""

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        self._epochs = list(epochs)

    def all(self) -> tuple[Epoch, ...]:
        return tuple(self._epochs)

    @property
    def last(self) -> Epoch | None:
        return self._epochs[-1] if self._epochs else None

    def append(self, epoch: Epoch) -> bool:
        """Begins an epoch. Returns false if it is not newer than the last one.

        Earlier epochs without data are dropped. Java instead keeps such an epoch and drops the new one. Java's master
        then writes under an epoch number that another master may also have used.
        """
        last = self.last
        if last is not None and epoch.number <= last.number:
            return False
        self.truncate_from(epoch.start_offset)
        self._epochs.append(epoch)
        return True

    def put_back(self, before: Iterable[Epoch]) -> None:
        """Restores the epochs from a former result of `all`."""
        self._epochs = list(before)

    def at(self, offset: int) -> tuple[Epoch, int | None] | None:
        """Returns the epoch of an offset and the start of the next epoch, or None before the first epoch."""
        found = None
        for number, epoch in enumerate(self._epochs):
            if epoch.start_offset > offset:
                break
            after = self._epochs[number + 1].start_offset if number + 1 < len(self._epochs) else None
            found = epoch, after
        return found

    def consistent_point(self, end: int, other: Epochs, other_end: int) -> int | None:
        """Returns the physical offset up to which two logs with these ends are equal; None if they share no epoch."""
        known = dict(other._with_ends(other_end))
        for epoch, own_end in reversed(self._with_ends(end)):
            if epoch in known:
                return min(own_end, known[epoch])
        return None

    def is_before(self, other: Epochs) -> bool:
        """Returns true if all epochs are older than the first one of the other log."""
        return bool(self._epochs and other._epochs) and self._epochs[-1].number < other._epochs[0].number

    def truncate_from(self, offset: int, known: Collection[Epoch] = ()) -> bool:
        """Drops the epochs from the log's end `offset` on, except those in `known`. Returns true if any are dropped."""
        before = self._epochs
        self._epochs = [epoch for epoch in before if epoch.start_offset < offset or epoch in known]
        return len(self._epochs) < len(before)

    def forget_before(self, offset: int) -> None:
        """Drops the epochs that end before `offset`, because the log begins there."""
        self._epochs = [epoch for epoch, end in self._with_ends(offset + 1) if end > offset]

    def encode(self) -> str:
        """Returns the content of the file epochFileCheckpoint."""
        lines = "".join(f"{epoch.number}-{epoch.start_offset}\n" for epoch in self._epochs)
        return f"{len(self._epochs)}\n{crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}"

    @classmethod
    def decode(cls, text: str) -> Epochs:
        """Parses the content of the file. Raises StoreError if it is damaged."""
        try:
            count, crc, *lines = text.splitlines()
            parts = [line.split("-") for line in lines]
            epochs = [Epoch(int(number), int(start)) for number, start in parts]
            # A stored CRC of 0 means that the CRC is not checked.
            computed = crc32("".join(f"{line}\n" for line in lines).encode()) & 0x7FFFFFFF
            if len(epochs) != int(count) or int(crc) not in (0, computed):
                raise ValueError("wrong count or CRC")
        except ValueError as e:
            raise StoreError(f"the file of epochs is damaged: {e}") from e
        return cls(epochs)

    def _with_ends(self, last_end: int) -> list[tuple[Epoch, int]]:
        starts = [epoch.start_offset for epoch in self._epochs[1:]]
        return list(zip(self._epochs, [*starts, last_end], strict=True)) if self._epochs else []
