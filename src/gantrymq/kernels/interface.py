"""What `gantrymq_native` has, as types: the module itself is compiled, and may not be there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: As `native/src/python/mod.rs` counts it.
INTERFACE = 15

#: A `ConsumeQueue` of the store.
Q = TypeVar("Q")

#: An Arrow array's parts: validity (None where nothing is null), offsets of 32 bits, data, how many are null.
Column: TypeAlias = "tuple[Buffer | None, Buffer, Buffer, int]"
#: Those of an array that is handed over, and with which value it begins; no data where no value has any.
Array: TypeAlias = "tuple[Buffer | None, Buffer, Buffer | None, int]"


class Records(Protocol):
    """The records of a buffer; those before `bad_at` where that says that at this place no whole record begins.

    Nothing may change the buffer as long as this object is there.
    """

    @property
    def bad_at(self) -> int | None: ...
    @property
    def has_compressed(self) -> bool:
        """Some body is compressed."""
        ...

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
    def numbered_topics(self) -> tuple[list[str], Buffer]:
        """The different topics, and for each record which of them is its own (of 32 bits)."""
        ...

    def bodies(self, numbers: Buffer | None, /) -> Column:
        """As they are stored, of the records with these numbers (of 64 bits) or of all."""
        ...

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


class Room(Protocol):
    """Memory to be written to through its buffer, which becomes bytes without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def finish(self) -> bytes:
        """The bytes; nothing is written from now on."""
        ...


class IndexEntries(Protocol):
    """Entries for the key index: (hash, physical offset, store timestamp)."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> tuple[int, int, int]: ...
    def put(
        self, first: int, count: int, mapping: Buffer, hash_slots: int, number: int, begin_timestamp: int, /
    ) -> int:
        """Puts some into an index file, the first one as number `number`; returns how many slots had none before."""
        ...


class PlainSends(Protocol[Q]):
    """Sends that it was told the meaning of: all but opaque number, born time and properties of a header is a key."""

    def handle(
        self, data: bytes, log: object, now_ms: int, born_host: bytes, /
    ) -> tuple[bytes, int, int, list[Q], bool]:
        """Stores the messages of the frames that `data` begins with, as far as they are known, plain and have room.

        (answers, how many, how many bytes of `data` that was, queues that have got messages, whether `allow` may say
        what follows). `log` is a `CommitLog`: its and the queues' places are read at the begin and set at the end,
        `dirty` isn't. Raises what `log.write` raises; then nothing is stored.
        """
        ...

    def allow(
        self,
        opaque: int,
        born_timestamp: int,
        properties: bytes,
        topic: bytes,
        queue_id: int,
        sys_flag: int,
        flag: int,
        is_batch: bool,
        queue: Q,
        /,
    ) -> bool:
        """Says what the frame means that the last `handle` ended before, in whose header these values were read.

        The flag is that of a single message. False where its header can't be kept.
        """
        ...

    def revoke(self) -> None:
        """Forgets all that it was told."""
        ...

    def __len__(self) -> int:
        """How many headers it knows."""
        ...


class Native(Protocol):
    """The module."""

    INTERFACE: int

    def Records(self, buffer: Buffer, bodies: bool, crc: bool, properties: Sequence[str], /) -> Records:
        """With bodies, a check of their CRC32 and single properties, if these will be asked for: in the same pass."""
        ...

    def Room(self, size: int, /) -> Room:
        """So many bytes, which hold anything at first."""
        ...

    def PlainSends(
        self,
        odd: list[tuple[bytes, bytes | None]],
        odd_in_batch: bytes,
        own_properties: bytes,
        store_host: bytes,
        most: tuple[int, int],
        answer_host: bytes,
        binary_answer: tuple[bytes, bytes],
        json_answer: tuple[bytes, bytes, bytes, bytes, bytes],
        /,
    ) -> PlainSends[Q]:
        """One that knows nothing yet.

        Sends with any of the first bytes of `odd` among their properties that aren't followed by the second ones there
        end a call, those of one message without a unique key, those with a larger body than `most[0]`, batches of no or
        more than `most[1]` messages, or with `odd_in_batch` among the properties of one. Those of a single message get
        `own_properties` behind them. For the answers' parts see `SendResponses`.
        """
        ...

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
        `left_out[1]` have no entries. Raises ValueError if `end` is outside of `log` or of the physical offsets.
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

    def batch_bodies(
        self,
        bodies: Array,
        count: int,
        singles: list[tuple[str, Array]],
        maps: tuple[Array, Array, Array, list[str]] | None,
        id_prefix: str,
        first_row: int,
        key_head: str,
        first_key: int,
        sequence: tuple[bytes, int] | None,
        most: tuple[int, int, int],
        /,
    ) -> list[tuple[int, bytes, int]] | None:
        """(how many messages, the batch, checksum of all rows up to its last) of `count` rows, in order.

        None where a row is no message of a batch.

        A message's properties are those of `maps` (maps, names, values; names that are left out), of `singles` (name,
        values), GANTRY_ID (`id_prefix`-row), UNIQ_KEY (`key_head` and four digits), and with `sequence` (`target_of`,
        the checksum of all rows before) GANTRY_SEQ. `most` are bytes of a message's properties, messages of a batch,
        and bytes of its bodies and properties.
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

    def pulled_records(
        self, buffer: bytes, at: int, topic: bytes, queue_id: int, last: int, /
    ) -> list[tuple[int, int, int, bytes, bytes, bytes]]:
        """(size, queue offset, sysFlag, all before the body, body, properties) of the records from `at` on.

        It ends before what isn't a good record of that queue, behind the one before it and behind `last`.
        """
        ...

    def plain_batch(
        self,
        flags: list[int],
        bodies: list[bytes],
        properties: list[dict[str, str]],
        odd: list[str],
        key_head: str,
        first_key: int,
        /,
    ) -> tuple[bytes, str] | None:
        """Messages with these properties and a unique key each as a batch body, and the keys with commas between.

        The keys are `key_head` and four digits, which begin with `first_key`. None where a flag isn't one, a body no
        bytes or empty, a property isn't of strings, has a separator in it or one of the `odd` names.
        """
        ...

    def record_slices(
        self,
        units: bytes,
        queue_offset: int,
        log: Buffer,
        end: int,
        base: int,
        most: int,
        most_bytes: int,
        /,
    ) -> tuple[int, int, list[bytes | tuple[int, int]]]:
        """(how many, their bytes, pieces) of the records that the first units point to, which are those of a queue from
        `queue_offset` on: at most `most`, with `most_bytes` together, before `end` in the log.

        `base` is the log's physical offset. A piece is (start, end) in the log, or a copy of several records that lie
        apart. From a unit on that points to no such record nothing is there.
        """
        ...

    def units_with(self, units: bytes, codes: list[int], most: int, /) -> tuple[list[int], bytes]:
        """The numbers of the first `most` units that have one of these tags codes, and these units side by side."""
        ...
