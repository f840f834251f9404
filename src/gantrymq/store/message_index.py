"""The index for searches by key: the files in `index/`, built from the log (`index/IndexService`).

Each message is indexed by its UNIQ_KEY and each of its KEYS, as `topic#key`. It is also indexed by its TAGS, as
`topic#T#tags` (new in RocketMQ 5.5). ROLLBACK messages and half messages from batches are excluded. `append` does not
update the index. Instead, `build` reads the log in short slices, in the broker's thread, when there is time.
`behind_bytes` is the size of the log that is not indexed yet. The last index file need not be on disk. After a crash,
files that may be incomplete are deleted and rebuilt.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from gantrymq.errors import RecordError, StoreBusy, StoreError, StoreFull
from gantrymq.kernels.interface import IndexEntries
from gantrymq.protocol.sys_flag import TRANSACTION_ROLLBACK
from gantrymq.store.commit_log import CommitLog
from gantrymq.store.index_entries import entries_of
from gantrymq.store.index_file import (
    ENTRY_SIZE,
    NAME_LENGTH,
    Entry,
    IndexEntry,
    IndexFile,
    IndexHeader,
    file_size,
    read_header,
)
from gantrymq.store.index_keys import KeyHash, keys_of
from gantrymq.store.mapped_file import sync_directory, sync_file
from gantrymq.store.preallocation import Preallocation
from gantrymq.system import clock, files

log = logging.getLogger(__name__)

#: Maximum number of entries that one query reads. A key that every message has would otherwise read all entries.
_MAX_STEPS = 200_000
#: Maximum number of entries to drop one by one, in about 0.1 s.
_MOST_DROPPED = 100_000
#: After this many entries the caller may do other work.
_STEPS = 64

#: Maximum number of entries that one step of `entries_between` reads.
_ENTRIES_AT_ONCE = 10_000

_NEW = IndexHeader(0, 0, 0, 0, 0, 1)


class MessageIndex:
    """The index of `commit_log` in `directory`."""

    def __init__(
        self,
        commit_log: CommitLog,
        directory: Path,
        hash_slots: int,
        max_entries: int,
        preallocation: Preallocation,
    ) -> None:
        #: The physical offset up to which all records are in the index.
        self.position = 0
        #: Whether `build` has stopped because a file is being preallocated. It continues when the file exists.
        self.waits_for_file = False
        #: Store timestamp of the newest entry in a full file that is on disk.
        self.flushed_timestamp = 0
        self._log = commit_log
        self._directory = directory
        self._hash_slots = hash_slots
        self._max_entries = max_entries
        self._preallocation = preallocation
        self._files: list[IndexFile] = []
        #: The file that is being created.
        self._next: IndexFile | None = None
        self._unflushed: deque[IndexFile] = deque()
        self._keys_done = 0
        self._hash = KeyHash()
        self._is_failing = False

    @property
    def behind_bytes(self) -> int:
        return self._log.position - max(self.position, self._log.min_offset)

    @property
    def last_update(self) -> tuple[int, int]:
        """(store timestamp, physical offset) of the newest entry; zeros if there is none."""
        return (self._files[-1].end_timestamp, self._files[-1].end_phy_offset) if self._files else (0, 0)

    # -- opening ------------------------------------------------------------------------------------------------

    def open(self, flushed_timestamp: int, *, was_aborted: bool) -> None:
        """Opens the files and deletes invalid ones. `flushed_timestamp` is the checkpoint's. Raises StoreError."""
        self.flushed_timestamp = flushed_timestamp
        paths = index_paths(self._directory)
        try:
            for number, path in enumerate(paths):
                file = self._usable(path, must_be_flushed=was_aborted)
                if file is None:
                    log.info("the index is built anew from %s on", path.name)
                    for later in paths[number:]:
                        files.unlink(later)
                    sync_directory(self._directory)
                    # The rebuilt part is not on disk yet, whatever the checkpoint contains.
                    kept = self._files[-1].end_timestamp if self._files else 0
                    self.flushed_timestamp = min(flushed_timestamp, kept)
                    break
                self._files.append(file)
            self._go_on()
        except OSError as e:
            raise StoreError(f"can't use {self._directory}: {e}") from e

    def _usable(self, path: Path, *, must_be_flushed: bool) -> IndexFile | None:
        if files.stat(path).st_size != file_size(self._hash_slots, self._max_entries):
            log.warning("%s hasn't the size that maxHashSlotNum and maxIndexNum give", path)
            return None
        header = read_header(path)
        file = IndexFile(path, self._hash_slots, self._max_entries, header, self._preallocation)
        before = self._files[-1].end_phy_offset if self._files else 0
        end = header.end_phy_offset
        if header.index_count > self._max_entries or not before <= end < max(self._log.position, 1):
            return None
        if end >= max(self._log.min_offset, 1) and self._log.store_time(end) < 0:
            return None
        if must_be_flushed and not (file.is_full and header.end_timestamp <= self.flushed_timestamp):
            return None
        last = file.entry(header.index_count - 1) if header.index_count > 1 else None
        file.unmap()
        if last is None:
            return file
        is_right = (
            before <= last.physical_offset <= end
            and self._was_stored(header.begin_phy_offset, header.begin_timestamp)
            and self._was_stored(last.physical_offset, header.end_timestamp)
        )
        return file if is_right else None

    def _was_stored(self, physical_offset: int, timestamp: int) -> bool:
        """Returns whether the record at this offset has this store timestamp, or is no longer in the log."""
        return physical_offset < self._log.min_offset or self._log.store_time(physical_offset) == timestamp

    def _go_on(self) -> None:
        """Finds the end of the last file. It can be between two keys of a record."""
        self.position, self._keys_done = 0, 0
        if not self._files:
            return
        end = self._files[-1].end_phy_offset
        for file in reversed(self._files):
            number = file.index_count - 1
            while number and file.entry(number).physical_offset == end:
                self._keys_done += 1
                number -= 1
            file.unmap()
            if number:
                break
        self.position = end
        try:
            record = self._log.read(end, check_crc=False)
        except (RecordError, StoreError):
            return
        is_rolled_back = record.sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK
        if is_rolled_back or self._keys_done >= len(keys_of(record.properties)):
            self.position, self._keys_done = end + record.size, 0

    # -- building -----------------------------------------------------------------------------------------------

    def build(self, budget_s: float) -> bool:
        """Adds new records of the log for about `budget_s` seconds at most. Returns whether the index is complete.

        While the disk is full or a file is being preallocated (`waits_for_file`), it adds nothing, and continues later.
        Raises StoreError.
        """
        commit_log = self._log
        self.waits_for_file = False
        if self.position == commit_log.position:
            return True
        deadline = clock.monotonic() + budget_s
        if self.position < commit_log.min_offset:
            self.position, self._keys_done = commit_log.min_offset, 0
        try:
            if not self._files:
                self._roll()
            while self.position < commit_log.position:
                self._build_slice()
                if clock.monotonic() >= deadline:
                    break
            self._files[-1].write_header()
        except StoreBusy:
            self.waits_for_file = True
            return False
        except StoreFull as e:
            if not self._is_failing:
                log.warning("the index waits: %s", e)
            self._is_failing = True
            return False
        self._is_failing = False
        return self.position == commit_log.position

    def _build_slice(self) -> None:
        """Adds some records of one log file. It may add only some keys of the last record."""
        position = self.position
        found = self._log.view_at(position)
        assert found is not None
        view, base = found
        end = min(len(view), self._log.position - base)
        piece = entries_of(view, base, position - base, end, self._keys_done, self._hash)
        self._put(piece.entries, self._keys_done)
        self._reached(piece.last, piece.following, piece.keys_done)

    def _reached(self, last: int | None, following: int, keys_done: int) -> None:
        """Advances the position to `following`. `keys_done` keys of the record there are in the index.

        `last` is the last record that was read, or None.
        """
        # This includes a record without keys, so that it isn't read again.
        if last is not None:
            self._files[-1].end_phy_offset = max(self._files[-1].end_phy_offset, last)
        self.position, self._keys_done = following, keys_done

    def _put(self, entries: list[Entry] | IndexEntries, keys_done: int) -> None:
        """Adds entries. `keys_done` entries of the record at `position` were added before.

        If it raises an exception, `build` continues after the last entry that was added.
        """
        done = 0
        try:
            while True:
                file = self._files[-1]
                before = file.index_count
                try:
                    file.put(entries, done)
                finally:
                    done += file.index_count - before
                if done == len(entries):
                    break
                self._roll()
        except BaseException:
            if done:
                last = entries[done - 1][1]
                of_last = sum(1 for number in range(done) if entries[number][1] == last)
                self._keys_done = of_last + (keys_done if last == self.position else 0)
                self.position = last
            raise

    def _roll(self) -> None:
        """Starts the next file, or continues if an earlier attempt failed or the file is still being preallocated."""
        if self._next is None:
            header = _NEW
            if self._files:
                full = self._files[-1]
                full.write_header()
                full.unmap()
                end, timestamp = full.end_phy_offset, full.end_timestamp
                header = IndexHeader(timestamp, timestamp, end, end, 0, 1)
            path = self._directory / self._next_name()
            self._next = IndexFile(path, self._hash_slots, self._max_entries, header, self._preallocation)
        following = self._next
        following.need_file()
        following.write_header()
        self._next = None
        if self._files:
            self._unflushed.append(self._files[-1])
        self._files.append(following)

    def _next_name(self) -> str:
        """Returns the local time as a file name, as in Java, or the last name plus one if later: names are in order."""
        now = clock.time()
        name = clock.strftime("%Y%m%d%H%M%S", clock.localtime(now)) + f"{int(now * 1000) % 1000:03d}"
        if self._files and name <= self._files[-1].path.name:
            return str(int(self._files[-1].path.name) + 1)
        return name

    # -- finding ------------------------------------------------------------------------------------------------

    def find(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yields the physical offsets of records that may have the key, newest first, and None from time to time.

        `key` has the format of `keys_of`. The records were stored between `begin_ms` and `end_ms`, both inclusive.
        Other keys can have the same hash, so the caller must check the records. Between two results the index and the
        log may change.
        """
        key_hash = self._hash(topic + b"#" + key)
        steps = 0
        last = -1
        for file in self._files[::-1]:
            if file.index_count > 1 and file.begin_timestamp <= end_ms and file.end_timestamp >= begin_ms:
                try:
                    for entry in file.chain(key_hash):
                        steps += 1
                        if steps % _STEPS == 0:
                            yield None
                        if steps > _MAX_STEPS:
                            log.warning("gave up looking for %r of %r after %d entries", key, topic, _MAX_STEPS)
                            return
                        if entry.physical_offset < self._log.min_offset:
                            return
                        if entry.hash != key_hash or self._is_later(entry, end_ms) or entry.physical_offset == last:
                            continue
                        last = entry.physical_offset
                        stored = self._log.store_time(last)
                        if 0 <= stored < begin_ms:
                            return
                        if begin_ms <= stored <= end_ms:
                            yield last
                finally:
                    # A replica that is reset has no files.
                    if self._files[-1:] != [file]:
                        file.unmap()
            if file.begin_timestamp < begin_ms:
                return

    @staticmethod
    def _is_later(entry: IndexEntry, end_ms: int) -> bool:
        # The time of an entry is in whole seconds. The first entry's time differs; see `put`.
        return entry.timestamp > end_ms and entry.number > 1

    def entries_between(self, begin: int, end: int) -> Iterator[bytes]:
        """Yields the entries of the records between two physical offsets, in order, several of a file at once.

        Between two results the index may change. Raises StoreError.
        """
        for file in self._files[:]:
            if file.index_count < 2 or file.end_phy_offset < begin or file.begin_phy_offset >= end or file.is_gone:
                continue
            number, stop = file.number_at(begin), file.number_at(end)
            while number < stop and not file.is_gone:
                entries = file.entries(number, min(number + _ENTRIES_AT_ONCE, stop))
                yield entries
                number += len(entries) // ENTRY_SIZE

    # -- flushing and removing files ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Flushes full files to disk. Called by the flusher's thread. Raises OSError."""
        while self._unflushed:
            file = self._unflushed[0]
            try:
                sync_file(file.path)
                sync_directory(self._directory)
            except FileNotFoundError:
                log.debug("%s was deleted meanwhile", file.path)
            self.flushed_timestamp = file.end_timestamp
            self._unflushed.popleft()

    def forget_before(self, physical_offset: int) -> list[Path]:
        """Removes files before this physical offset, but not the last. Returns the paths, which the caller deletes."""
        paths = []
        while len(self._files) > 1 and self._files[0].end_phy_offset < physical_offset:
            file = self._files.pop(0)
            log.info("deleting %s: the log begins at %d", file.path, physical_offset)
            file.close()
            paths.append(file.path)
        return paths

    def cut(self, physical_offset: int) -> None:
        """Removes all entries from this physical offset on. Raises OSError or StoreError.

        No thread may flush at the same time. In the file that contains the offset, only the last entries are dropped.
        If there are many of them, the file is deleted and rebuilt.
        """
        kept = [file for file in self._files if file.end_phy_offset < physical_offset]
        dropped, self._files = self._files[len(kept) :], kept
        if not dropped:
            return
        self._unflushed = deque(file for file in self._unflushed if file in kept)
        self.flushed_timestamp = min(self.flushed_timestamp, kept[-1].end_timestamp if kept else 0)
        if self._next is not None:
            # The new file would continue a file that is dropped.
            dropped.append(self._next)
            self._next = None
        cut = dropped[0]
        number = cut.number_at(physical_offset)
        if number > 1 and cut.index_count - number <= _MOST_DROPPED:
            last = cut.entry(number - 1)
            cut.drop_from(number, max(self._log.store_time(last.physical_offset), last.timestamp))
            kept.append(dropped.pop(0))
        for file in reversed(dropped):
            file.delete()
        sync_directory(self._directory)
        self._go_on()

    def close(self, *, flush: bool) -> None:
        """Closes the files; with `flush`, flushes the last file first. Raises OSError or StoreError if that fails."""
        with ExitStack() as stack:
            for file in self._files:
                stack.callback(file.close)
            if self._next is not None:
                stack.callback(self._next.delete)
            if flush and self._files:
                self._files[-1].write_header()
                self.flush()
                sync_file(self._files[-1].path)
                sync_directory(self._directory)


def index_paths(directory: Path) -> list[Path]:
    """Returns the index files in order. Raises StoreError."""
    try:
        return sorted(
            path
            for path in files.children(directory)
            if len(path.name) == NAME_LENGTH and path.name.isascii() and path.name.isdigit() and files.is_file(path)
        )
    except FileNotFoundError:
        return []
    except OSError as e:
        raise StoreError(f"can't read {directory}: {e}") from e
