"""Rebuilds queues and index from the log. No other offline tool writes to a store. The rebuild locks it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gantrymq.errors import StoreError
from gantrymq.store.config import StoreConfig
from gantrymq.store.directory import StoreDirectory
from gantrymq.store.message_store import MessageStore
from gantrymq.store.offline import OfflineLog, OpenFiles, offline_queues
from gantrymq.store.verify import Progress
from gantrymq.system import files

log = logging.getLogger(__name__)

_NO_HOST = bytes(8)
_BUILD_S = 0.1
#: Directory of the old queues until the new ones are complete.
_REPLACED = "consumequeue.replaced"


def rebuild(config: StoreConfig, *, cut: bool, progress: Progress = lambda what, done, total: None) -> None:
    """Deletes queues and index, and rebuilds them from the log's records.

    Queues without any record in the log stay, because they contain the next queue offset. Deleted topics reappear if
    the log still has their records. Raises StoreLocked, and StoreError if the log is damaged. With `cut`, all data from
    the first damaged record on is lost instead.
    """
    root = config.store_path_root_dir
    directory = StoreDirectory(root)
    directories = config.commit_log_directories
    if not any(map(files.is_directory, directories)):
        raise StoreError(f"{root} has no commitlog: there is nothing to rebuild from")
    directory.lock()
    try:
        offline = OfflineLog(*config.commit_log_directories)
        if not offline.files:
            names = ", ".join(map(str, directories))
            raise StoreError(f"{names} has no file of the log: there is nothing to rebuild from")
        if not cut:
            _check(offline, progress)
        file_sizes = _file_sizes(config, offline)
        replaced = root / _REPLACED
        queues = config.consume_queue_directory
        if files.exists(replaced):
            # An earlier attempt was interrupted, so its queues are incomplete.
            files.remove_tree(queues)
        elif files.exists(queues):
            files.rename(queues, replaced)
        _keep_expired(replaced, queues, offline.min_offset)
        files.remove_tree(config.index_directory)
        files.unlink(root / "checkpoint", missing_ok=True)
    except OSError as e:
        raise StoreError(f"can't replace the queues in {root}: {e}") from e
    finally:
        directory.unlock()
    _rebuild(file_sizes, _scaled(progress, "queues", offline), _scaled(progress, "index", offline))
    files.remove_tree(replaced)


def _rebuild(config: StoreConfig, queues: Callable[[int], None], index: Callable[[int], None]) -> None:
    store = MessageStore(config, _NO_HOST)
    store.open(queues)
    try:
        queues(store.max_physical_offset)
        while not store.keys.build_index(_BUILD_S):
            index(store.max_physical_offset - store.keys.index_behind_bytes)
        index(store.max_physical_offset)
    finally:
        store.close()


def _scaled(progress: Progress, what: str, offline: OfflineLog) -> Callable[[int], None]:
    return lambda offset: progress(what, offset - offline.min_offset, offline.limit - offline.min_offset)


def _check(offline: OfflineLog, progress: Progress) -> None:
    """Raises StoreError if opening the store would cut off more than zeros."""
    reader = offline.reader()
    records = iter(reader)
    while reader.runs() is not None or next(records, None) is not None:
        progress("log", reader.end - offline.min_offset, offline.limit - offline.min_offset)
    problem = reader.problem
    for file in offline.files:
        found = offline.view_at(file.base) if file.base > reader.end else None
        if found is not None and any(found[0][:8]):
            problem = problem or f"nothing follows, but {file.path.name} has records"
    if problem:
        raise StoreError(
            f"no good record is at {reader.end} of the log: {problem}; a rebuild would cut off all from there on, "
            f"{offline.limit - reader.end} bytes at most, and does so with --cut"
        )


def _file_sizes(config: StoreConfig, offline: OfflineLog) -> StoreConfig:
    """Returns the configuration with the file sizes of the existing store."""
    opened = OpenFiles()
    try:
        for queue in offline_queues(config.consume_queue_directory, opened).values():
            if queue.file_size:
                config = replace(config, mapped_file_size_consume_queue=queue.file_size)
                break
    finally:
        opened.close()
    if offline.files:
        config = replace(config, mapped_file_size_commit_log=offline.files[0].length)
    return config


def _keep_expired(replaced: Path, queues: Path, min_offset: int) -> None:
    """Copies the queues whose messages have all expired. Only their files have the next queue offset."""
    opened = OpenFiles()
    try:
        for queue in offline_queues(replaced, opened).values():
            last = queue.unit(queue.end - 1)
            if last is not None and last.physical_offset < min_offset:
                files.copy_tree(queue.directory, queues / queue.topic / str(queue.queue_id))
    finally:
        opened.close()
