"""Compaction topics: the store keeps the last message of each key, in Java's files."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from replica_support import BEHIND, follow
from store_support import LOG_FILE, STORE_HOST, crash, flush_queues, flushed, log_files, put, read_all, small_config

from gantrymq.errors import StoreError, StoreFull
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import decode_record
from gantrymq.store import retention
from gantrymq.store.compaction.compaction_store import file_sizes
from gantrymq.store.compaction.segment import CopiedRecord
from gantrymq.store.config import StoreConfig
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore
from gantrymq.system import files

#: A unit of Java's BatchConsumeQueue.
JAVA_UNIT = Struct(">qiqqqhii")
NOW_MS = 1_900_000_000_000

OpenStore = Callable[..., MessageStore]


@pytest.fixture
def open_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStore]:
    monkeypatch.setattr(retention, "used_percent", lambda path: 10.0)
    opened: list[MessageStore] = []

    def open_store(directory: str = "", *, is_slave: bool = False, **options: Any) -> MessageStore:
        config = small_config(
            tmp_path / directory,
            compaction_mapped_file_size=4600,
            compaction_cq_mapped_file_size=20 * 46,
            compaction_tombstone_retention_ms=0,
            **options,
        )
        store = MessageStore(config, STORE_HOST, compaction_topics=lambda: ["state"])
        if is_slave:
            store.set_slave(True)
        store.open()
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


def put_key(store: MessageStore, key: str, body: bytes, *, queue_id: int = 0, tags_code: int = 0) -> int:
    """Stores a message and returns its queue offset."""
    queue = store.queue("state", queue_id)
    offset = queue.max_offset
    put(store, queue, body, properties=encode_properties({"KEYS": key}), tags_code=tags_code)
    return offset


def copy(store: MessageStore) -> None:
    """Copies all messages, and flushes them."""
    flushed(store)
    assert store.compaction.copy(60.0)
    store.compaction.flush()


def compact(store: MessageStore, now_ms: int = NOW_MS) -> int:
    """Compacts all logs and returns the number of removed messages."""
    removed = 0
    for compactor in store.compaction.compactors(now_ms):
        for _ in compactor.steps():
            pass
        compactor.sync()
        store.compaction.finish(compactor)
        store.compaction.save()
        removed += compactor.removed
    return removed


def content(store: MessageStore, queue_id: int = 0) -> dict[int, bytes]:
    """Returns {queue offset: body} of all messages that a consumer gets from the beginning."""
    records = read_all(store, store.queue("state", queue_id))
    offsets = [record.queue_offset for record in records]
    assert offsets == sorted(set(offsets))
    return {record.queue_offset: record.body for record in records}


def test_the_last_message_of_each_key_stays(open_compacted: OpenStore) -> None:
    store = open_compacted()
    expected = {put_key(store, f"key-{i % 7}", b"%d" % i): b"%d" % i for i in range(200)}
    copy(store)
    assert content(store) == expected
    removed = compact(store)
    queue = store.queue("state", 0)
    found = content(store)
    assert removed == 200 - len(found) > 100
    assert found.items() <= expected.items()
    # The messages of the last file are not compacted. Before them, each key has its last message.
    assert [expected[offset] for offset in range(193, 200)] == [found[offset] for offset in range(193, 200)]
    assert queue.min_offset == min(found)
    assert queue.max_offset == 200
    assert store.compaction.needed_from(False) == store.max_physical_offset


def test_a_read_continues_after_a_gap_and_returns_offsets_as_java_does(open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(100):
        put_key(store, "same", b"%d" % i)
    copy(store)
    compact(store)
    queue = store.queue("state", 0)
    first = queue.min_offset
    assert first > 0
    result = store.get(queue, 0, 1, 1 << 20)
    assert (result.status, result.next_begin_offset) == (GetStatus.FOUND, first + 1)
    assert (result.min_offset, result.max_offset) == (first, 100)
    assert store.get(queue, 100, 1, 1 << 20).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get(queue, 101, 1, 1 << 20).status is GetStatus.OFFSET_OVERFLOW_BADLY
    assert store.store_time(queue, 0) == store.store_time(queue, first) > 0


def test_messages_that_are_not_copied_follow(open_compacted: OpenStore) -> None:
    store = open_compacted()
    put_key(store, "a", b"1")
    copy(store)
    put_key(store, "b", b"2")
    assert content(store) == {0: b"1", 1: b"2"}
    queue = store.queue("state", 0)
    assert store.get(queue, 0, 32, 1 << 20, frozenset({5})).status is GetStatus.NO_MATCHED_MESSAGE


def test_filters(open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(60):
        put_key(store, f"key-{i}", b"%d" % i, tags_code=i % 3)
    copy(store)
    queue = store.queue("state", 0)
    found: list[int] = []
    offset = 0
    while offset < 60:
        result = store.get(queue, offset, 32, 1 << 20, frozenset({1}))
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
        found.append(result.message_count)
    assert sum(found) == 20
    result = store.get(queue, 10, 32, 1 << 20, None, lambda record: False)
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert result.next_begin_offset > 10


def test_a_read_that_ends_at_the_end_of_the_copies(open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(10):
        put_key(store, f"key-{i}", b"%d" % i)
    copy(store)
    put_key(store, "later", b"x")
    result = store.get(store.queue("state", 0), 5, 32, 1 << 20, None, lambda record: False, end=10)
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)


def test_a_message_without_a_body_deletes_its_key(open_compacted: OpenStore) -> None:
    store = open_compacted()
    put_key(store, "deleted", b"value")
    put_key(store, "deleted", b"")
    put_key(store, "kept", b"value")
    for i in range(60):
        put_key(store, f"other-{i}", b"")
    copy(store)
    compact(store)
    assert content(store)[2] == b"value"
    assert not {0, 1} & content(store).keys()


def test_a_tombstone_stays_for_a_while(tmp_path: Path, open_compacted: OpenStore) -> None:
    store = open_compacted()
    put_key(store, "deleted", b"value")
    put_key(store, "deleted", b"")
    for i in range(60):
        put_key(store, f"other-{i}", b"x")
    copy(store)
    # The messages are newer than this time.
    compact(store, now_ms=1)
    assert 0 not in content(store)
    assert content(store)[1] == b""


def test_more_keys_than_the_memory_has(open_compacted: OpenStore) -> None:
    store = open_compacted(max_offset_map_size=4096)
    for i in range(120):
        put_key(store, f"key-{i % 30}", b"%d" % i)
    copy(store)
    rounds = 0
    while list(store.compaction.compactors(NOW_MS)):
        compact(store)
        rounds += 1
    assert rounds > 1
    found = content(store)
    assert {i: b"%d" % i for i in range(90, 120)}.items() <= found.items()
    closed = [offset for offset in found if offset < store.queue("state", 0).compacted.closed_segments[-1].last]
    assert len({offset % 30 for offset in closed}) == len(closed)


def test_the_commit_log_is_deleted_and_the_last_messages_stay(tmp_path: Path, open_compacted: OpenStore) -> None:
    store = open_compacted(file_reserved_time=0)
    put_key(store, "first", b"value")
    other = store.queue("other", 0)
    while len(log_files(tmp_path)) < 4:
        put(store, other, bytes(1000))
    flushed(store)
    store.delete_expired_soon()
    store.clean(NOW_MS)
    # The message is not copied yet.
    assert store.min_physical_offset == 0
    copy(store)
    store.delete_expired_soon()
    while store.clean(NOW_MS):
        flush_queues(store)
    assert store.min_physical_offset > LOG_FILE
    assert content(store) == {0: b"value"}
    assert store.queue("state", 0).min_offset == 0
    assert sum(store.delete_expired_queues()) == 0
    store.close()
    store = open_compacted(file_reserved_time=0)
    assert content(store) == {0: b"value"}
    assert put_key(store, "second", b"later") == 1
    copy(store)
    assert content(store) == {0: b"value", 1: b"later"}


def test_queues_take_turns(open_compacted: OpenStore) -> None:
    store = open_compacted()
    queues = [store.queue("state", queue_id) for queue_id in range(3)]
    for _ in range(2000):
        put_key(store, "key", b"x")
    for queue_id in (1, 2):
        put_key(store, "key", b"x", queue_id=queue_id)
    flushed(store)
    while any(queue.compacted is None for queue in queues):
        assert not store.compaction.copy(0.0)
    assert queues[0].compacted is not None
    assert queues[0].compacted.end < 2000
    put_key(store, "key", b"y", queue_id=1)
    copy(store)
    assert [queue.compacted.end for queue in queues if queue.compacted is not None] == [2000, 2, 1]


def test_a_queue_that_cannot_be_copied(
    tmp_path: Path, open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_compacted(file_reserved_time=0)
    other = store.queue("other", 0)
    for queue_id in range(2):
        put_key(store, "key", b"value", queue_id=queue_id)
    while len(log_files(tmp_path)) < 4:
        put(store, other, bytes(1000))
    flushed(store)
    real = files.open
    log_of_0 = tmp_path / "compaction" / "compactionLog" / "state" / "0"

    def full(path: Path | str, *arguments: int) -> int:
        if log_of_0 in Path(path).parents:
            raise OSError(errno.ENOSPC, "planted")
        return real(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open", full)
        with pytest.raises(StoreFull, match="planted"):
            store.compaction.copy(60.0)
        store.compaction.flush()
        assert store.compaction.needed_from(False) == 0
        store.delete_expired_soon()
        store.clean(NOW_MS)
        assert store.min_physical_offset == 0
        # The copying cannot continue before space is free.
        patch.setattr(retention, "used_percent", lambda path: 95.0)
        while store.clean(NOW_MS):
            flush_queues(store)
        assert store.min_physical_offset > LOG_FILE
    store.clean(NOW_MS)
    assert content(store, 1) == {0: b"value"}
    assert put_key(store, "key", b"later") == 1
    copy(store)
    assert content(store) == {1: b"later"}


@pytest.mark.parametrize("seed", range(3))
def test_reopening_and_crashes_lose_nothing(tmp_path: Path, open_compacted: OpenStore, seed: int) -> None:
    chance = random.Random(seed)
    store = open_compacted(file_reserved_time=0)
    last: dict[str, bytes] = {}
    for i in range(600):
        key = f"key-{chance.randrange(40)}"
        last[key] = b"" if chance.random() < 0.2 else b"%d" % i + bytes(chance.randrange(120))
        put_key(store, key, last[key])
        action = chance.random()
        if action < 0.03:
            copy(store)
        elif action < 0.04:
            compact(store)
        elif action < 0.05:
            flushed(store)
            store.delete_expired_soon()
            store.clean(NOW_MS)
        elif action < 0.06:
            if chance.random() < 0.5:
                store.close()
            else:
                flush_queues(store)
                crash(store)
            store = open_compacted(file_reserved_time=0)
    copy(store)
    compact(store)
    state: dict[str, bytes] = {}
    for record in read_all(store, store.queue("state", 0)):
        key = record.properties.decode().split("KEYS\x01")[1].split("\x02")[0]
        state[key] = record.body
    assert {key: body for key, body in state.items() if body} == {key: body for key, body in last.items() if body}


@pytest.mark.parametrize("point", range(8))
def test_a_crash_while_files_are_replaced(
    tmp_path: Path, open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    store = open_compacted()
    for i in range(200):
        put_key(store, f"key-{i % 7}", b"%d" % i)
    copy(store)
    before = content(store)

    class Crash(Exception):
        pass

    calls = 0
    real = {name: getattr(files, name) for name in ("rename", "unlink")}

    def crashing(name: str) -> Callable[..., None]:
        def call(*args: object, **options: object) -> None:
            nonlocal calls
            calls += 1
            if calls > point:
                raise Crash
            real[name](*args, **options)

        return call

    (compactor,) = store.compaction.compactors(NOW_MS)
    for _ in compactor.steps():
        pass
    compactor.sync()
    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(files, name, crashing(name))
        with pytest.raises(Crash):
            store.compaction.finish(compactor)
    crash(store)
    store = open_compacted()
    found = content(store)
    copy(store)
    assert found.items() <= before.items()
    assert {i: b"%d" % i for i in range(193, 200)}.items() <= found.items()
    # The copying does not add a message again.
    assert content(store).keys() <= before.keys()
    assert put_key(store, "new", b"x") == 200


def test_an_error_while_files_are_replaced(open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_compacted()
    for i in range(200):
        put_key(store, f"key-{i % 7}", b"%d" % i)
    copy(store)
    calls = 0
    rename = files.rename

    def failing(old: Path, new: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError("planted")
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", failing)
        with pytest.raises(StoreError, match="planted"):
            compact(store)
    with pytest.raises(StoreError, match="interrupted"):
        content(store)
    put_key(store, "new", b"x")
    copy(store)
    compact(store)
    found = content(store)
    assert {**{i: b"%d" % i for i in range(193, 200)}, 200: b"x"}.items() <= found.items()


@pytest.mark.parametrize("failing", range(1, 9))
def test_a_file_whose_creation_failed_does_not_stop_the_store(
    open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    store = open_compacted()
    for i in range(100):
        put_key(store, f"key-{i}", b"%d" % i)
    calls = 0
    ftruncate = files.ftruncate

    def planted(fd: int, size: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= failing:
            raise OSError("planted")
        ftruncate(fd, size)

    with monkeypatch.context() as patch:
        patch.setattr(files, "ftruncate", planted)
        with pytest.raises(StoreError, match="planted"):
            copy(store)
    crash(store)
    store = open_compacted()
    copy(store)
    assert content(store) == {i: b"%d" % i for i in range(100)}


def test_an_error_of_one_log_does_not_stop_the_compaction_of_others(
    open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_compacted()
    for i in range(200):
        put_key(store, "key", b"%d" % i)
    copy(store)

    def failing(old: Path, new: Path) -> None:
        if old.parent.name == "compacting" != new.parent.name:
            raise OSError("planted")
        rename(old, new)

    rename = files.rename
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", failing)
        with pytest.raises(StoreError, match="planted"):
            compact(store)
        for i in range(200):
            put_key(store, "key", b"%d" % i, queue_id=1)
        copy(store)
        first, second = store.compaction.compactors(NOW_MS)
        with pytest.raises(StoreError, match="planted"):
            list(first.steps())
        list(second.steps())
        second.give_up()
    assert compact(store) > 100
    assert len(content(store, 0)) < 50
    assert len(content(store, 1)) < 50


def test_a_deleted_topic_begins_anew(tmp_path: Path, open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(100):
        put_key(store, "same", b"%d" % i)
    copy(store)
    compact(store)
    store.delete_topic("state")
    assert put_key(store, "same", b"new") == 0
    copy(store)
    assert content(store) == {0: b"new"}
    assert (tmp_path / "compaction" / "compactionLog" / "state" / "0").is_dir()


def values_of(store: MessageStore, key: str) -> list[bytes]:
    records = read_all(store, store.queue("state", 0))
    return [record.body for record in records if record.properties == encode_properties({"KEYS": key})]


def test_a_new_topic_of_the_same_name_is_compacted_after_a_restart(open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(200):
        put_key(store, "same", b"%d" % i)
    copy(store)
    compact(store)
    store.delete_topic("state")
    for i in range(250):
        put_key(store, "same" if i < 100 else "other", b"new %d" % i)
    copy(store)
    store.close()
    store = open_compacted()
    compact(store)
    assert values_of(store, "same") == [b"new 99"]


def test_a_truncated_queue_is_compacted_after_a_restart(tmp_path: Path, open_compacted: OpenStore) -> None:
    master, slave = open_compacted("master"), open_compacted("slave", is_slave=True)
    for i in range(10):
        put_key(master, "first", b"%d" % i)
    common = master.max_physical_offset
    master.close()
    shutil.copytree(tmp_path / "master", tmp_path / "other")
    master, other = open_compacted("master"), open_compacted("other")
    for i in range(10, 200):
        put_key(master, "same", b"%d" % i)
    follow(master, slave, lambda: BEHIND)
    copy(slave)
    compact(slave)
    slave.replica.truncate(common)
    slave.close()
    slave = open_compacted("slave", is_slave=True)
    for i in range(10, 250):
        put_key(other, "same" if i < 100 else "other", b"new %d" % i)
    follow(other, slave, lambda: BEHIND)
    copy(slave)
    compact(slave)
    assert values_of(slave, "same") == [b"new 99"]


def test_a_lost_log_is_compacted_again(tmp_path: Path, open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(200):
        put_key(store, "same", b"%d" % i)
    copy(store)
    compact(store)
    store.close()
    shutil.rmtree(tmp_path / "compaction" / "compactionLog")
    store = open_compacted()
    copy(store)
    assert compact(store) > 100


def test_positions_that_cannot_be_written_are_written_with_the_next_flush(
    open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_compacted()
    for i in range(200):
        put_key(store, "same", b"%d" % i)
    copy(store)
    compact(store)

    def failing(old: Path, new: Path) -> None:
        if new.name.startswith("position-checkpoint"):
            raise OSError("planted")
        rename(old, new)

    rename = files.rename
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", failing)
        store.delete_topic("state")
    for i in range(250):
        put_key(store, "same" if i < 100 else "other", b"new %d" % i)
    copy(store)
    store.close()
    store = open_compacted()
    compact(store)
    assert values_of(store, "same") == [b"new 99"]


def test_a_slave_begins_a_deleted_topic_anew(open_compacted: OpenStore) -> None:
    master, slave = open_compacted("master"), open_compacted("slave", is_slave=True)
    for i in range(100):
        put_key(master, "same", b"%d" % i)
    follow(master, slave, lambda: BEHIND)
    copy(slave)
    compact(slave)
    master.delete_topic("state")
    put_key(master, "same", b"new")
    follow(master, slave, lambda: BEHIND)
    copy(slave)
    assert content(slave) == {0: b"new"}


def test_a_slave_that_begins_anew_has_no_compacted_messages(tmp_path: Path, open_compacted: OpenStore) -> None:
    master, slave = open_compacted("master"), open_compacted("slave", is_slave=True)
    put_key(master, "old", b"1")
    follow(master, slave, lambda: BEHIND)
    copy(slave)
    slave.replica.begin_anew(LOG_FILE)
    assert content(slave) == {}
    assert not (tmp_path / "slave" / "compaction" / "compactionLog" / "state" / "0").exists()


def test_a_slave_that_follows_another_master(tmp_path: Path, open_compacted: OpenStore) -> None:
    first, slave = open_compacted("first"), open_compacted("slave", is_slave=True)
    for i in range(50):
        put_key(first, f"key-{i}", b"%d" % i)
    first.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    first, second = open_compacted("first"), open_compacted("second")
    common = first.max_physical_offset
    for i in range(50, 100):
        put_key(first, f"key-{i}", b"first %d" % i)
        put_key(second, f"key-{i}", b"second %d" % i)
    follow(first, slave, lambda: BEHIND)
    copy(slave)
    assert content(slave) == content(first)
    slave.replica.truncate(common)
    assert content(slave) == {i: b"%d" % i for i in range(50)}
    follow(second, slave, lambda: BEHIND)
    assert content(slave) == content(second)
    copy(slave)
    assert content(slave) == content(second)


def test_a_slave_requests_messages_that_a_crash_may_have_damaged(open_compacted: OpenStore) -> None:
    master, slave = open_compacted("master"), open_compacted("slave", is_slave=True)
    while master.max_physical_offset < 2 * LOG_FILE:
        put_key(master, "key", bytes(100))
    slave.replica.begin_at(LOG_FILE)
    follow(master, slave, lambda: BEHIND)
    ((queue, begin, end),) = slave.compaction.missing()
    assert begin == 0 < 100 < end
    expected = content(master)
    records = [
        CopiedRecord(master.record_bytes(record.physical_offset), 0, record.store_timestamp, record.queue_offset)
        for record in read_all(master, master.queue("state", 0))
        if record.queue_offset < end
    ]
    slave.compaction.add(queue, records, end)
    slave.compaction.flush()
    assert slave.compaction.missing() == []
    crash(slave)
    slave = open_compacted("slave", is_slave=True)
    # A slave without a master could become the master itself, so it keeps the messages.
    assert slave.compaction.missing() == []
    slave.compaction.cut_unsure()
    ((queue, begin, new_end),) = slave.compaction.missing()
    assert 0 < begin < new_end == end
    slave.compaction.add(queue, records[begin:], end)
    copy(slave)
    assert content(slave) == expected


def test_a_truncation_after_an_error_while_files_are_replaced(
    open_compacted: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = open_compacted("master"), open_compacted("slave", is_slave=True)
    for i in range(200):
        put_key(master, f"key-{i % 7}", b"%d" % i)
    follow(master, slave, lambda: BEHIND)
    copy(slave)

    def failing(old: Path, new: Path) -> None:
        if old.parent.name == "compacting" != new.parent.name:
            raise OSError("planted")
        rename(old, new)

    rename = files.rename
    unit = slave.queue("state", 0).unit(30)
    assert unit is not None
    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", failing)
        with pytest.raises(StoreError, match="planted"):
            compact(slave)
        # Neither the queue nor its compaction log is truncated.
        with pytest.raises(StoreError, match="planted"):
            slave.replica.truncate(unit[0])
        assert slave.queue("state", 0).max_offset == 200
    slave.replica.truncate(unit[0])
    compact(slave)
    assert content(slave).keys() <= set(range(30))
    follow(master, slave, lambda: BEHIND)
    copy(slave)
    assert content(slave).keys() >= set(range(30, 200))


def test_lost_queue_files_do_not_lose_the_compacted_messages(tmp_path: Path, open_compacted: OpenStore) -> None:
    store = open_compacted(file_reserved_time=0)
    put_key(store, "first", b"value")
    other = store.queue("other", 0)
    while len(log_files(tmp_path)) < 3:
        put(store, other, bytes(1000))
    copy(store)
    store.delete_expired_soon()
    while store.clean(NOW_MS):
        flush_queues(store)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "state")
    store = open_compacted(file_reserved_time=0)
    assert content(store) == {0: b"value"}
    assert put_key(store, "first", b"later") == 1
    assert content(store) == {0: b"value", 1: b"later"}


@pytest.mark.parametrize("written", [12, 20, 30])
def test_a_unit_that_a_full_disk_has_cut_off(tmp_path: Path, open_compacted: OpenStore, written: int) -> None:
    store = open_compacted()
    for i in range(5):
        put_key(store, f"key-{i}", b"%d" % i)
    copy(store)
    store.close()
    path = tmp_path / "compaction" / "compactionCq" / "state" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[4 * 46 + written : 5 * 46] = bytes(46 - written)
    path.write_bytes(data)
    store = open_compacted()
    expected = {i: b"%d" % i for i in range(5)}
    assert content(store) == expected
    expected[put_key(store, "key-5", b"5")] = b"5"
    copy(store)
    assert content(store) == expected


def test_messages_without_keys_are_not_copied(open_compacted: OpenStore) -> None:
    store = open_compacted()
    put(store, store.queue("state", 0), b"no key")
    put_key(store, " ", b"blank key")
    put_key(store, "key", b"value")
    copy(store)
    assert content(store) == {2: b"value"}


def test_the_files_are_those_of_java(tmp_path: Path, open_compacted: OpenStore) -> None:
    store = open_compacted()
    for i in range(30):
        put_key(store, f"key-{i}", b"%d" % i, tags_code=i)
    copy(store)
    store.close()
    logs = sorted((tmp_path / "compaction" / "compactionLog" / "state" / "0").iterdir())
    units = sorted((tmp_path / "compaction" / "compactionCq" / "state" / "0").iterdir())
    assert [path.name for path in logs] == [path.name for path in units] == ["0" * 20, f"{5520:020d}"]
    assert {path.stat().st_size for path in logs} == {5520}
    assert {path.stat().st_size for path in units} == {920}
    position = 0
    for number in range(19):
        unit = JAVA_UNIT.unpack_from(units[0].read_bytes(), number * 46)
        assert unit[0] == position
        assert unit[2] == unit[4] == number
        assert unit[5:] == (1, -1, 0)
        position += unit[1]
    # The last unit and a blank mark the end (`CompactionAppendMessageCallback`).
    assert JAVA_UNIT.unpack_from(units[0].read_bytes(), 19 * 46) == (-1, 0, 0, 0, 0, 0, -1, 0)
    assert Struct(">II").unpack_from(logs[0].read_bytes(), position) == (5520 - position, 0xCBD43194)


def test_java_sizes_of_files() -> None:
    sizes = file_sizes(StoreConfig(Path("/nowhere")))
    # CompactionLog.getCompactionLogSize of 100 MiB and 10 MiB.
    assert sizes == (104_857_460, 10_485_746)


def test_other_file_sizes_than_before(open_compacted: OpenStore, tmp_path: Path) -> None:
    store = open_compacted()
    put_key(store, "key", b"value")
    copy(store)
    store.close()
    config = small_config(tmp_path, compaction_mapped_file_size=10_000)
    with pytest.raises(StoreError, match="compactionMappedFileSize"):
        MessageStore(config, STORE_HOST, compaction_topics=lambda: ["state"]).open()


@pytest.mark.parametrize(
    "content_of_file", [b"{:}", b"[1]", b'{"queueOffsetMap":[]}', b'{"queueOffsetMap":{"state_0":"x"}}']
)
def test_damaged_positions_compact_all_messages_again(
    tmp_path: Path, open_compacted: OpenStore, content_of_file: bytes
) -> None:
    store = open_compacted()
    for i in range(60):
        put_key(store, f"key-{i % 7}", b"%d" % i)
    copy(store)
    compact(store)
    store.close()
    for path in (tmp_path / "compaction").glob("position-checkpoint*"):
        path.write_bytes(content_of_file)
    store = open_compacted()
    found = content(store)
    assert {i: b"%d" % i for i in range(53, 60)}.items() <= found.items()
    compact(store)
    assert content(store) == found


@pytest.mark.parametrize("listed", [b"0", b"0;x", b"0;0;0", b"\xff;0", b"0;40"])
def test_a_damaged_list_of_replaced_files(tmp_path: Path, open_compacted: OpenStore, listed: bytes) -> None:
    store = open_compacted()
    put_key(store, "key", b"value")
    copy(store)
    store.close()
    log = tmp_path / "compaction" / "compactionLog" / "state" / "0"
    (log / "compacting").mkdir()
    (log / "compacting" / "replaced").write_bytes(listed)
    with pytest.raises(StoreError, match=r"replaced is damaged.* Move .* away"):
        open_compacted()
    assert (log / ("0" * 20)).exists()
    shutil.rmtree(tmp_path / "compaction")
    store = open_compacted()
    copy(store)
    assert content(store) == {0: b"value"}


def damage_unit(tmp_path: Path, number: int, **damage: int) -> None:
    """Changes fields of a unit of the first file. Without fields, the unit becomes zero."""
    path = tmp_path / "compaction" / "compactionCq" / "state" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    names = ("physical_offset", "size", "tags_code", "store_time", "queue_offset")
    fields = list(JAVA_UNIT.unpack_from(data, number * 46)) if damage else [0] * 8
    for name, value in damage.items():
        fields[names.index(name)] = value
    JAVA_UNIT.pack_into(data, number * 46, *fields)
    path.write_bytes(data)


def close_with_40_messages(store: MessageStore) -> None:
    """Adds messages with 40 keys, of which the first file gets 19, and two tags codes."""
    for i in range(40):
        put_key(store, f"key-{i}", b"%d" % i, tags_code=i % 2)
    copy(store)
    store.close()


@pytest.mark.parametrize("number", [0, 1, 7, 9, 10, 12, 15, 17, 18])
@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"queue_offset": 1 << 40},
        {"queue_offset": -5},
        {"queue_offset": 0},
        {"queue_offset": 3},
        {"queue_offset": 17},
        {"size": 0x7FFFFFFF},
        {"size": 0},
        {"physical_offset": 1 << 40},
    ],
    ids=str,
)
def test_a_damaged_unit_hides_no_other_message(
    tmp_path: Path, open_compacted: OpenStore, number: int, damage: dict[str, int]
) -> None:
    close_with_40_messages(open_compacted())
    damage_unit(tmp_path, number, **damage)
    store = open_compacted()
    expected = {i: b"%d" % i for i in range(40)}
    assert {**content(store), number: b"%d" % number} == expected
    # Each message can also be read alone, and is the first one after the one before it.
    queue = store.queue("state", 0)
    for i in expected.keys() - {number}:
        found = store.get(queue, i, 1, 1 << 20)
        assert [decode_record(each).queue_offset for each in found.buffers] == [i]
    copy(store)
    assert {**content(store), number: b"%d" % number} == expected


def test_many_damaged_units_hide_no_other_message(tmp_path: Path, open_compacted: OpenStore) -> None:
    close_with_40_messages(open_compacted())
    damaged = [0, *range(3, 9), *range(11, 17)]
    for number in damaged:
        damage_unit(tmp_path, number, **({"size": 5} if number % 3 else {}))
    store = open_compacted()
    copy(store)
    sound = [i for i in range(40) if i not in damaged]
    assert sorted(content(store)) == sound
    queue = store.queue("state", 0)
    for i in range(40):
        found = store.get(queue, i, 1, 1 << 20)
        assert decode_record(found.buffers[0]).queue_offset == min(each for each in sound if each >= i)


@pytest.mark.parametrize("number", [3, 7, 8, 18])
@pytest.mark.parametrize("queue_offset", [0, 6, 17])
@pytest.mark.parametrize("wanted", [0, 1])
def test_a_damaged_unit_hides_no_message_with_another_tag(
    tmp_path: Path, open_compacted: OpenStore, number: int, queue_offset: int, wanted: int
) -> None:
    close_with_40_messages(open_compacted())
    damage_unit(tmp_path, number, queue_offset=queue_offset)
    store = open_compacted()
    queue = store.queue("state", 0)
    offset, found = 0, []
    while offset < 40:
        result = store.get(queue, offset, 32, 1 << 20, frozenset({wanted}))
        found += [decode_record(each).queue_offset for each in result.buffers]
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    assert found == [i for i in range(wanted, 40, 2) if i != number]
