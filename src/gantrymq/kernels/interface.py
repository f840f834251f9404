"""What `gantrymq_native` has, as types: the module itself is compiled, and may not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: As `native/src/python/mod.rs` counts it.
INTERFACE = 6

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


class IndexEntries(Protocol):
    """Entries for the key index: (hash, physical offset, store timestamp)."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> tuple[int, int, int]: ...
    def put(
        self, first: int, count: int, mapping: Buffer, hash_slots: int, number: int, begin_timestamp: int, /
    ) -> int:
        """Puts some into an index file, the first one as number `number`; returns how many slots had none before."""
        ...


class Native(Protocol):
    """The module."""

    INTERFACE: int

    def Records(self, buffer: bytes, /) -> Records: ...
    def index_entries(
        self,
        log: Buffer,
        at: int,
        end: int,
        base: int,
        records: int,
        keys: int,
        property_bytes: int,
        left_out: tuple[bytes, bytes],
        /,
    ) -> tuple[IndexEntries, int, int]:
        """The entries of the records from `at` to `end`, where the last of them stands, and where the next would.

        `base` is the log's physical offset. It ends before what is no record, and after so many records, keys or bytes
        of properties; before a record with too many keys. Records of the topic `left_out[0]` whose properties end with
        `left_out[1]` have no entries.
        """
        ...

    def batch_records(
        self,
        batch: bytes,
        at: int,
        most: int,
        special: bytes,
        queue_id: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        reconsume_times: int,
        topic: bytes,
        /,
    ) -> tuple[list[bytes], list[int], int]:
        """The records of `most` messages at most of a batch body, their tags' codes, and where the next one begins.

        It ends before what is no message, and before one with the bytes `special` in its properties. The records lack
        their places and store timestamps. Raises OverflowError for a number that doesn't fit.
        """
        ...

    def placed_records(
        self,
        records: list[bytes],
        tags_codes: list[int],
        queue_offset: int,
        physical_offset: int,
        store_timestamp: int,
        timestamp_at: int,
        /,
    ) -> tuple[Buffer, bytes, list[int]]:
        """The records side by side with their places in, their units for the consume queue, their physical offsets.

        The first one's places are given; a record has its store timestamp at `timestamp_at`.
        """
        ...

    def unit_runs(
        self,
        log: Buffer,
        at: int,
        end: int,
        base: int,
        most: int,
        needs_crc: bool,
        left_out: bytes,
        /,
    ) -> tuple[list[tuple[bytes, int, int, bytes]], int, int, int, int]:
        """The units of `most` records at most from `at` to `end`: see `store.log_reader.Runs`, whose fields these are.

        `base` is the log's physical offset. It ends before what is no record or not a good one (with `needs_crc`,
        without a checksum over all of it, too), before one whose queue offset doesn't follow, whose topic is no text,
        that has zeros among its properties, or is of the topic `left_out`.
        """
        ...
