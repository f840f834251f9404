"""Types of the compiled module `gantrymq_native`, which may not be installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Version of this interface, as in `native/src/python/mod.rs`.
INTERFACE = 20

#: A `ConsumeQueue` of the store.
Q = TypeVar("Q")

#: Parts of an Arrow array: validity (None without nulls), 32-bit offsets, data, number of nulls.
Column: TypeAlias = "tuple[Buffer | None, Buffer, Buffer, int]"
#: Parts of an array argument, and the index of its first value. Data is None if no value has any.
Array: TypeAlias = "tuple[Buffer | None, Buffer, Buffer | None, int]"


class Records(Protocol):
    """The records in a buffer. If `bad_at` is set, the records end at this position: no complete record starts there.

    The buffer must not change while this object exists.
    """

    @property
    def bad_at(self) -> int | None: ...
    @property
    def has_compressed(self) -> bool:
        """Whether any body is compressed."""
        ...

    def __len__(self) -> int: ...
    def ints(self, field: str, /) -> Buffer:
        """Returns queue_id, sys_flag or reconsume_times of each record."""
        ...

    def longs(self, field: str, /) -> Buffer:
        """Returns one value for each record.

        `field` is start (position in the buffer), queue_offset, physical_offset, born_timestamp or store_timestamp.
        """
        ...

    def wrong_crc(self) -> Buffer | None:
        """Returns one byte per record: 1 if its body does not match its CRC32. Returns None if all bodies match."""
        ...

    def topics(self) -> Column: ...
    def numbered_topics(self) -> tuple[list[str], Buffer]:
        """Returns the distinct topics, and for each record the 32-bit index of its topic."""
        ...

    def bodies(self, numbers: Buffer | None, /) -> Column:
        """Returns the stored bodies of the records with these 64-bit indexes, or of all records."""
        ...

    def inflated(self, numbers: Buffer, max_bytes: int, max_body: int, /) -> Column | None:
        """Decompresses the bodies in order, until `max_bytes` bytes are decompressed.

        Returns None if a body cannot be decompressed, or is larger than `max_body` bytes.
        """
        ...

    def property(self, name: str, /) -> Column: ...
    def properties(self) -> tuple[Buffer, Column, Column]:
        """Returns all properties: the index of each record's first one, the names, and the values."""
        ...

    def body_place(self, number: int, /) -> tuple[int, int]: ...
    def store_host_place(self, number: int, /) -> tuple[int, int]: ...


class ReceiveBuffer(Protocol):
    """Memory that callers fill through the buffer protocol. It becomes bytes without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def finish(self) -> bytes:
        """Returns the bytes. The buffer must not be written afterwards."""
        ...


class IndexEntries(Protocol):
    """Entries for the key index: (hash, physical offset, store timestamp)."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> tuple[int, int, int]: ...
    def put(
        self, first: int, count: int, mapping: Buffer, hash_slots: int, number: int, begin_timestamp: int, /
    ) -> int:
        """Writes entries into an index file. The first one gets number `number`. Returns how many slots were empty."""
        ...


