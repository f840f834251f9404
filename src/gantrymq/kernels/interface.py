"""What `gantrymq_native` has, as types: the module itself is compiled, and may not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: As `native/src/python/mod.rs` counts it.
INTERFACE = 2

#: An Arrow array's parts: validity (None where nothing is null), offsets of 32 bits, data, how many are null.
Column: TypeAlias = "tuple[Buffer | None, Buffer, Buffer, int]"


class Records(Protocol):
    """The records of a buffer. There are none when `bad_at` says that at this place no whole record begins."""

    @property
    def bad_at(self) -> int | None: ...
    def __len__(self) -> int: ...
    def ints(self, field: str, /) -> Buffer:
        """queue_id, sys_flag or reconsume_times."""
        ...

    def longs(self, field: str, /) -> Buffer:
        """start (the place in the buffer), queue_offset, physical_offset, born_timestamp or store_timestamp."""
        ...

    def wrong_crc(self) -> Buffer | None:
        """A byte for each record, 1 where the body has another CRC32 than the record says; None if none has."""
        ...

    def topics(self) -> Column: ...
    def bodies(self) -> Column: ...
    def inflated(self, numbers: Buffer, max_bytes: int, max_body: int, /) -> Column | None:
        """The plain bodies of the first so many of the records, until they have `max_bytes`.

        None where one doesn't inflate, or to more than `max_body` bytes.
        """
        ...

    def property(self, name: str, /) -> Column: ...
    def properties(self) -> tuple[Buffer, Column, Column]:
        """Where each record's begin among all, the names, the values."""
        ...

    def body_place(self, number: int, /) -> tuple[int, int]: ...
    def store_host_place(self, number: int, /) -> tuple[int, int]: ...


class Native(Protocol):
    """The module."""

    INTERFACE: int

    def Records(self, buffer: bytes, /) -> Records: ...
