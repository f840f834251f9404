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
from gantrymq.tier.catalog_loader import CatalogLoader, LogFile, LogView, segment_names
from gantrymq.tier.pool import TierThreads
from gantrymq.tier.segment import (
    INDEX,
    QUEUES,
    VERSION,
    Manifest,
    base_of,
    new_id,
    object_name,
    sample_crc32,
    segment_name,
)
from gantrymq.tier.tier import Tier
from gantrymq.tier.uploader import (
    PiecewiseObject,
    UnitRanges,
    copy_log_file,
    delete_remains,
    delete_segment,
    finish_segment,
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
        self._loader = CatalogLoader(tier.objects)
        #: Number of changes of the role. A run that began in another role does not finish its work.
        self._role_changes = 0
        self._was_slave = context.is_slave
        self._has_cleaned = False
        self._is_stopping = False
        #: Where the search for the next file begins, so that a file that can't be copied does not block later ones.
        self._next_base = 0
        #: The ids of segments that are incomplete, by their base. A repeated upload replaces its own objects.
        self._ids: dict[int, str] = {}
        #: Segments whose deletion has not succeeded yet.
        self._undeleted: list[str] = []
        self._job = context.jobs.repeating(
            "copy the log into the tier", self._run, _LOOK_S, after_error_s=_AFTER_ERROR_S
        )

    async def start(self) -> None:
        self._job.start(0.0)

    async def become_master(self) -> None:
        self._change_role()

    async def become_slave(self) -> None:
        self._change_role()

    def _change_role(self) -> None:
        # The log may lose its end now. All segments have to be compared with it again.
        self._role_changes += 1
        self._loader = CatalogLoader(self._tier.objects)
        self._has_cleaned = False
        self._ids.clear()
        self._undeleted.clear()
        self._tier.use(None)
        self._job.wake()

    async def stop(self) -> None:
        self._is_stopping = True
        await self._job.stop()
        self._threads.close()
        self._tier.close()

    async def _run(self) -> float:
        """Does one step. Returns the seconds to the next one. Raises OSError or StoreError."""
        is_slave = self._context.is_slave
        if is_slave != self._was_slave:
            # The role changes a short time after `become_slave`.
            self._was_slave = is_slave
            self._change_role()
        role = self._role_changes
        if self._tier.catalog is None or is_slave:
            await self._load()
        if role != self._role_changes:
            return 0.0
        if is_slave:
            return _SLAVE_LOOK_S
        # A failed upload must not prevent the deletion of expired segments.
        problem: Exception | None = None
        has_copied = is_deleting = False
        try:
            has_copied = await self._copy_next(role)
        except (OSError, StoreError) as e:
            problem = e
        if role != self._role_changes or self._context.is_slave:
            return 0.0
        try:
            is_deleting = await self._delete_expired()
        except OSError as e:
            problem = problem or e
        if problem is not None:
            raise problem
        return 0.0 if has_copied or is_deleting else _LOOK_S

    async def _load(self) -> None:
        """Updates the catalog. Raises OSError, and StoreError if the segments are not those of this log."""
        loader, tier, store = self._loader, self._tier, self._store
        found = await self._in_thread(partial(segment_names, tier.objects))
        names = [name for name in found if name not in self._undeleted]
        local: dict[int, LogFile] = {}
        for base in sorted({base_of(name) for name in names}):
            if base >= store.min_physical_offset and base not in loader.catalog:
                began = store.record_time(base)
                if began >= 0:
                    local[base] = LogFile(began, store.closed_file(base))
                # Each step may read from the disk.
                await asyncio.sleep(0)
        begin = store.min_physical_offset
        view = LogView(begin, store.max_physical_offset, store.record_time(begin), local)
        await self._in_thread(partial(loader.load, names, view))
        if loader is not self._loader:
            return
        if not self._context.is_slave and loader.is_of_another_log(names):
            tier.use(None)
            raise StoreError(
                f"{tier.objects} has segments of another store: move them away, or choose another "
                "tieredStoreFilePath or brokerName"
            )
        tier.use(loader.catalog)

    def _next_file(self) -> ClosedFile | None:
        """Returns a log file that can be copied. Raises StoreError."""
        begin = self._store.min_physical_offset
        for base in (max(begin, self._next_base), begin):
            while base in self._loader.catalog:
                base += self._config.mapped_file_size_commit_log
            self._next_base = base + self._config.mapped_file_size_commit_log
            if (file := self._store.closed_file(base)) is not None:
                return file
        self._next_base = 0
        return None

    # -- copying ------------------------------------------------------------------------------------------------

    async def _copy_next(self, role: int) -> bool:
        """Copies the next log file. Returns whether there was one. Raises OSError or StoreError."""
        objects = self._tier.objects
        file = self._next_file()
        if file is not None:
            # Another broker may have copied it: this one was a slave, or it will become one.
            await self._load()
            if file.begin in self._loader.catalog:
                return True
        if role != self._role_changes:
            return True
        if not self._has_cleaned:
            if deleted := await self._in_thread(partial(delete_remains, objects, self._loader.catalog.end)):
                log.info("deleted %d objects of interrupted uploads in %s", deleted, objects)
            self._has_cleaned = role == self._role_changes
        if file is None or role != self._role_changes:
            return False
        await self._upload(file, lambda: self._is_stopping or self._context.is_slave or role != self._role_changes)
        return True

    async def _upload(self, file: ClosedFile, is_stopped: Callable[[], bool]) -> None:
        """Copies a log file, then adds its segment to the catalog. Raises OSError or StoreError."""
        objects, base, catalog = self._tier.objects, file.begin, self._loader.catalog
        began = monotonic()
        size = file.end - base
        segment_id = self._ids.setdefault(base, new_id())
        name = segment_name(base, segment_id)
        await self._in_thread(partial(copy_log_file, objects, name, file.path, size, is_stopped))
        ranges = UnitRanges()
        await self._write(object_name(QUEUES, name), self._units(file, ranges))
        index_size = await self._write(object_name(INDEX, name), self._store.index_entries_between(base, file.end))
        last = ranges.last_record, ranges.last_size
        crc32 = await self._in_thread(partial(sample_crc32, file.path, base, *last))
        times = file.begin_timestamp, file.end_timestamp
        manifest = Manifest(VERSION, base, size, *times, index_size, ranges.ranges, segment_id, *last, crc32)
        await self._in_thread(partial(finish_segment, objects, manifest, is_stopped))
        self._ids.pop(base, None)
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

    async def _delete_expired(self) -> bool:
        """Deletes a segment that has expired and left the log. Returns whether it did. Raises OSError."""
        loader, begin = self._loader, self._store.min_physical_offset
        before_ms = now_ms() - self._config.tiered_store_file_reserved_time * _HOUR_MS
        if not self._undeleted:
            oldest = next(iter(loader.catalog), None)
            if oldest is not None and oldest.end <= begin and oldest.end_timestamp <= before_ms:
                # First, so that no read starts in it.
                await self._in_thread(partial(loader.catalog.remove, oldest.base))
                self._undeleted.append(oldest.name)
            for name, ended_at in list(loader.others.items()):
                if ended_at <= before_ms:
                    del loader.others[name]
                    self._undeleted.append(name)
        if not self._undeleted:
            return False
        name = self._undeleted[0]
        log.info("deleting the segment %s in %s", name, self._tier.objects)
        await self._in_thread(partial(delete_segment, self._tier.objects, name))
        del self._undeleted[0]
        return True

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await self._threads.run(call)