class PlainSends(Protocol[Q]):
    """Fast path for sends with a known header: one that differs only in opaque number, born time and properties."""

    def handle(
        self, data: bytes, log: object, now_ms: int, born_host: bytes, /
    ) -> tuple[bytes, list[tuple[int, int]], int, list[Q], bool]:
        """Stores the messages of the frames in `data`. Stops at an unknown or special frame, or if the file is full.

        Returns (responses, number of frames by request code, number of their bytes, queues that received messages,
        whether `allow` may be called for the next frame). `log` is a `CommitLog`. The positions of the log and of the
        queues are read at the start and set at the end; `dirty` is not set. If `log.write` raises, its error is raised
        and nothing is stored.
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
        code: int,
        queue: Q,
        /,
    ) -> bool:
        """Registers the header of the frame at which the last `handle` stopped. The arguments are the header's values.

        `flag` is the flag of a single message. Returns false if the header cannot be stored.
        """
        ...

    def take_counts(self) -> list[tuple[bytes, bool, int, list[int]]]:
        """Returns the numbers of messages stored since the last call, by topic and by presence of the marked property.

        The other fields are the bytes of the records, and the number of messages by their mean size in a request.
        """
        ...

    def revoke(self) -> None:
        """Removes all registered headers and the counts. Call `take_counts` before."""
        ...

    def __len__(self) -> int: ...


class Native(Protocol):
    """The functions of the native module."""

    INTERFACE: int

    def Records(self, buffer: Buffer, bodies: bool, crc: bool, properties: Sequence[str], /) -> Records:
        """Reads records. If requested, it also prepares bodies, the check of their CRC32, and single properties."""
        ...

    def ReceiveBuffer(self, size: int, /) -> ReceiveBuffer:
        """Allocates `size` bytes, which are not initialised."""
        ...

    def PlainSends(
        self,
        odd: list[tuple[bytes, bytes | None]],
        odd_in_batch: bytes,
        own_properties: bytes,
        store_host: bytes,
        most: tuple[int, int, int],
        answer_host: bytes,
        binary_answer: tuple[bytes, bytes],
        json_answer: tuple[bytes, bytes, bytes, bytes, bytes],
        counting: tuple[bytes, list[int]],
        /,
    ) -> PlainSends[Q]:
        """Returns a fast path without registered headers.

        `handle` stops before a send that it cannot process:
        - Its properties contain the first bytes of an entry of `odd` that are not followed by the entry's second bytes.
        - It has a single message without a unique key.
        - Its body is larger than `most[0]`.
        - It is a batch without messages, or with more than `most[1]` messages.
        - It is a batch, and `odd_in_batch` is in the properties of a message.

        The registered headers take at most `most[2]` bytes of memory. Beyond that, the oldest ones are dropped.

        The fast path appends `own_properties` to the properties of a single message. `SendResponses` describes the
        parts of the responses. `counting` has the start of the marked property, and the upper bounds of the sizes of
        `take_counts`. Without bounds, nothing is counted.
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
        """Returns the index entries of the records from `at` to `end`, the last record's position, and the next one.

        `base` is the log's physical offset. The call stops before invalid data or a record with too many keys. It also
        stops after `records` records, `keys` keys or `property_bytes` bytes of properties. Records of the topic
        `left_out[0]` whose properties end with `left_out[1]` have no entries. Raises ValueError if `end` is outside of
        `log` or of the physical offsets.
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
        """Returns the records of at most `most` messages of a batch body, their tags codes, and the next position.

        The call stops before invalid data, and before a message with the bytes `special` in its properties. Offsets and
        store timestamps of the records are not set. Raises OverflowError for a number that is out of range.
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
        """Returns the joined records with their offsets set, their consume queue units, and their physical offsets.

        The offsets of the first record are given. A record has its store timestamp at `timestamp_at`.
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
        """Divides `count` rows into batches. Returns (number of messages, batch, checksum up to its last row) for each.

        Returns None if a row cannot be a message of a batch.

        Properties of a message:
        - those of `maps` (maps, names, values; excluded names)
        - those of `singles` (name, values)
        - GANTRY_ID: `id_prefix`-row
        - UNIQ_KEY: `key_head` and four digits
        - GANTRY_SEQ, with `sequence` (`target_of`, the checksum of all earlier rows)

        `most` limits the bytes of a message's properties, the messages of a batch, and the bytes of its bodies and
        properties.
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
        """Returns the units of at most `most` records from `at` to `end`, in the fields of `store.log_reader.Runs`.

        `base` is the log's physical offset. The call stops before:
        - an invalid record; with `needs_crc`, also one without a checksum of the whole record
        - a record whose queue offset is not the next one
        - a record whose topic is not text, or whose properties contain zeros
        - a record of the topic `left_out`
        """
        ...

    def pulled_records(
        self, buffer: bytes, at: int, topic: bytes, queue_id: int, last: int, /
    ) -> list[tuple[int, int, int, bytes, bytes, bytes]]:
        """Returns (size, queue offset, sysFlag, bytes before the body, body, properties) of each record from `at` on.

        The call stops before a record that is invalid or belongs to another queue. Each queue offset must be higher
        than the one before it (`last` for the first record). The call also stops before a record that breaks this rule.
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
        """Encodes messages as a batch body, each with a unique key. Returns the body, and the keys joined by commas.

        The keys are `key_head` and four digits, starting with `first_key`. Returns None if a flag or a body is invalid
        or a body is empty. It also returns None if a property is not a string, contains a separator or has one of the
        `odd` names.
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
        """Returns (number, size in bytes, pieces) of the records to which the first units of a queue point.

        The units start at `queue_offset`. The result has at most `most` records and `most_bytes` bytes, all of them
        before `end` in the log. `base` is the log's physical offset. A piece is (start, end) in the log, or a copy of
        several records that are not adjacent. The call stops at a unit that does not point to a valid record.
        """
        ...

    def plain_frame(
        self,
        before: bytes,
        after: bytes,
        opaque: int,
        born_timestamp: int,
        key_head: str,
        key_number: int,
        body: bytes,
        /,
    ) -> tuple[bytes, str]:
        """Returns the frame of a request to send one message without own properties, and the id of the message.

        `send_command.plain_frame` describes the arguments. Raises the errors of `send_frame`.
        """
        ...

    def send_frame(
        self, before: bytes, after: bytes, opaque: int, born_timestamp: int, properties: bytes, body: bytes, /
    ) -> bytes:
        """Returns the frame of a request to send one message. `send_command.send_frame` describes the arguments.

        Raises ValueError if the frame is too long, and OverflowError for a number that is out of range.
        """
        ...

    def send_responses(self, data: bytes, /) -> list[tuple[int, int, int, str, str | None, bytes, int]]:
        """Returns the fields of the responses to sends of one message with which `data` begins.

        These are (opaque number, queue id, queue offset, offset message id, transaction id, fields about traces,
        position of the next frame). The call stops before an incomplete frame, and before a response that reports an
        error, has a body, or has other fields than those of `SendResponses`. The caller must check the fields about
        traces, which can be any fields of up to 512 bytes.
        """
        ...

    def units_with(self, units: bytes, codes: list[int], most: int, /) -> tuple[list[int], bytes]:
        """Returns the indexes of the first `most` units with one of these tags codes, and these units joined."""
        ...
