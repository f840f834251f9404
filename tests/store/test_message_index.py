"""The key index.

The tests cover Java's format, search, building in slices, crashes, full disks and damage.
"""

from __future__ import annotations

import errno
import random
import shutil
import struct
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import BOTH, use_python
from store_support import LOG_FILE, STORE_HOST, crash, finish, limit_entries_read, log_files, open_store, put

from gantrymq.errors import StoreError
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.record import encode_host
from gantrymq.store import index_entries, message_index, message_writer
from gantrymq.store.checkpoint import load_checkpoint
from gantrymq.store.config import StoreConfig
from gantrymq.store.index_file import IndexFile
from gantrymq.store.index_keys import KeyHash, keys_of
from gantrymq.store.key_lookup import by_key, by_tags, by_unique_key
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify
from gantrymq.system import files

#: Written by Java 5.5.0 with maxHashSlotNum=50, maxIndexNum=41, enabledAppendPropCRC=true: 64 messages of Fruit and
#: Nut, with and without keys, in two scripts.
ARCHIVE = Path(__file__).parent / "java_store" / "index.tar.xz"
FOREVER = 1 << 62


@pytest.fixture(
    autouse=True,
    params=BOTH,
)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every test with native code and with Python."""
    if request.param == "python":
        use_python(monkeypatch, index_entries)


def properties(unique: str = "", keys: str = "", tags: str = "") -> bytes:
    found = {"UNIQ_KEY": unique, "KEYS": keys, "TAGS": tags}
    return "".join(f"{name}\x01{value}\x02" for name, value in found.items() if value).encode()


def find(store: MessageStore, topic: str, key: str, begin: int = 0, end: int = FOREVER, limit: int = 64) -> list[bytes]:
    return [store.read_record(at).body for at in finish(store.keys.find(by_key(topic, key, begin, end, limit)))]


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


@pytest.fixture
def store(tmp_path: Path):
    store = open_store(tmp_path / "store")
    yield store
    store.close()


# -- Java's files ----------------------------------------------------------------------------------------------------


def java_store(root: Path, **options) -> MessageStore:
    config = StoreConfig(
        root,
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=50,
        max_index_num=41,
        **options,
    )
    store = MessageStore(config, STORE_HOST)
    store.open()
    return store


@pytest.fixture
def java_root(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_built_as_java_built_it(java_root):
    before = [path.read_bytes() for path in index_files(java_root)]
    assert len(before) == 5
    shutil.rmtree(java_root / "index")
    store = java_store(java_root)
    assert store.keys.build_index(60)
    store.close()
    assert [path.read_bytes() for path in index_files(java_root)] == before


@pytest.mark.parametrize("aborted", [False, True])
def test_javas_index_is_used(java_root, aborted):
    before = {path: path.read_bytes() for path in index_files(java_root)}
    if aborted:
        (java_root / "abort").write_text("1")
    store = java_store(java_root)
    assert find(store, "Fruit", "订单3") == [b"body 3"]
    assert find(store, "Nut", "hot") == [b"body 0", b"body 20", b"body 40"]
    assert len(finish(store.keys.find(by_tags("Nut", "A", 0, FOREVER, 64)))) == 15
    put(store, store.queue("Nut", 0), b"ours", properties=properties(keys="hot"))
    assert find(store, "Nut", "hot")[-1] == b"ours"
    store.close()
    after = {path: path.read_bytes() for path in index_files(java_root)}
    assert sorted(after.values())[:5] == sorted(before.values())
    assert len(after) == 6


def test_javas_checksums(java_root):
    shutil.rmtree(java_root / "consumequeue")
    store = java_store(java_root, force_verify_prop_crc=True)
    assert store.max_physical_offset == 14570
    store.close()


@given(st.text())
def test_hash(text):
    expected = string_hash_code(text)
    assert KeyHash()(text.encode()) == (abs(expected) if expected != -(2**31) else 0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", 0),
        ("T#k", 81916),
        ("polygenelubricants", 0),  # Its hash code is -2**31, which Java's abs leaves negative.
        ("TopicTest#7F00000100002A139B0A18B4AAC20000", None),
        ("订单#3", None),
        ("x" * 40_000, None),
    ],
)
def test_hash_of(key, expected):
    assert KeyHash()(key.encode()) == (abs(string_hash_code(key)) if expected is None else expected)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"", []),
        (b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02TAGS\x01t\x02", [b"u", b"a", b"b", b"T#t"]),
        (b"UNIQ_KEY\x01\x02KEYS\x01  \x02TAGS\x01\x02", []),
        (b"MYKEYS\x01a\x02X\x01KEYS\x02TAGS\x01t", [b"T#t"]),
        (b"KEYS\x01a", [b"a"]),
        (b"KEYS", []),
    ],
)
def test_keys_of(properties, expected):
    assert keys_of(properties) == expected


# -- search ----------------------------------------------------------------------------------------------------------


def test_found_by_each_of_its_keys(store):
    queue = store.queue("T", 0)
    put(store, queue, b"one", properties=properties("U1", "a b  c"))
    put(store, queue, b"two", properties=properties("U2", "b"))
    put(store, queue, b"three", properties=properties(tags="b"))
    put(store, store.queue("Other", 0), b"other", properties=properties("U1", "a"))
    assert find(store, "T", "a") == [b"one"]
    assert find(store, "T", "b") == [b"one", b"two"]
    assert find(store, "T", "c") == find(store, "T", "U1") == [b"one"]
    assert find(store, "T", "a b  c") == find(store, "T", "d") == find(store, "T", "") == find(store, "", "a") == []
    assert find(store, "T", "a", limit=0) == find(store, "T", "\ud800") == []
    unique = finish(store.keys.find(by_unique_key("T", "U2")))
    assert [store.read_record(at).body for at in unique] == [b"two"]
    assert finish(store.keys.find(by_unique_key("T", "b"))) == []
    tagged = finish(store.keys.find(by_tags("T", "b", 0, FOREVER, 64)))
    assert [store.read_record(at).body for at in tagged] == [b"three"]


@pytest.mark.parametrize("was_javas", [False, True])
def test_half_messages_of_batches_are_left_out(tmp_path, monkeypatch, was_javas):
    half_topic, mark = "RMQ_SYS_TRANS_HALF_TOPIC", b"GANTRY_HALF\x01true\x02"
    with monkeypatch.context() as javas:
        if was_javas:
            javas.setattr(index_entries, "is_left_out", lambda *_: False)
            use_python(javas, index_entries)
        store = open_store(tmp_path / "store")
        put(store, store.queue(half_topic, 0), b"alone", properties=properties("U0", "a"))
        put(store, store.queue(half_topic, 0), b"of a batch", properties=properties("U1", "a") + mark)
        put(store, store.queue("orders", 0), b"not of one", properties=properties("U2", "a") + mark)
        assert find(store, half_topic, "a") == ([b"alone", b"of a batch"] if was_javas else [b"alone"])
        assert find(store, "orders", "a") == [b"not of one"]
        store.close()
    store = open_store(tmp_path / "store")
    put(store, store.queue(half_topic, 0), b"another", properties=properties("U3", "b") + mark)
    put(store, store.queue("orders", 0), b"last", properties=properties("U4", "b"))
    assert (find(store, half_topic, "b"), find(store, "orders", "b")) == ([], [b"last"])
    assert find(store, half_topic, "U0") == [b"alone"]
    store.close()
    assert verify(store.config).problems == []


def test_other_keys_of_the_same_hash_are_not_found(store):
    assert string_hash_code("T#Aa") == string_hash_code("T#BB")
    put(store, store.queue("T", 0), b"Aa", properties=properties(keys="Aa"))
    put(store, store.queue("T", 0), b"BB", properties=properties(keys="BB"))
    assert find(store, "T", "Aa") == [b"Aa"]
    assert find(store, "T", "BB") == [b"BB"]


def test_the_same_key_twice_is_one_message(store):
    put(store, store.queue("T", 0), b"x", properties=properties("k", "k k j k"))
    assert find(store, "T", "k") == [b"x"]


def test_transactions(store):
    for flag, body in ((4, b"prepared"), (8, b"committed"), (12, b"rolled back")):
        put(store, store.queue("T", 0), body, sys_flag=flag, properties=properties(keys="k"))
    assert find(store, "T", "k") == [b"prepared", b"committed"]


def test_records_of_another_layout(store):
    put(store, store.queue("T", 0), b"v6", properties=properties(keys="k"), born_host=encode_host("::1", 1))
    long = "L" * 200
    put(store, store.queue(long, 0), b"long", properties=properties(keys="k"))
    assert find(store, "T", "k") == [b"v6"]
    assert find(store, long, "k") == [b"long"]


def test_newest_within_the_time(store, monkeypatch):
    """300 messages in several files, one every 100 ms. Each has its own key and a common one."""
    queue = store.queue("T", 0)
    for n in range(300):
        monkeypatch.setattr(message_writer, "time", lambda n=n: 1_700_000_000 + n / 10)
        put(store, queue, b"%d" % n, properties=properties(keys=f"k{n} all"))
    assert store.keys.build_index(60)
    base = 1_700_000_000_000
    assert find(store, "T", "all", limit=3) == [b"297", b"298", b"299"]
    assert len(find(store, "T", "all", limit=1000)) == 64
    for begin, end in ((0, 0), (50, 57), (100, 120), (290, 400), (131, 131)):
        found = find(store, "T", "all", base + begin * 100, base + end * 100)
        assert found == [b"%d" % n for n in range(begin, min(end, 299) + 1)], (begin, end)
    for n in range(0, 300, 7):
        assert find(store, "T", f"k{n}", base + n * 100, base + n * 100) == [b"%d" % n]
        assert find(store, "T", f"k{n}", base + n * 100 + 1, FOREVER) == []
        assert find(store, "T", f"k{n}", 0, base + n * 100 - 1) == []


def test_a_walk_ends(store, monkeypatch, caplog):
    limit_entries_read(monkeypatch, 20)
    for n in range(100):
        put(store, store.queue("T", 0), b"%d" % n, properties=properties(keys="old" if n == 0 else "all"))
    assert len(find(store, "T", "all")) == 20
    assert "gave up" in caplog.text


def test_disabled(tmp_path):
    store = open_store(tmp_path, message_index_enable=False)
    put(store, store.queue("T", 0), b"x", properties=properties("k"))
    assert store.keys.build_index(1)
    assert store.keys.index_behind_bytes == 0
    assert find(store, "T", "k") == []
    store.close()
    assert not (tmp_path / "index").exists()
    # If the index is enabled later, it also contains earlier messages.
    store = open_store(tmp_path)
    assert find(store, "T", "k") == [b"x"]
    store.close()


# -- building --------------------------------------------------------------------------------------------------------


def test_built_in_slices(store):
    queue = store.queue("T", 0)
    # A slice of native code has up to 512 records.
    for n in range(4000):
        put(store, queue, b"%d" % n, properties=properties(f"U{n}"))
    behind = store.keys.index_behind_bytes
    assert behind == store.max_physical_offset
    rounds = 0
    while not store.keys.build_index(0):
        assert store.keys.index_behind_bytes < behind
        behind = store.keys.index_behind_bytes
        rounds += 1
    assert rounds > 10
    assert store.keys.index_behind_bytes == 0
    assert store.keys.index_last_update == (store.store_time(queue, 3999), queue.unit(3999)[0])
    assert find(store, "T", "U0") == [b"0"]
    assert find(store, "T", "U3999") == [b"3999"]


def test_append_leaves_the_index_alone(tmp_path, store):
    put(store, store.queue("T", 0), b"x", properties=properties("k"))
    assert not (tmp_path / "store" / "index").exists()


def fill(root: Path, count: int = 700, **options) -> dict[str, list[bytes]]:
    """Creates a closed store with its index, and returns {key: bodies}, oldest first."""
    rng = random.Random(3)
    store = open_store(root, **options)
    expected: dict[str, list[bytes]] = {}
    for n in range(count):
        keys = [f"U{n}", *rng.sample([f"k{i}" for i in range(60)], rng.randrange(3))]
        body = b"%d" % n
        for key in keys:
            expected.setdefault(key, []).append(body)
        put(store, store.queue("T", n % 3), body, properties=properties(keys[0], " ".join(keys[1:])))
    assert store.keys.build_index(60)
    store.close()
    return expected


def check(store: MessageStore, expected: dict[str, list[bytes]]) -> None:
    while not store.keys.build_index(60):
        pass
    for key, bodies in expected.items():
        assert find(store, "T", key) == bodies, key


@pytest.mark.parametrize("aborted", [False, True])
def test_opened_again(tmp_path, aborted):
    expected = fill(tmp_path)
    before = [path.read_bytes() for path in index_files(tmp_path)]
    assert len(before) > 3
    if aborted:
        (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    # After a clean close the index is complete. After a crash only its last file must be built again.
    assert (store.keys.index_behind_bytes == 0) == (not aborted)
    assert store.keys.index_behind_bytes < store.max_physical_offset // 2
    check(store, expected)
    store.close()
    assert [path.read_bytes() for path in index_files(tmp_path)] == before


def test_full_files_get_into_the_checkpoint(tmp_path):
    fill(tmp_path)
    last = index_files(tmp_path)[-1].read_bytes()
    begin = struct.unpack_from(">q", last)[0]
    assert 0 < load_checkpoint(tmp_path / "checkpoint").index_msg_timestamp <= begin


def test_unflushed_files_are_built_anew_after_a_crash(tmp_path):
    store = open_store(tmp_path, flush_interval_consume_queue_ms=60_000)
    for n in range(600):
        put(store, store.queue("T", 0), b"%d" % n, properties=properties(f"U{n}"))
    assert store.keys.build_index(60)
    crash(store)
    before = [path.read_bytes() for path in index_files(tmp_path)]
    # A power failure before these pages were written.
    for path in index_files(tmp_path):
        path.write_bytes(path.read_bytes()[:40] + bytes(path.stat().st_size - 40))
    store = open_store(tmp_path)
    assert store.keys.index_behind_bytes == store.max_physical_offset
    check(store, {f"U{n}": [b"%d" % n] for n in range(600)})
    crash(store)
    assert [path.read_bytes()[40:] for path in index_files(tmp_path)] == [data[40:] for data in before]


def test_goes_on_within_a_records_keys(tmp_path, monkeypatch):
    """The index file is full after the first key of a record.

    The disk is full before the blocks of the next file are reserved.
    """
    store = open_store(tmp_path, max_index_num=4)
    queue = store.queue("T", 0)
    put(store, queue, b"first", properties=properties("a", "b"))
    put(store, queue, b"second", properties=properties("c", "d e"))

    def full(fd, start, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    need_file = IndexFile.need_file
    begun = set()

    def first_file_only(self, end=0):
        begun.add(self.path)
        if len(begun) > 1:
            monkeypatch.setattr(files, "allocate", full)
        need_file(self, end)

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "need_file", first_file_only)
        assert not store.keys.build_index(60)
    assert store.keys.index_behind_bytes > 0
    assert len(index_files(tmp_path)) == 1
    monkeypatch.undo()
    store.close()
    store = open_store(tmp_path, max_index_num=4)
    check(store, {"a": [b"first"], "b": [b"first"], "c": [b"second"], "d": [b"second"], "e": [b"second"]})
    store.close()
    entries = [
        struct.unpack_from(">iq", path.read_bytes(), 40 + 64 * 4 + 20 * n)
        for path in index_files(tmp_path)
        for n in (1, 2, 3)
    ]
    hashes = [abs(string_hash_code(f"T#{key}")) for key in "abcde"]
    assert [key_hash for key_hash, _ in entries] == [*hashes, 0]


def test_waits_while_the_disk_is_full(store, monkeypatch, caplog):
    for n in range(300):
        put(store, store.queue("T", 0), b"%d" % n, properties=properties(f"U{n}"))
    with monkeypatch.context() as patch:

        def full(fd, start, length):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(files, "allocate", full)
        for _ in range(3):
            assert not store.keys.build_index(60)
        assert find(store, "T", "U299") == []
    assert caplog.text.count("the index waits") == 1
    assert find(store, "T", "U299") == [b"299"]
    assert find(store, "T", "U0") == [b"0"]


def test_names_rise_though_the_clock_goes_back(tmp_path, store, monkeypatch):
    store.queue("T", 0)
    for second in (100, 50, 50):
        monkeypatch.setattr(message_index.clock, "time", lambda second=second: second)
        for n in range(256):
            put(store, store.queue("T", 0), b"", properties=properties(f"U{n}"))
        assert store.keys.build_index(60)
    names = [path.name for path in index_files(tmp_path / "store")]
    assert len(names) == 4
    assert names == sorted(set(names))
    assert len(find(store, "T", "U7")) == 3


def test_the_entries_of_a_part_of_the_log(store, monkeypatch):
    """They are read without a mapping, whose page faults would block the event loop."""
    queue = store.queue("T", 0)
    places = [put(store, queue, b"", properties=properties(f"U{n}")).physical_offset for n in range(600)]
    assert store.keys.build_index(60)

    def no_mapping(fd, size):
        raise AssertionError("a file is mapped")

    monkeypatch.setattr(files, "map_file", no_mapping)
    for begin, end in ((0, 600), (100, 300), (255, 256), (590, 600)):
        stop = places[end] if end < 600 else store.max_physical_offset
        data = b"".join(store.index_entries_between(places[begin], stop))
        assert [entry[1] for entry in struct.iter_unpack(">iqii", data)] == places[begin:end]


def test_a_replica_is_reset_while_its_index_is_read(store):
    queue = store.queue("T", 0)
    for n in range(600):
        put(store, queue, b"", properties=properties(f"U{n}"))
    assert store.keys.build_index(60)
    entries = store.index_entries_between(0, store.max_physical_offset)
    assert next(entries)
    store.set_slave(True)
    store.replica.begin_anew(0)
    assert list(entries) == []


# -- damaged and replaced files ---------------------------------------------------------------------------------------


def test_other_sizes_mean_a_new_index(tmp_path):
    expected = fill(tmp_path)
    store = open_store(tmp_path, max_hash_slot_num=10, max_index_num=500)
    assert store.keys.index_behind_bytes == store.max_physical_offset
    check(store, expected)
    store.close()


def test_a_lost_log_means_a_new_index(tmp_path):
    fill(tmp_path)
    for path in log_files(tmp_path):
        path.unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"new", properties=properties("k1"))
    assert find(store, "T", "k1") == [b"new"]
    assert find(store, "T", "k2") == []
    store.close()


def test_a_record_that_is_none_costs_its_file_only(tmp_path):
    expected = fill(tmp_path, 900)
    shutil.rmtree(tmp_path / "index")
    assert len(log_files(tmp_path)) >= 2
    with log_files(tmp_path)[0].open("r+b") as file:
        file.write(b"damage")
    store = open_store(tmp_path)
    while not store.keys.build_index(60):
        pass
    assert store.keys.index_behind_bytes == 0
    first = store.read_record(LOG_FILE)
    assert find(store, "T", f"U{first.body.decode()}") == [first.body]
    assert find(store, "T", "U5") == []
    store.close()
    assert expected


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_damage(data):
    """A search returns no wrong message and raises nothing, and new messages are found."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        expected = fill(root, 150)
        path = data.draw(st.sampled_from(index_files(root)))
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans(), "cut"):
            del content[data.draw(st.integers(0, len(content)), "at") :]
        for _ in range(data.draw(st.integers(0, 3), "flips") if content else 0):
            at = data.draw(st.integers(0, min(len(content) - 1, 400)) | st.integers(0, len(content) - 1), "at")
            content[at] ^= data.draw(st.integers(1, 255), "bits")
        path.write_bytes(content)
        if data.draw(st.booleans(), "aborted"):
            (root / "abort").write_text("1")
        try:
            store = open_store(root)
        except StoreError:
            return
        try:
            for key, bodies in expected.items():
                assert set(find(store, "T", key)) <= set(bodies)
            for n in range(300):
                put(store, store.queue("T", 0), b"new %d" % n, properties=properties(f"N{n}"))
            assert store.keys.build_index(60)
            for n in range(0, 300, 11):
                assert find(store, "T", f"N{n}") == [b"new %d" % n]
        finally:
            store.close()
