"""Files and directories of a simulated disk: the view of programs, and the durable state.

`sync` makes the view durable. If a process is killed, nothing is lost. After a power failure, each unsynced page has
the old bytes, the new bytes, or sectors of both (`Inode.lose`). Of the unsynced changes to a directory, only the first
few remain.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

PAGE = 4096
SECTOR = 512
_ZERO = bytes(PAGE)


class SharedMapping(mmap.mmap):
    """The mapping that all users of a file share. Closing it has no effect on the other users."""

    def close(self) -> None:
        """Does nothing."""


class Inode:
    """A file. Its bytes are in `pages` (only non-zero pages) or, if it is mapped, in `mapping`."""

    __slots__ = (
        "_dirty",
        "durable",
        "durable_size",
        "lock",
        "mapping",
        "mode",
        "mtime",
        "number",
        "pages",
        "reserved",
        "size",
    )

    def __init__(self, number: int, mode: int) -> None:
        self.number = number
        self.mode = mode
        self.size = 0
        #: Number of bytes with allocated blocks.
        self.reserved = 0
        self.pages: dict[int, bytearray] = {}
        self.mapping: SharedMapping | None = None
        #: The durable pages and size.
        self.durable: dict[int, bytes] = {}
        self.durable_size = 0
        self.mtime = 0.0
        #: The descriptor that has the lock.
        self.lock: int | None = None
        #: Pages written since the last sync. Not complete for a mapped file, because programs write to the mapping
        #: directly.
        self._dirty: set[int] = set()

    def read(self, begin: int, end: int) -> bytes:
        end = min(end, self.size)
        if self.mapping is not None:
            return self.mapping[begin:end]
        parts = []
        while begin < end:
            number, at = divmod(begin, PAGE)
            until = min(end - begin + at, PAGE)
            page = self.pages.get(number)
            parts.append(bytes(until - at) if page is None else bytes(page[at:until]))
            begin += until - at
        return b"".join(parts)

    def write(self, begin: int, data: bytes) -> None:
        """Writes within the size of the file."""
        if self.mapping is not None:
            self.mapping[begin : begin + len(data)] = data
            return
        done = 0
        while done < len(data):
            number, at = divmod(begin + done, PAGE)
            piece = data[done : done + PAGE - at]
            page = self.pages.get(number)
            if page is None:
                page = self.pages[number] = bytearray(PAGE)
            page[at : at + len(piece)] = piece
            self._dirty.add(number)
            done += len(piece)

    def resize(self, size: int) -> None:
        self.reserved = min(self.reserved, size)
        if self.mapping is not None:
            if size > len(self.mapping):
                raise OSError(errno.EINVAL, "a simulated file that is mapped can't grow")
            self.mapping[size : self.size] = bytes(max(self.size - size, 0))
        elif size < self.size:
            first = -(-size // PAGE)
            for number in [number for number in self.pages if number >= first]:
                del self.pages[number]
                self._dirty.add(number)
            if size % PAGE and (page := self.pages.get(size // PAGE)) is not None:
                page[size % PAGE :] = bytes(PAGE - size % PAGE)
                self._dirty.add(size // PAGE)
        self.size = size

    def map(self, size: int) -> mmap.mmap:
        """Returns the mapping that all users share."""
        if self.mapping is None:
            mapping = SharedMapping(-1, size)
            for number, page in self.pages.items():
                mapping[number * PAGE : (number + 1) * PAGE] = bytes(page[: size - number * PAGE])
            self.mapping = mapping
            self.pages.clear()
        if len(self.mapping) != size:
            raise OSError(errno.EINVAL, f"a simulated file is mapped with {len(self.mapping)} bytes, not {size}")
        return self.mapping

    def sync(self) -> None:
        """Makes the view of programs durable."""
        self.durable.update(self._changed())
        self.durable_size = self.size
        self._dirty.clear()

    def lose(self, chance: Random) -> None:
        """Applies a power failure: each unsynced page becomes old, new or a mixture of both."""
        changed = self._changed()
        if chance.random() < 0.5:
            self.durable_size = self.size
        for number, new in changed.items():
            old = self.durable.get(number, _ZERO)
            kind = chance.random()
            if kind < 0.4:
                self.durable[number] = new
            elif kind > 0.8:
                self.durable[number] = b"".join(
                    (new if chance.random() < 0.5 else old)[sector : sector + SECTOR]
                    for sector in range(0, PAGE, SECTOR)
                )
        self.size = self.durable_size
        self.mapping = None
        self.pages = {number: bytearray(page) for number, page in self.durable.items() if number * PAGE < self.size}
        self._dirty.clear()
        self.lock = None

    def __deepcopy__(self, memo: dict[int, object]) -> Inode:
        """Returns an unlocked copy with the same bytes, durable and not."""
        other, changed = Inode(self.number, self.mode), self._changed()
        other.size, other.reserved, other.mtime = self.size, self.reserved, self.mtime
        other.durable, other.durable_size = dict(self.durable), self.durable_size
        other.pages = {number: bytearray(page) for number, page in (self.durable | changed).items()}
        other._dirty = set(changed)
        return other

    def has_data(self, number: int) -> bool:
        """Returns true if the page is not a hole."""
        if self.mapping is not None:
            return any(self.mapping[number * PAGE : (number + 1) * PAGE])
        return number in self.pages and any(self.pages[number])

    def data_pages(self) -> list[int]:
        """Returns the numbers of all pages that are not holes."""
        numbers = range(-(-self.size // PAGE)) if self.mapping is not None else sorted(self.pages)
        return [number for number in numbers if self.has_data(number)]

    def flip(self, position: int, bit: int) -> None:
        byte = self.read(position, position + 1)[0]
        self.write(position, bytes((byte ^ 1 << bit,)))
        number, at = divmod(position, PAGE)
        durable = bytearray(self.durable.get(number, _ZERO))
        durable[at] ^= 1 << bit
        self.durable[number] = bytes(durable)

    def _changed(self) -> dict[int, bytes]:
        """Returns the pages whose durable bytes differ, as programs see them."""
        if self.mapping is not None:
            numbers: Iterable[int] = range(-(-self.size // PAGE))
        else:
            numbers = sorted(self._dirty)
        changed = {}
        for number in numbers:
            if self.mapping is not None:
                page = self.mapping[number * PAGE : (number + 1) * PAGE].ljust(PAGE, b"\0")
            else:
                page = bytes(self.pages.get(number, _ZERO))
            if page != self.durable.get(number, _ZERO):
                changed[number] = page
        return changed


@dataclass
class Directory:
    """A directory.

    `entries` is the view of programs, `durable` the state on the disk. `changes` are the unsynced changes as (name,
    new entry or None).
    """

    number: int
    mtime: float = 0.0
    entries: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    changes: list[tuple[str, Inode | Directory | None]] = field(default_factory=list)
    #: The descriptor that has the lock.
    lock: int | None = None

    def set(self, name: str, entry: Inode | Directory | None) -> None:
        if entry is None:
            del self.entries[name]
        else:
            self.entries[name] = entry
        self.changes.append((name, entry))

    def sync(self, count: int | None = None) -> None:
        """Makes the first `count` changes durable, or all of them."""
        count = len(self.changes) if count is None else count
        for name, entry in self.changes[:count]:
            if entry is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = entry
        del self.changes[:count]
