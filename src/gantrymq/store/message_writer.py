"""Writes records to the log and units to the queues (`CommitLog.asyncPutMessage`).

Java writes the units some milliseconds later, in another thread. `append` writes both, so that a message can be pulled
as soon as it is acknowledged.
"""

from __future__ import annotations

from collections import deque
from struct import error as StructError
from typing import NamedTuple

from gantrymq.errors import RecordError, StoreError
from gantrymq.kernels.interface import PlainSends
from gantrymq.protocol.record import HOST_SIZE_V4, encode_record
from gantrymq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED
from gantrymq.store.commit_log import LARGE, CommitLog
from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import NO_UNIT, UNIT, ConsumeQueue
from gantrymq.store.record_batch import RecordBatch, append_batch
from gantrymq.store.record_crc import fill_crc, reserve_crc
from gantrymq.system.clock import time

_NOT_HOSTS_V6 = ~(BORN_HOST_V6 | STORE_HOST_V6)

_pack_unit_into = UNIT.pack_into
#: The constructor of a NamedTuple costs twice as much.
_new = tuple.__new__


class PutResult(NamedTuple):
    """The position of a stored message. A PREPARED or ROLLBACK record is in no queue; its queue offset is 0."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int


class Sent(NamedTuple):
    """The result of `append_sends`.

    The fields are: the encoded responses, the number of requests by code and of all, the number of bytes processed, the
    modified queues, and whether `PlainSends.allow` may register the next header.
    """

    answers: bytes
    requests: list[tuple[int, int]]
    number: int
    dealt: int
    queues: list[ConsumeQueue]
    is_asking: bool


class MessageWriter:
    """Writes to the end of `log`. `store_host` is the broker's address in the format of a record.

    With `with_crc`, each record gets a checksum; see `record_crc`. Each queue that is written to is added to `dirty`,
    unless it is in there already.
    """

    def __init__(self, log: CommitLog, dirty: deque[ConsumeQueue], store_host: bytes, *, with_crc: bool) -> None:
        self._log = log
        self._dirty = dirty
        self._store_host = store_host
        self._hosts_v4 = 0 if len(store_host) == HOST_SIZE_V4 else STORE_HOST_V6
        self._hosts_v6 = self._hosts_v4 | BORN_HOST_V6
        self._with_crc = with_crc

    def append(
        self,
        queue: ConsumeQueue,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        body: bytes,
        properties: bytes,
        tags_code: int,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Stores a message at the end of `queue`.

        `born_host` is a result of `encode_host`. The _V6 bits of `sys_flag` are set here. If an exception is raised,
        nothing is stored.

        Raises:
            StoreFull: The disk is full.
            StoreBusy: A file is being preallocated.
            StoreError: The message is too large for a file, or the store is closed or failing.
            RecordError: A field is out of range.
        """
        # The hot path. Steps that can fail come before anything that a reader sees. The log's position, which makes
        # record and unit valid, is set last.
        log = self._log
        if queue.position >= queue.limit:
            queue.preallocate()
        host_bits = self._hosts_v4 if len(born_host) == HOST_SIZE_V4 else self._hosts_v6
        # PREPARED and ROLLBACK contain this bit, COMMIT does not.
        in_queue = not sys_flag & TRANSACTION_PREPARED
        queue_offset = queue.max_offset if in_queue else 0
        if self._with_crc:
            properties = reserve_crc(properties)
        if len(body) >= LARGE and log.position + len(body) > log.limit:
            # A large message that must wait for space is not encoded on each attempt.
            log.preallocate(len(body))
        physical_offset = log.position
        now = int(time() * 1000)
        while True:
            try:
                record = encode_record(
                    queue.queue_id,
                    flag,
                    queue_offset,
                    physical_offset,
                    sys_flag & _NOT_HOSTS_V6 | host_bits,
                    born_timestamp,
                    born_host,
                    now,
                    self._store_host,
                    reconsume_times,
                    prepared_transaction_offset,
                    body,
                    queue.topic_bytes,
                    properties,
                )
                if self._with_crc:
                    record = fill_crc(record)
                size = len(record)
                end = physical_offset + size
                if end > log.limit:
                    log.preallocate(size)
                    if log.position != physical_offset:
                        physical_offset = log.position
                        continue
                unit_at = queue.position
                if in_queue:
                    _pack_unit_into(queue.mapping, unit_at, physical_offset, size, tags_code)  # type: ignore[arg-type]
            except StructError as e:
                raise RecordError(f"a message for {queue.topic} can't be stored: {e}") from e
            break
        try:
            log.write(record)
        except StoreError:
            if in_queue:
                queue.write_next(NO_UNIT)
            raise
        if in_queue:
            queue.position = unit_at + UNIT_SIZE
            queue.max_offset = queue_offset + 1
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
        log.position = end
        log.store_timestamp = now
        return _new(PutResult, (queue_offset, physical_offset, size, now))

    def append_sends(self, sends: PlainSends[ConsumeQueue], data: bytes, born_host: bytes) -> Sent:
        """Stores the messages of the leading frames of `data` with native code.

        It follows the same rules as `append`: it stops at the first message that needs preallocation, and sets the
        log's position last. Raises StoreFull or StoreError; nothing is stored then.
        """
        answers, requests, dealt, queues, is_asking = sends.handle(data, self._log, int(time() * 1000), born_host)
        for queue in queues:
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
        # Nearly always, all requests have the same code.
        number = requests[0][1] if len(requests) == 1 else sum(count for _, count in requests)
        return Sent(answers, requests, number, dealt, queues, is_asking)

    def begin_batch(
        self, queue: ConsumeQueue, sys_flag: int, born_timestamp: int, born_host: bytes, reconsume_times: int
    ) -> RecordBatch:
        """Returns an empty batch for `append_batch`."""
        with_crc = self._with_crc
        return RecordBatch(
            queue, sys_flag, born_timestamp, born_host, self._store_host, reconsume_times, with_crc=with_crc
        )

    def append_batch(self, batch: RecordBatch) -> list[int]:
        """Stores all messages of a batch at successive queue offsets. Returns their physical offsets.

        Raises as `append` does; nothing is stored then. `record_batch.append_batch` describes the state after a crash.
        """
        return append_batch(self._log, self._dirty, batch)
