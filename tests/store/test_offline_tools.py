"""The tools inspect, verify, dump and rebuild.

The tests cover their results. The first three tools write nothing.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_code import BOTH, use_python
from store_support import LOG_FILE, UNITS_PER_FILE, log_files, open_store, put, queue_files, read_all, small_config

from gantrymq.errors import StoreError, StoreLocked
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.record import encode_host
from gantrymq.store import index_entries, log_reader, message_writer
from gantrymq.store.config import StoreConfig
from gantrymq.store.dump import MessageFilter, dump
from gantrymq.store.offline import inspect, is_in_use
from gantrymq.store.rebuild import rebuild
from gantrymq.store.verify import Report, verify

TAG = string_hash_code("a")


@pytest.fixture(
    autouse=True,
    scope="module",
    params=BOTH,
)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs every test with native code and with Python."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            use_python(patch, log_reader)
        yield


def fill(root: Path, count: int = 250) -> StoreConfig:
    """Creates a closed store: messages in 4 queues, several files of each kind, and the index."""
    store = open_store(root)
    for n in range(count):
        queue = store.queue(("T", "U")[n % 2], n // 2 % 2)
        properties = b"UNIQ_KEY\x01u%d\x02KEYS\x01k%d all\x02TAGS\x01a\x02" % (n, n % 5)
        put(store, queue, b"%d " % n + bytes(2 * n), properties=properties, tags_code=TAG, sys_flag=4 * (n % 50 == 33))
    assert store.keys.build_index(60)
    store.close()
    return small_config(root)


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# -- inspect ---------------------------------------------------------------------------------------------------------


def test_inspect(tmp_path):
    summary = inspect(fill(tmp_path))
    assert (summary.in_use, summary.was_closed) == (False, True)
    assert [file.base for file in summary.log_files] == [0, LOG_FILE]
    assert {(queue.topic, queue.queue_id, queue.max_offset) for queue in summary.queues} == {
        ("T", 0, 63),
        ("T", 1, 62),
        ("U", 0, 60),
        ("U", 1, 60),
    }
    assert sum(header.index_count - 1 for _, header in summary.index_files) == 4 * 250
    assert summary.disk_bytes > 0
    with pytest.raises(StoreError, match="has no store"):
        inspect(small_config(tmp_path / "commitlog"))


def test_in_use(tmp_path):
    assert not is_in_use(tmp_path)
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"x")
    assert is_in_use(tmp_path)
    assert inspect(store.config).in_use
    report = verify(store.config)
    assert (report.in_use, report.records, report.problems) == (True, 1, [])
    assert [message.body for message in dump(store.config, MessageFilter())] == [b"x"]
    with pytest.raises(StoreLocked):
        rebuild(store.config, cut=False)
    store.close()
    assert not is_in_use(tmp_path)


# -- verify ----------------------------------------------------------------------------------------------------------


def test_a_good_store(tmp_path):
    config = fill(tmp_path)
    before = snapshot(tmp_path)
    steps = []
    report = verify(config, lambda what, done, total: steps.append((what, done, total)))
    assert report.problems == []
    assert (report.records, report.units, report.queues) == (250, 245, 4)
    assert (report.index_files, report.index_entries) == (4, 1000)
    assert ("queues", 4, 4) in steps
    assert all(0 <= done <= total for _, done, total in steps)
    assert snapshot(tmp_path) == before


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def body_damaged(root: Path) -> None:
    change(log_files(root)[0], log_files(root)[0].read_bytes().index(b"100 "), b"\xff")


def blank_damaged(root: Path) -> None:
    content = log_files(root)[0].read_bytes()
    change(log_files(root)[0], content.rindex(struct.pack(">I", 0xCBD43194)) - 4, b"\0\0\0\1")


def log_file_missing(root: Path) -> None:
    log_files(root)[0].unlink()
    (root / "commitlog" / ("0" * 20)).write_bytes(bytes(LOG_FILE))


def unit_damaged(root: Path) -> None:
    change(queue_files(root, "T", 0)[0], 20 * 7 + 5, b"\x7f")


def unit_of_another_tag(root: Path) -> None:
    change(queue_files(root, "T", 0)[0], 20 * 7 + 12, b"\x01")


def queue_cut(root: Path) -> None:
    change(queue_files(root, "U", 1)[1], 0, bytes(UNITS_PER_FILE * 20))


def queue_file_missing(root: Path) -> None:
    queue_files(root, "U", 1)[0].unlink()


def unit_too_many(root: Path) -> None:
    change(queue_files(root, "U", 1)[1], 20 * 10, struct.pack(">qiq", 1 << 40, 100, 0))


def queue_empty(root: Path) -> None:
    for path in queue_files(root, "U", 1):
        path.unlink()


def test_an_index_that_stops_in_the_midst_of_a_records_keys(tmp_path, monkeypatch):
    """A broker can stop in the middle of a record's keys, and continues there later.

    All records before the last one must have all keys.
    """
    # Native code stops only between two records.
    use_python(monkeypatch, index_entries)
    store = open_store(tmp_path)
    for n in range(3):
        keys = " ".join(f"{n}-{number}" for number in range(1000))
        put(store, store.queue("T", 0), b"x", properties=b"KEYS\x01%b\x02" % keys.encode())
    stopped = []
    while not store.keys.build_index(0):
        store.close()
        report = verify(small_config(tmp_path))
        assert not report.problems
        stopped.append(report.index_entries)
        store = open_store(tmp_path)
    store.close()
    assert any(count % 1000 for count in stopped)
    assert verify(small_config(tmp_path)).index_entries == 3000
    assert not verify(small_config(tmp_path)).problems


def index_entry_damaged(root: Path) -> None:
    change(sorted((root / "index").iterdir())[1], 40 + 64 * 4 + 20 * 30 + 9, b"\x55")


def index_chain_damaged(root: Path) -> None:
    change(sorted((root / "index").iterdir())[1], 40 + 64 * 4 + 20 * 30 + 16, b"\0\0\0\x1f")


def index_slot_damaged(root: Path) -> None:
    change(sorted((root / "index").iterdir())[1], 40 + 4 * 9, b"\0\0\0\1")


def index_header_damaged(root: Path) -> None:
    change(sorted((root / "index").iterdir())[3], 36, b"\0\0\0\x30")


def index_cut(root: Path) -> None:
    path = sorted((root / "index").iterdir())[1]
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (body_damaged, "CRC32"),
        (blank_damaged, "blank"),
        (log_file_missing, "has records"),
        (unit_damaged, "T-0"),
        (unit_of_another_tag, "tags code"),
        (queue_cut, "U-1 has the queue offsets 0 to 49, but not 50"),
        (queue_file_missing, "U-1"),
        (unit_too_many, "U-1, 60: there is no record of it at 1099511627776"),
        (queue_empty, "U-1 has no units"),
        (index_entry_damaged, "index"),
        (index_chain_damaged, "follows entry 31"),
        (index_slot_damaged, "1 slots don't point"),
        (index_header_damaged, "index"),
        (index_cut, "maxIndexNum"),
    ],
)
def test_damage_is_found(tmp_path, damage, words):
    config = fill(tmp_path)
    damage(tmp_path)
    before = snapshot(tmp_path)
    report = verify(config)
    assert report.problem_count > 0
    assert any(words in problem for problem in report.problems), report.problems[:5]
    assert snapshot(tmp_path) == before


def test_a_checkpoint_that_is_a_directory_stays(tmp_path):
    """Only a broker puts it aside, when it writes its checkpoint."""
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"x")
    store.close()
    path = tmp_path / "checkpoint"
    path.unlink()
    path.mkdir()
    assert verify(small_config(tmp_path)).problems == []
    assert path.is_dir()
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"y")
    store.close()
    assert path.is_file()
    assert path.with_name("checkpoint.damaged").is_dir()


def test_what_is_no_damage(tmp_path):
    """Deleted topics, topics that were created again, expired files, and a queue without messages."""
    store = open_store(tmp_path, flush_interval_commit_log_ms=1)
    put(store, store.queue("Quiet", 0), b"x")
    for _ in range(150):
        put(store, store.queue("T", 0), bytes(900))
        put(store, store.queue("Deleted", 0), b"x", properties=b"KEYS\x01k\x02")
        put(store, store.queue("Anew", 0), b"x")
    store.delete_topic("Deleted")
    store.delete_topic("Anew")
    put(store, store.queue("Anew", 0), b"new")
    assert store.keys.build_index(60)
    store.close()
    for path in log_files(tmp_path)[:1]:
        path.unlink()
    report = verify(small_config(tmp_path))
    assert report.problems == []
    assert report.without_unit > 100


def test_records_of_a_deleted_topic_need_no_units(tmp_path):
    """The new topic has a file without units in queue 0, and no file in queue 1."""
    store = open_store(tmp_path)
    for n in range(4):
        last = store.max_physical_offset
        put(store, store.queue("Anew", n % 2), b"old")
    end = store.max_physical_offset
    store.delete_topic("Anew")
    put(store, store.queue("Anew", 2), b"new")
    store.close()
    empty = tmp_path / "consumequeue" / "Anew" / "0" / ("0" * 20)
    empty.parent.mkdir()
    empty.write_bytes(bytes(UNITS_PER_FILE * 20))
    config = small_config(tmp_path)
    assert verify(config).problem_count == 4
    for deleted_at, count in ((end, 0), (last, 1)):
        report = verify(config, deleted_topics={"Anew": deleted_at, "Other": end})
        assert (report.problem_count, report.without_unit) == (count, 4 - count)


def test_problems_are_limited():
    report = Report()
    for n in range(5000):
        report.add(str(n))
    assert (len(report.problems), report.problem_count) == (1000, 5000)


def test_many_files(tmp_path):
    store = open_store(tmp_path)
    for n in range(300):
        put(store, store.queue("T", n), b"x")
        put(store, store.queue("T", n), b"y")
    store.close()
    report = verify(small_config(tmp_path))
    assert (report.queues, report.units, report.problems) == (300, 600, [])


# -- dump ------------------------------------------------------------------------------------------------------------


def bodies(config: StoreConfig, **options) -> list[int]:
    return [int(message.body.split()[0]) for message in dump(config, MessageFilter(**options))]


def test_dump(tmp_path):
    config = fill(tmp_path)
    before = snapshot(tmp_path)
    assert bodies(config) == list(range(250))
    assert bodies(config, topic="U") == list(range(1, 250, 2))
    assert bodies(config, topic="T", queue_id=1) == list(range(2, 250, 4))
    assert bodies(config, topic="T", queue_id=1, begin_offset=3, end_offset=5) == [14, 18]
    assert bodies(config, key="k3") == list(range(3, 250, 5))
    assert bodies(config, key="u7") == [7]
    assert bodies(config, topic="Nothing") == []
    assert snapshot(tmp_path) == before


def test_dump_by_time(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    for n in range(200):
        monkeypatch.setattr(message_writer, "time", lambda n=n: 1000 + n)
        put(store, store.queue("T", 0), b"%d " % n + bytes(1000))
    store.close()
    config = small_config(tmp_path)
    assert bodies(config, begin_ms=1_150_000, end_ms=1_152_000) == [150, 151, 152]
    assert bodies(config, begin_ms=1_199_001) == []
    assert bodies(config, end_ms=1_000_000) == [0]


def test_dump_says_where_the_log_is_damaged(tmp_path):
    config = fill(tmp_path)
    body_damaged(tmp_path)
    messages = dump(config, MessageFilter())
    with pytest.raises(StoreError, match="can't be read any further than"):
        list(messages)


def test_dump_of_a_body_that_does_not_decompress(tmp_path):
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"not zlib", sys_flag=1, born_host=encode_host("::1", 1))
    store.close()
    assert [message.body for message in dump(small_config(tmp_path), MessageFilter())] == [b"not zlib"]


# -- rebuild ---------------------------------------------------------------------------------------------------------


def test_rebuild(tmp_path):
    config = fill(tmp_path)
    before = {name: data for name, data in snapshot(tmp_path).items() if name.startswith("consumequeue")}
    index = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    unit_damaged(tmp_path)
    queue_empty(tmp_path)
    index_chain_damaged(tmp_path)
    (tmp_path / "abort").write_text("1")
    steps = set()
    rebuild(config, cut=False, progress=lambda what, done, total: steps.add(what))
    assert steps == {"log", "queues", "index"}
    after = snapshot(tmp_path)
    assert {name: after.get(name) for name in before} == before
    assert [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())] == index
    assert verify(config).problems == []
    assert not (tmp_path / "consumequeue.replaced").exists()
    assert not (tmp_path / "abort").exists()


def test_rebuild_takes_the_files_sizes_from_the_store(tmp_path):
    fill(tmp_path)
    rebuild(StoreConfig(tmp_path, message_index_enable=False), cut=False)
    store = open_store(tmp_path)
    assert store.queue("T", 0).max_offset == 63
    store.close()


def test_rebuild_keeps_the_offsets_of_expired_queues(tmp_path):
    store = open_store(tmp_path)
    for _ in range(3):
        put(store, store.queue("Quiet", 0), b"x")
    for n in range(150):
        put(store, store.queue("T", 0), b"%d " % n + bytes(900))
    store.close()
    log_files(tmp_path)[0].unlink()
    config = small_config(tmp_path)
    expected = bodies(config)
    rebuild(config, cut=False)
    store = open_store(tmp_path)
    assert (store.queue("Quiet", 0).min_offset, store.queue("Quiet", 0).max_offset) == (3, 3)
    queue = store.queue("T", 0)
    assert queue.max_offset == 150
    assert [int(record.body.split()[0]) for record in read_all(store, queue)] == expected
    store.close()
    assert verify(config).problems == []


def test_rebuild_refuses_a_damaged_log(tmp_path):
    config = fill(tmp_path)
    blank_damaged(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match="would cut off all from there on"):
        rebuild(config, cut=False)
    assert snapshot(tmp_path) == before
    rebuild(config, cut=True)
    report = verify(config)
    assert report.problems == []
    assert 0 < report.records < 250


def test_rebuild_goes_on_after_it_was_killed(tmp_path):
    """The tool was killed after it moved the old queues away and created a part of the new ones."""
    store = open_store(tmp_path)
    put(store, store.queue("Quiet", 0), b"x")
    for _ in range(150):
        put(store, store.queue("T", 0), bytes(900))
    store.close()
    log_files(tmp_path)[0].unlink()
    shutil.move(tmp_path / "consumequeue", tmp_path / "consumequeue.replaced")
    (tmp_path / "consumequeue" / "T" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).write_bytes(b"\1" * UNITS_PER_FILE * 20)
    rebuild(small_config(tmp_path), cut=False)
    assert verify(small_config(tmp_path)).problems == []
    assert inspect(small_config(tmp_path)).queues[0].max_offset == 1
    assert not (tmp_path / "consumequeue.replaced").exists()


def test_rebuild_needs_a_log(tmp_path):
    with pytest.raises(StoreError, match="nothing to rebuild from"):
        rebuild(small_config(tmp_path), cut=False)
    assert list(tmp_path.iterdir()) == []
