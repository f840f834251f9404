"""Searches by key in steps, with changes between the steps.

The tests also cover errors while the index is built.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count, cycle
from typing import Any

import pytest
from constants import change_constant
from step_timer import StepTimer
from store_support import finish, flushed, limit_entries_read, mapped_files, open_store, put
from wait_until import wait_until

from gantrymq.errors import StoreError
from gantrymq.store import index_file, retention
from gantrymq.store.index_file import ENTRY, ENTRY_SIZE, HEADER_SIZE, read_header
from gantrymq.store.index_keys import KeyHash
from gantrymq.store.key_lookup import by_key
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.message_index import MessageIndex, index_paths
from gantrymq.store.message_store import MessageStore
from gantrymq.system import files

FOREVER = 1 << 62
#: "Aa" and "BB" have the same hash code, and so have all keys made of them.
COLLIDING = ["".join(("Aa", "BB")[n >> bit & 1] for bit in range(10)) for n in range(1024)]


def properties(*keys: str) -> bytes:
    return b"KEYS\x01" + " ".join(keys).encode() + b"\x02"


def put_keys(store: MessageStore, keys: list[str], per_message: int = 256) -> None:
    for at in range(0, len(keys), per_message):
        put(store, store.queue("T", 0), b"%d" % at, properties=properties(*keys[at : at + per_message]))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """A store with 150,000 index entries that share one hash code."""
    store = open_store(
        tmp_path_factory.mktemp("crowded"),
        mapped_file_size_commit_log=64 << 20,
        max_hash_slot_num=100,
        max_index_num=100_000,
        max_msgs_num_batch=1_000_000,
    )
    put(store, store.queue("T", 0), b"the oldest", properties=properties(COLLIDING[0]))
    keys = cycle(COLLIDING[1:])
    put_keys(store, [next(keys) for _ in range(150_000)])
    assert store.keys.build_index(600)
    yield store
    store.close()


def test_no_step_takes_long(crowded):
    """The search reads 150,000 entries before it finds the right one, in steps of a few milliseconds."""
    longest = []
    for _ in range(3):
        timer, steps, began = StepTimer(), 0, time.thread_time()
        search = crowded.keys.find(by_key("T", COLLIDING[0], 0, FOREVER, 64))
        while True:
            steps += 1
            try:
                with timer.step():
                    next(search)
            except StopIteration as e:
                found = e.value
                break
        took = time.thread_time() - began
        longest.append(timer.longest)
        assert [crowded.read_record(at).body for at in found] == [b"the oldest"]
        assert steps >= took / 0.05
        assert steps > 3
    assert min(longest) < 0.025


def test_a_body_is_not_read(crowded, monkeypatch):
    """A search reads no bodies.

    Only one record has the key. The bodies of the others can have 4 MB each.
    """
    monkeypatch.setattr("gantrymq.protocol.record.decode_record", None)
    assert len(finish(crowded.keys.find(by_key("T", COLLIDING[5], 0, FOREVER, 10)))) == 10


def test_a_search_that_is_given_up(crowded):
    search = crowded.keys.find(by_key("T", COLLIDING[0], 0, FOREVER, 64))
    next(search)
    search.close()
    directory = crowded.config.index_directory
    assert set(mapped_files(directory)) <= {index_paths(directory)[-1]}


def test_too_many_entries(crowded, monkeypatch, caplog):
    limit_entries_read(monkeypatch, 1000)
    assert finish(crowded.keys.find(by_key("T", COLLIDING[0], 0, FOREVER, 64))) == []
    assert "gave up looking for" in caplog.text


# -- between two steps -----------------------------------------------------------------------------------------------


@pytest.fixture
def stepwise(monkeypatch):
    """Makes each entry a separate step."""
    change_constant(monkeypatch, "message_index._STEPS", 1)
    change_constant(monkeypatch, "key_lookup._STEP_S", 0)


def has_only_live_files(store: MessageStore) -> bool:
    """Whether each file of the index, except the last one, has records that are in the log."""
    paths = index_paths(store.config.index_directory)
    try:
        return all(read_header(path).end_phy_offset >= store.min_physical_offset for path in paths[:-1])
    except StoreError:
        return False  # A file was deleted after it was listed.


@pytest.mark.usefixtures("stepwise")
@pytest.mark.parametrize("seed", range(10))
def test_the_store_goes_on_meanwhile(tmp_path, monkeypatch, seed):
    """Meanwhile messages are stored, files of log and index are filled and deleted, and other searches run.

    Messages that exist all the time are found.
    """
    rng = random.Random(seed)
    used = 10.0
    monkeypatch.setattr(retention, "used_percent", lambda path: used)
    store = open_store(tmp_path, max_msgs_num_batch=1_000_000, flush_interval_commit_log_ms=1)
    queue = store.queue("T", 0)
    expected: list[int] = []

    def message() -> None:
        key = rng.choice(COLLIDING[:3])
        result = put(store, queue, bytes(rng.randrange(3000)), properties=properties(key))
        if key == COLLIDING[0]:
            expected.append(result.physical_offset)

    for _ in range(300):
        message()
    flushed(store)
    assert store.keys.build_index(60)
    at_begin = list(expected)
    searches = [store.keys.find(by_key("T", COLLIDING[0], 0, FOREVER, 1 << 30)) for _ in range(3)]
    found: list[list[int]] = []
    while searches:
        search = rng.choice(searches)
        try:
            next(search)
        except StopIteration as e:
            searches.remove(search)
            found.append(e.value)
        if rng.random() < 0.2:
            message()
            store.keys.build_index(rng.choice((0, 1)))
        if rng.random() < 0.05:
            used = 86.0
            store.clean(0)
            used = 10.0
    for offsets in found:
        assert offsets == sorted(set(offsets))
        assert set(offsets) <= set(expected)
        assert {at for at in at_begin if at >= store.min_physical_offset} <= set(offsets)
    assert store.min_physical_offset > 0
    # Reading did not restore a deleted file.
    wait_until(lambda: has_only_live_files(store))
    store.close()


@pytest.mark.usefixtures("stepwise")
def test_the_store_is_closed_meanwhile(tmp_path):
    store = open_store(tmp_path)
    put_keys(store, COLLIDING, 64)
    assert store.keys.build_index(60)
    search = store.keys.find(by_key("T", COLLIDING[-1], 0, FOREVER, 64))
    next(search)
    next(search)
    assert mapped_files(tmp_path / "index")
    store.close()
    with suppress(StoreError):
        finish(search)
    assert not mapped_files(tmp_path / "index")


def fails_at(turn: int, original: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Returns a wrapper of `original` that raises `error` in call number `turn`."""
    calls = count()

    def fail(*args, **options):
        if next(calls) == turn:
            raise error
        return original(*args, **options)

    return fail


