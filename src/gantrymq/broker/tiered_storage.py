"""TieredStorage: copies full log files into the broker's tier, and deletes expired ones there (`TieredMessageStore`).

Java copies each message into a file of its queue. Here, whole files of the log are copied. One job does one step after
the other: it reads the catalog, copies the next file, deletes expired segments. Everything that blocks runs in a thread
of its own. The units of the queues are read on the event loop, in short slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import StoreError
from gantrymq.logs import peer_log
from gantrymq.store.message_store import ClosedFile
from gantrymq.system.clock import monotonic, now_ms
from gantrymq.tier.catalog import TierCatalog
from gantrymq.tier.pool import TierThreads
from gantrymq.tier.segment import INDEX, QUEUES, VERSION, Manifest, object_name
from gantrymq.tier.tier import Tier
from gantrymq.tier.uploader import (
    PiecewiseObject,
    UnitRanges,
    copy_log_file,
    delete_remains,
    delete_segment,
    finish_segment,
    load_catalog,
)

T = TypeVar("T")

log = peer_log(__name__)

#: Interval of the check for full log files and expired segments, in seconds.
_LOOK_S = 10.0
#: Interval at which a slave reads which segments its master has copied, in seconds.
_SLAVE_LOOK_S = 60.0
#: Pause after an error, in seconds.
_AFTER_ERROR_S = 10.0
#: Length of one slice on the event loop, in seconds.
_SLICE_S = 0.005
#: Units and index entries are written in pieces of at least this size, in bytes.
_PIECE_BYTES = 1 << 20
#: Longest wait for an interrupted upload, in seconds. The broker may be about to stop.
_DISCARD_S = 5.0
_HOUR_MS = 3_600_000


class TieredStorage(Feature):
    """The background work for the tier of one broker. Only a master changes the tier."""

    def __init__(self, context: BrokerContext, *, tier: Tier) -> None:
        self._context = context
        self._config = context.config.store
        self._store = context.store
        self._tier = tier
        #: The calls follow one after the other.
        self._threads = TierThreads("gantry-tier-write", 1, 8)
        self._has_cleaned = False
        self._is_stopping = False
        self._job = context.jobs.repeating(
            "copy the log into the tier", self._run, _LOOK_S, after_error_s=_AFTER_ERROR_S
        )

    async def start(self) -> None:
        self._job.start(0.0)

    async def become_master(self) -> None:
        self._has_cleaned = False
        self._job.wake()

    async def stop(self) -> None:
        self._is_stopping = True
        await self._job.stop()
        self._threads.close()
        self._tier.close()

    async def _run(self) -> float:
        """Does one step. Returns the seconds to the next one. Raises OSError or StoreError."""
        tier, is_slave = self._tier, self._context.is_slave
        catalog = tier.catalog
        if catalog is None or is_slave or not self._has_cleaned:
            catalog = await self._in_thread(partial(load_catalog, tier.objects, catalog))
        if catalog is not tier.catalog:
            try:
                self._check_same_store(catalog)
            except StoreError:
                tier.use(None)
                raise
            tier.use(catalog)
        if is_slave:
            return _SLAVE_LOOK_S
        if not self._has_cleaned:
            if deleted := await self._in_thread(partial(delete_remains, tier.objects, catalog)):
                log.info("deleted %d objects of interrupted uploads in %s", deleted, tier.objects)
            self._has_cleaned = True
        file = self._next_file(catalog)
        if file is not None:
            await self._upload(file, catalog)
        is_deleting = await self._delete_expired(catalog)
        return 0.0 if file is not None or is_deleting else _LOOK_S

    def _check_same_store(self, catalog: TierCatalog) -> None:
        """Raises StoreError if the segments are not those of this log."""
        store = self._store
        is_other = not self._context.is_slave and catalog.end > store.max_physical_offset
        in_log = [segment for segment in catalog if segment.base >= store.min_physical_offset]
        # The first and the last one are enough: a log does not change in between.
        for segment in {*in_log[:1], *in_log[-1:]}:
            # A slave may not have this part of the log yet.
            begun_at = store.record_time(segment.base)
            is_other |= begun_at >= 0 and begun_at != segment.begin_timestamp
        is_other |= any(segment.size != self._config.mapped_file_size_commit_log for segment in catalog)
        if is_other:
            raise StoreError(
                f"{self._tier.objects} has segments of another store: move them away, or choose another "
                "tieredStoreFilePath or brokerName"
            )

    def _next_file(self, catalog: TierCatalog) -> ClosedFile | None:
        """Returns the first log file that can be copied."""
        base = self._store.min_physical_offset
        while base in catalog:
            base += self._config.mapped_file_size_commit_log
        return self._store.closed_file(base)

    # -- copying ------------------------------------------------------------------------------------------------

    async def _upload(self, file: ClosedFile, catalog: TierCatalog) -> None:
        """Copies a log file, then adds its segment to the catalog. Raises OSError or StoreError."""
        objects, base = self._tier.objects, file.begin
        began = monotonic()
        size = file.end - base
        await self._in_thread(partial(copy_log_file, objects, base, file.path, size, lambda: self._is_stopping))
        ranges = UnitRanges()
        await self._write(object_name(QUEUES, base), self._units(file, ranges))
        index_size = await self._write(object_name(INDEX, base), self._store.index_entries_between(base, file.end))
        manifest = Manifest(VERSION, base, size, file.begin_timestamp, file.end_timestamp, index_size, ranges.ranges)
        await self._in_thread(partial(finish_segment, objects, manifest))
        await self._in_thread(partial(catalog.add, manifest))
        log.info("copied the log from %d to %d into %s in %.1f s", base, file.end, objects, monotonic() - began)

    def _units(self, file: ClosedFile, ranges: UnitRanges) -> Iterator[bytes]:
        for queue, offset, units in self._store.units_between(file.begin, file.end):
            if units:
                ranges.add(queue.topic, queue.queue_id, offset, units)
            yield units

    async def _write(self, name: str, pieces: Iterator[bytes]) -> int:
        """Writes an object from pieces that are made on the event loop. Returns its size in bytes."""
        writer = PiecewiseObject(self._tier.objects, name)
        try:
            gathered = bytearray()
            began = monotonic()
            for piece in pieces:
                gathered += piece
                if len(gathered) >= _PIECE_BYTES:
                    await self._in_thread(partial(writer.write, bytes(gathered)))
                    gathered.clear()
                    began = monotonic()
                elif monotonic() - began >= _SLICE_S:
                    await asyncio.sleep(_SLICE_S)
                    began = monotonic()
            await self._in_thread(partial(writer.write, bytes(gathered)))
            await self._in_thread(writer.commit)
        except BaseException:
            with suppress(OSError):
                await self._threads.run(writer.discard, _DISCARD_S)
            raise
        return writer.size

    # -- deleting -----------------------------------------------------------------------------------------------

    async def _delete_expired(self, catalog: TierCatalog) -> bool:
        """Deletes the oldest segment if it has expired and left the log. Returns whether it did. Raises OSError."""
        oldest = next(iter(catalog), None)
        before_ms = now_ms() - self._config.tiered_store_file_reserved_time * _HOUR_MS
        if oldest is None or oldest.end > self._store.min_physical_offset or oldest.end_timestamp > before_ms:
            return False
        # First, so that no read starts in it.
        await self._in_thread(partial(catalog.remove, oldest.base))
        log.info("deleting the segment %020d in %s", oldest.base, self._tier.objects)
        await self._in_thread(partial(delete_segment, self._tier.objects, oldest.base))
        return True

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._threads.run(call)
