"""Puts records into the log and units into the queues (`CommitLog.asyncPutMessage`).

Java writes the units in a thread of its own, some milliseconds later; here `append` writes both, so that a message can
be pulled as soon as it is acknowledged.
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
#: A NamedTuple's own constructor costs twice as much.
_new = tuple.__new__


class PutResult(NamedTuple):
    """Where a message went. A PREPARED or ROLLBACK record is in no queue; its queue offset is 0."""

    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int


class Sent(NamedTuple):
    """What was stored of a read: the answers, how many, how many bytes it was, the queues, whether it asks for more."""

    answers: bytes
    number: int
    dealt: int
    queues: list[ConsumeQueue]
    is_asking: bool


class MessageWriter:
    """Writes to the end of `log`. `store_host` is the broker's address as in a record; `with_crc`: see `record_crc`.

    `dirty` gets the queues that were not in it.
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
        """Stores a message at the end of `queue`. `born_host` from `encode_host`; sys_flag's _V6 bits are set here.

        Raises StoreFull, StoreBusy, StoreError (too large for a file, store closed or failing), RecordError (a field
        out of range); then nothing was stored.
        """
        # The hot path. What can fail comes before anything that a reader sees, and the log's position, which says
        # that unit and record are whole, comes last.
        log = self._log
        if queue.position >= queue.limit:
            queue.make_room()
        host_bits = self._hosts_v4 if len(born_host) == HOST_SIZE_V4 else self._hosts_v6
        # PREPARED and ROLLBACK have this bit, COMMIT hasn't.
        in_queue = not sys_flag & TRANSACTION_PREPARED
        queue_offset = queue.max_offset if in_queue else 0
        if self._with_crc:
            properties = reserve_crc(properties)
        if len(body) >= LARGE and log.position + len(body) > log.limit:
            # Who has to wait isn't encoded first, each time that he is tried.
            log.make_room(len(body))
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
                    log.make_room(size)
                    if log.position != physical_offset:
                        physical_offset = log.position
                        continue
                unit_at = queue.position
                if in_queue:
                    _pack_unit_into(queue.mapping, unit_at, physical_offset, size, tags_code)  # type: ignore[arg-type]
            except StructError as e:
                raise RecordError(f"a message for {queue.topic} can't be stored: {e}") from e
            break
        if size < LARGE:
            start = physical_offset - log.base
            log.mapping[start : start + size] = record  # type: ignore[index]
        else:
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
        """Has native code store the messages of the frames that `data` begins with, as far as it may.

        It does as `append` does: it ends where that would make room first, and sets the log's position at last. Raises
        StoreFull, StoreError; then nothing was stored.
        """
        answers, count, dealt, queues, is_asking = sends.handle(data, self._log, int(time() * 1000), born_host)
        for queue in queues:
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
        return Sent(answers, count, dealt, queues, is_asking)

    def begin_batch(
        self, queue: ConsumeQueue, sys_flag: int, born_timestamp: int, born_host: bytes, reconsume_times: int
    ) -> RecordBatch:
        """An empty batch for `append_batch`."""
        with_crc = self._with_crc
        return RecordBatch(
            queue, sys_flag, born_timestamp, born_host, self._store_host, reconsume_times, with_crc=with_crc
        )

    def append_batch(self, batch: RecordBatch) -> list[int]:
        """Stores all of a batch, one message behind the other in its queue; returns their physical offsets.

        Raises as `append` does; then nothing is stored. See `record_batch.append_batch` for what a crash leaves.
        """
        return append_batch(self._log, self._dirty, batch)