# -- building --------------------------------------------------------------------------------------------------------


def indexed_offsets(store: MessageStore) -> list[int]:
    """Returns the physical offset of each entry in the files of the index, in order."""
    found = []
    for path in index_paths(store.config.index_directory):
        data = path.read_bytes()
        start = HEADER_SIZE + 4 * store.config.max_hash_slot_num
        numbers = range(1, read_header(path).index_count)
        found += [ENTRY.unpack_from(data, start + number * ENTRY_SIZE)[1] for number in numbers]
    return found


@pytest.mark.parametrize(("length", "count"), [(150, 15_000), (32_000, 70)])
def test_hash_codes_of_many_keys_are_not_kept(length, count):
    """The starts of keys are cached, but only a limited number of short ones."""
    key_hash = KeyHash()
    for n in range(count):
        key_hash(b"%0*d" % (length, n * 10_000))
    assert sum(map(len, key_hash.heads)) < 2_000_000


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), OSError(errno.EIO, "Error"), StoreError("x"), ValueError()],
    ids=repr,
)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (MappedFile, "map"),
        (MappedFile, "reserve"),
        (index_file.IndexFile, "put"),
        (index_file.IndexFile, "write_header"),
        (MessageIndex, "_roll"),
        (files, "map_file"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_whatever_fails_the_index_goes_on(tmp_path, monkeypatch, owner, name, error):
    """The error occurs in the first call, the second call, and so on. In the end each key is found once."""
    store = open_store(tmp_path, max_index_num=32)
    for n in range(60):
        put(store, store.queue("T", 0), b"%d" % n, properties=properties(f"a{n}", f"b{n}", f"c{n}"))
    original = getattr(owner, name)
    failed = 0
    for turn in range(20):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fails_at(turn, original, error))
            change_constant(patch, "index_entries._RECORDS", 3)
            try:
                store.keys.build_index(0)
            except (OSError, StoreError, ValueError):
                failed += 1
    assert failed
    assert store.keys.build_index(60)
    assert store.keys.index_behind_bytes == 0
    entries = indexed_offsets(store)
    assert len(entries) == 180
    assert entries == sorted(entries)
    for n in range(60):
        for key in "abc":
            (at,) = finish(store.keys.find(by_key("T", f"{key}{n}", 0, FOREVER, 64)))
            assert store.read_record(at).body == b"%d" % n
    store.close()
    store = open_store(tmp_path, max_index_num=32)
    assert store.keys.index_behind_bytes == 0
    store.close()


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        (lambda n: [str(i % 100) for i in range(10_000)], 10_000),
        (lambda n: [f"{n:032000d}"], 1),
        (lambda n: ["\u00fc" * 15_000 + str(n)], 1),
        (lambda n: [f"{n}-{i}" for i in range(2048)], 2048),
    ],
    ids=["many", "long", "not ASCII", "a slice"],
)
def test_a_slice_is_bounded_whatever_the_keys_are(tmp_path, keys, count):
    """A broker interrupts the build after a few milliseconds.

    It does not keep the hash codes that it has computed.
    """
    messages = 60
    store = open_store(
        tmp_path, mapped_file_size_commit_log=8 << 20, max_hash_slot_num=1000, max_index_num=messages * count + 7
    )
    for n in range(messages):
        put(store, store.queue("T", 0), b"%d" % n, properties=properties(*keys(n)))
    slices = []
    done = False
    while not done:
        timer = StepTimer()
        with timer.step():
            done = store.keys.build_index(0)
        slices.append(timer.longest)
    assert sorted(slices)[-3] < 0.025
    entries = indexed_offsets(store)
    assert len(entries) == messages * count
    assert entries == sorted(entries)
    for n in (0, messages - 1):
        found = finish(store.keys.find(by_key("T", keys(n)[-1], 0, FOREVER, 64)))
        assert b"%d" % n in [store.read_record(at).body for at in found]
    store.close()
