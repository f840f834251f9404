"""The fuzz targets of compaction topics and of the tables that a broker derives from its log."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

from fuzz.targets import change, target
from gantrymq.broker.send.deduplication_ids import DeduplicationIds, SavedIds
from gantrymq.broker.send.write_ids import WriteIds
from gantrymq.errors import BodyError, GantryError
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import decode_record, encode_host
from gantrymq.store.compaction.compaction_log import COMPACTING
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore

_TOPIC = "state"
_NOW_MS = 1_700_000_000_000
_HOST = encode_host("127.0.0.1", 10911)


@target
def log_tables(data: bytes) -> None:
    """The files with deduplication ids and with the rows of writers. Both are encoded and decoded again."""
    with suppress(BodyError):
        ids = DeduplicationIds.of(decode_json(data, SavedIds))
        count = sum(number for _, number in ids.topics())
        assert len(ids) == count, "the ids are counted wrongly"
        again = DeduplicationIds.of(decode_json(b"".join(ids.encode()), SavedIds))
        assert (again.topics(), again.position) == (ids.topics(), ids.position)
        ids.limit(2)
        for topic, _ in ids.topics():
            ids.forget(topic, _NOW_MS, 1000, 100)
        assert len(ids) <= 2
    with suppress(BodyError):
        table = decode_json(data, WriteIds)
        assert decode_json(encode_json(table), WriteIds) == table
        table.forget(_NOW_MS)


@target
def compaction(data: bytes) -> None:
    """The files of a compaction topic, one of them during a replacement. An opened store must not lose a new value.

    The changes are those of `recovery`.
    """
    with tempfile.TemporaryDirectory(prefix="gantry-fuzz-") as directory:
        root = Path(directory) / "store"
        shutil.copytree(Path(_good_compaction().name) / "store", root)
        change(root / "compaction", data)
        store = _store(root)
        try:
            store.open()
            _read(store, 0)
            offset = _put(store, "k1", b"acknowledged")
            _copy(store)
            _compact(store)
        except GantryError:
            return
        finally:
            store.close()
        store = _store(root)
        try:
            store.open()
            assert _read(store, offset) == [b"acknowledged"], "the value is lost"
        finally:
            store.close()


def _store(root: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=16384,
        mapped_file_size_consume_queue=1000,
        max_hash_slot_num=16,
        max_index_num=64,
        compaction_mapped_file_size=4600,
        compaction_cq_mapped_file_size=20 * 46,
        compaction_tombstone_retention_ms=0,
    )
    return MessageStore(config, _HOST, compaction_topics=lambda: [_TOPIC])


def _put(store: MessageStore, key: str, body: bytes) -> int:
    """Appends a message. Returns its queue offset."""
    queue = store.queue(_TOPIC, 0)
    offset = queue.max_offset
    store.append(queue, 0, 0, _NOW_MS, _HOST, 0, body, encode_properties({"KEYS": key}), 0)
    return offset


def _read(store: MessageStore, offset: int) -> list[bytes]:
    """Returns the bodies of a queue from an offset on."""
    queue = store.queue(_TOPIC, 0)
    bodies: list[bytes] = []
    while offset < queue.max_offset:
        result = store.get(queue, offset, 32, 1 << 20)
        bodies += [decode_record(buffer).body for buffer in result.buffers]
        assert result.next_begin_offset > offset, "the read does not advance"
        offset = result.next_begin_offset
    return bodies


def _copy(store: MessageStore) -> None:
    flushed = threading.Event()
    store.when_flushed(store.max_physical_offset, lambda error: flushed.set())
    flushed.wait()
    store.compaction.copy(1.0)
    store.compaction.flush()


def _compact(store: MessageStore) -> None:
    for compactor in store.compaction.compactors(_NOW_MS):
        for _ in compactor.steps():
            pass
        compactor.sync()
        store.compaction.finish(compactor)
        store.compaction.save()


@cache
def _good_compaction() -> tempfile.TemporaryDirectory[str]:
    """Creates `store` with compacted files, and a replacement of the first ones that a crash has interrupted."""
    directory = tempfile.TemporaryDirectory(prefix="gantry-fuzz-")
    root = Path(directory.name) / "store"
    store = _store(root)
    store.open()
    for number in range(60):
        _put(store, f"k{number % 7}", b"value %d" % number)
    _copy(store)
    _compact(store)
    for number in range(60, 90):
        _put(store, f"k{number % 7}", b"value %d" % number)
    _copy(store)
    store.close()
    for name in ("compactionLog", "compactionCq"):
        log = root / "compaction" / name / _TOPIC / "0"
        (log / COMPACTING).mkdir()
        shutil.copy(log / f"{0:020d}", log / COMPACTING)
    (root / "compaction" / "compactionLog" / _TOPIC / "0" / COMPACTING / "replaced").write_text("0;0")
    return directory
