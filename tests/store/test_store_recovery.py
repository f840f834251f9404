"""Recovery after a crash, and after damage to the files."""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_code import BOTH, use_python
from store_support import (
    LOG_FILE,
    STORE_HOST,
    UNITS_PER_FILE,
    crash,
    log_files,
    open_store,
    put,
    queue_files,
    read_all,
    small_config,
)

from gantrymq.errors import RecordError, StoreError
from gantrymq.kernels import native
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.record import decode_records
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store import log_reader, recovery
from gantrymq.store.checkpoint import Checkpoint, save_checkpoint
from gantrymq.store.config import UNIT_SIZE, StoreConfig
from gantrymq.store.consume_queue import LAST_UNITS, ConsumeQueue
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore
from gantrymq.store.rebuild import rebuild
from gantrymq.system import clock, files

TIMEOUT_S = 30


@pytest.fixture(
    autouse=True,
    scope="module",
    params=[*BOTH, "small steps"],
)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs every test with native code, with Python, and with a few records and runs at a time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            use_python(patch, log_reader)
        elif request.param == "small steps":
            patch.setattr(log_reader, "_AT_ONCE", 7)
            patch.setattr(recovery, "_MOST_JOINED", 5)
            patch.setattr(recovery, "_MOST_WAITING", 9)
        yield


def contents(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    return {
        (topic, queue_id): [
            (record.queue_offset, record.body) for record in read_all(store, store.queue(topic, queue_id))
        ]
        for topic, queue_ids in store.topics().items()
        for queue_id in queue_ids
    }


def fill(root: Path, count: int = 300, seed: int = 1, **options) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Creates a closed store with several log and queue files, and returns its content."""
    rng = random.Random(seed)
    store = open_store(root, **options)
    for n in range(count):
        queue = store.queue(rng.choice(("Fruit", "Fruit", "Nut")), rng.randrange(2))
        body = b"%d " % n + rng.randbytes(rng.randrange(800))
        put(store, queue, body, properties=b"TAGS\x01t%d\x02" % (n % 3), sys_flag=4 * (n % 20 == 7))
    expected = contents(store)
    store.close()
    return expected


def reopened(root: Path, **options) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    store = open_store(root, **options)
    try:
        return contents(store)
    finally:
        store.close()


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}


# -- nothing is lost -------------------------------------------------------------------------------------------------


def test_clean_close(tmp_path, caplog):
    expected = fill(tmp_path)
    assert len(log_files(tmp_path)) > 2
    assert max(len(messages) for messages in expected.values()) > UNITS_PER_FILE
    assert reopened(tmp_path) == expected
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_offsets_go_on(tmp_path):
    expected = fill(tmp_path)
    store = open_store(tmp_path)
    end = store.max_physical_offset
    queue = store.queue("Fruit", 0)
    result = put(store, queue, b"next")
    assert result.physical_offset == end
    assert result.queue_offset == len(expected["Fruit", 0])
    assert read_all(store, queue)[-1].body == b"next"
    store.close()


def test_crash_without_checkpoint(tmp_path):
    store = open_store(tmp_path, flush_interval_commit_log_ms=60_000, flush_interval_consume_queue_ms=60_000)
    queue = store.queue("T", 0)
    for n in range(200):
        put(store, queue, b"%d" % n)
    crash(store)
    assert not (tmp_path / "checkpoint").exists()
    assert reopened(tmp_path) == {("T", 0): [(n, b"%d" % n) for n in range(200)]}


WRITER = """
import random, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_support import open_store, put
rng = random.Random()
store = open_store(Path(sys.argv[1]))
while True:
    queue = store.queue(rng.choice("ABC"), rng.randrange(3))
    n = queue.max_offset
    put(store, queue, b"%s %d %d " % (queue.topic_bytes, queue.queue_id, n) + b"x" * rng.randrange(2000))
    print(queue.topic, queue.queue_id, n, flush=True)
"""


def test_sigkill_while_writing(tmp_path):
    """All messages acknowledged before SIGKILL are stored.

    Each queue has no gaps, and new messages can be stored.
    """
    root = tmp_path / "store"
    acknowledged: dict[tuple[str, int], int] = {}
    rng = random.Random(5)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, root, Path(__file__).parent], stdout=subprocess.PIPE, text=True
        ) as writer:
            try:
                for _ in range(rng.randrange(200, 600)):
                    topic, queue_id, offset = writer.stdout.readline().split()
                    acknowledged[topic, int(queue_id)] = int(offset)
            finally:
                writer.kill()
        assert (root / "abort").exists()
        found = reopened(root)
        assert found.keys() >= acknowledged.keys()
        for (topic, queue_id), messages in found.items():
            assert len(messages) > acknowledged.get((topic, queue_id), -1)
            for n, (offset, body) in enumerate(messages):
                assert offset == n
                assert body.startswith(b"%s %d %d " % (topic.encode(), queue_id, n))


# -- queue files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aborted", [False, True])
def test_all_queues_are_rebuilt_from_the_log(tmp_path, aborted):
    expected = fill(tmp_path)
    before = snapshot(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    if aborted:
        (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()
    rebuilt = snapshot(tmp_path)
    assert rebuilt.keys() == before.keys()
    for name, data in before.items():
        # `fill` stores no tags codes. Recovery computes them from the property.
        assert [data[at : at + 12] for at in range(0, len(data), 20)] == [
            rebuilt[name][at : at + 12] for at in range(0, len(data), 20)
        ]


@pytest.mark.parametrize("which", [0, 1])
def test_one_queue_file_is_rebuilt(tmp_path, which):
    expected = fill(tmp_path)
    queue_files(tmp_path, "Fruit", 0)[which].unlink()
    assert reopened(tmp_path) == expected


def test_one_queue_is_rebuilt(tmp_path):
    """A queue whose directory is missing is rebuilt. Its last record is the last one of the log."""
    expected = fill(tmp_path, 299)
    store = open_store(tmp_path)
    put(store, store.queue("Fruit", 0), b"last")
    store.close()
    shutil.rmtree(tmp_path / "consumequeue/Fruit/0")
    expected["Fruit", 0].append((len(expected["Fruit", 0]), b"last"))
    (tmp_path / "abort").write_text("1")
    assert reopened(tmp_path) == expected


@pytest.mark.parametrize("length", [0, 20, 333])
@pytest.mark.parametrize("which", [0, -1])
def test_short_queue_file_is_rebuilt(tmp_path, which, length, caplog):
    expected = fill(tmp_path)
    path = queue_files(tmp_path, "Fruit", 0)[which]
    with path.open("r+b") as file:
        file.truncate(length)
    assert reopened(tmp_path) == expected
    assert str(path) in caplog.text
    assert path.stat().st_size == UNITS_PER_FILE * 20


def test_last_unit_damaged(tmp_path):
    expected = fill(tmp_path)
    for queue_id, messages in ((0, expected["Fruit", 0]), (1, expected["Fruit", 1])):
        path = queue_files(tmp_path, "Fruit", queue_id)[-1]
        data = bytearray(path.read_bytes())
        data[(len(messages) - 1) % UNITS_PER_FILE * 20 + 3] ^= 0x40
        path.write_bytes(data)
    assert reopened(tmp_path) == expected


@pytest.mark.parametrize("code", [0, -(1 << 32), 7])
def test_a_unit_that_lost_its_tags_code(tmp_path, code):
    """After a power failure, the tags code can be missing.

    The offset and size of the unit were at the end of a sector that was written.
    """
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    for _ in range(3):
        put(store, queue, b"tagged", properties=b"TAGS\x01green\x02", tags_code=tags_code(b"green"))
    crash(store)
    (path,) = queue_files(tmp_path, "T")
    data = path.read_bytes()
    path.write_bytes(data[:32] + code.to_bytes(8, "big", signed=True) + data[40:])
    store = open_store(tmp_path)
    assert [store.queue("T", 0).unit(n)[2] for n in range(3)] == [tags_code(b"green")] * 3
    store.close()


def test_the_tags_code_is_java_s(tmp_path):
    """The tags code can be an address in Java's `consumequeue_ext` or a delivery time. Both are kept."""
    store = open_store(tmp_path)
    codes = {"T": -(1 << 63) + 4711, SCHEDULE_TOPIC: int(time.time() * 1000) + 1003}
    for topic, code in codes.items():
        properties = b"TAGS\x01green\x02DELAY\x011\x02"
        put(store, store.queue(topic, 0), b"", properties=properties, tags_code=code)
    crash(store)
    store = open_store(tmp_path)
    assert {topic: store.queue(topic, 0).unit(0)[2] for topic in codes} == codes
    store.close()


def test_stale_units_behind_the_end(tmp_path):
    """Java does not overwrite the truncated part of a queue with zeros."""
    expected = fill(tmp_path)
    path = queue_files(tmp_path, "Fruit", 0)[-1]
    data = bytearray(path.read_bytes())
    used = len(expected["Fruit", 0]) % UNITS_PER_FILE * 20
    data[used : used + 60] = data[:60]
    path.write_bytes(data)
    assert reopened(tmp_path) == expected
    assert not any(path.read_bytes()[used:])


def test_holes_at_a_queues_end(tmp_path):
    """After a power failure, some pages of the queue are missing although later ones were written.

    The log ends in between.
    """
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    results = [put(store, queue, b"%d" % n) for n in range(UNITS_PER_FILE + 20)]
    store.close()
    first, second = queue_files(tmp_path, "T")
    first.write_bytes(first.read_bytes()[: 45 * 20] + bytes((UNITS_PER_FILE - 45) * 20))
    (log,) = log_files(tmp_path)
    log.write_bytes(log.read_bytes()[: results[45].physical_offset].ljust(LOG_FILE, b"\0"))
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    assert queue.max_offset == 45
    assert put(store, queue, b"next").queue_offset == 45
    assert [record.body for record in read_all(store, queue)] == [b"%d" % n for n in range(45)] + [b"next"]
    assert not second.exists()
    store.close()


@pytest.mark.parametrize("at", [20, 4_000, 5_000, 70_000, 199_960])
def test_data_behind_a_hole_of_a_queue(tmp_path, at):
    """After a power failure, a later page of a queue can have units of records that the log has lost."""
    size = 200_000
    store = open_store(tmp_path, mapped_file_size_consume_queue=size)
    unit = put(store, store.queue("T", 0), b"first")
    crash(store)
    (path,) = queue_files(tmp_path, "T")
    stale = unit.physical_offset.to_bytes(8, "big") + b"\0\0\1\0" + bytes(8)
    with path.open("r+b") as file:
        file.seek(at + 20)
        file.write(stale)
    store = open_store(tmp_path, mapped_file_size_consume_queue=size)
    assert store.queue("T", 0).max_offset == 1
    assert not any(path.read_bytes()[20:])
    assert put(store, store.queue("T", 0), b"second").queue_offset == 1
    store.close()


@pytest.mark.parametrize("aborted", [False, True])
def test_a_short_file_after_the_units_is_completed(tmp_path, aborted):
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"first")
    store.close()
    (path,) = queue_files(tmp_path, "T")
    with path.open("r+b") as file:
        file.truncate(20)
    if aborted:
        (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    assert put(store, store.queue("T", 0), b"second").queue_offset == 1
    assert path.stat().st_size == UNITS_PER_FILE * 20
    assert [record.body for record in read_all(store, store.queue("T", 0))] == [b"first", b"second"]
    store.close()


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("aborted", [False, True])
def test_opening_reads_each_queue_file_once(tmp_path, monkeypatch, aborted, is_flushed):
    """With thousands of queues, further system calls for each file would take most of the time of a start."""
    store = open_store(tmp_path)
    for n in range(20):
        put(store, store.queue(f"T{n}", 0), b"first")
    store.close()
    if aborted:
        (tmp_path / "abort").write_text("1")
    if not is_flushed:
        (tmp_path / "checkpoint").unlink()
    opened: list[str] = []
    real_open = files.open

    def noted_open(path, *args, **options):
        # The flusher's thread opens the files of the same queues.
        if threading.current_thread() is threading.main_thread() and "/consumequeue/" in str(path):
            opened.append(str(path))
        return real_open(path, *args, **options)

    monkeypatch.setattr(files, "open", noted_open)
    store = MessageStore(small_config(tmp_path), STORE_HOST)
    store.open()
    monkeypatch.undo()
    assert [store.queue(f"T{n}", 0).max_offset for n in range(20)] == [1] * 20
    store.close()
    assert len(opened) == len(set(opened)) == 20


@pytest.mark.parametrize("damaged", [LAST_UNITS, LAST_UNITS + 1, 250])
def test_units_that_were_not_loaded_are_compared_too(tmp_path, damaged):
    """After a crash, recovery compares the last units without a read of the file, and all others with one."""
    store = open_store(tmp_path)
    for n in range(300):
        put(store, store.queue("T", 0), b"%d" % n)
    expected = [b"%d" % n for n in range(300)]
    store.close()
    (tmp_path / "abort").write_text("1")
    (tmp_path / "checkpoint").unlink()
    files_of_queue = [bytearray(path.read_bytes()) for path in queue_files(tmp_path, "T")]
    at = 300 - damaged
    files_of_queue[at // UNITS_PER_FILE][at % UNITS_PER_FILE * 20 + 7] ^= 1
    for path, data in zip(queue_files(tmp_path, "T"), files_of_queue, strict=True):
        path.write_bytes(data)
    store = open_store(tmp_path)
    assert [record.body for record in read_all(store, store.queue("T", 0))] == expected
    store.close()


# -- checkpoint ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["garbage", "short", "a directory"])
def test_a_damaged_checkpoint_is_said(tmp_path, how, caplog):
    expected = fill(tmp_path)
    path = tmp_path / "checkpoint"
    path.unlink()
    if how == "a directory":
        path.mkdir()
    else:
        path.write_bytes(b"\xa5" * (4096 if how == "garbage" else 20))
    (tmp_path / "abort").write_text("1")
    assert reopened(tmp_path) == expected
    assert f"{path} is damaged" in caplog.text
    caplog.clear()
    assert reopened(tmp_path) == expected
    assert "damaged" not in caplog.text


@pytest.mark.parametrize(
    "checkpoint",
    [
        Checkpoint(1 << 62, 1 << 62, 0, 0, 1 << 62),
        Checkpoint(-5, -5, -5, -5, -5),
        Checkpoint(1 << 62, 1 << 62, 0, 0, LOG_FILE + 17),
        Checkpoint(),
    ],
)
@pytest.mark.parametrize("lost", ["nothing", "queues", "ends"])
def test_wrong_checkpoint_is_not_believed(tmp_path, checkpoint, lost):
    expected = fill(tmp_path)
    save_checkpoint(tmp_path / "checkpoint", checkpoint)
    (tmp_path / "abort").write_text("1")
    if lost == "queues":
        shutil.rmtree(tmp_path / "consumequeue")
    elif lost == "ends":
        # The state after a power failure: the last pages of the queues were not written.
        for topic, queue_id in expected:
            path = queue_files(tmp_path, topic, queue_id)[-1]
            path.write_bytes(path.read_bytes()[:200] + bytes(UNITS_PER_FILE * 20 - 200))
    assert reopened(tmp_path) == expected


@pytest.mark.parametrize("data", [b"", b"short", bytes(4096)])
def test_broken_checkpoint_file(tmp_path, data):
    expected = fill(tmp_path)
    (tmp_path / "checkpoint").write_bytes(data)
    (tmp_path / "abort").write_text("1")
    assert reopened(tmp_path) == expected


def test_checkpoint_spares_reading_the_log(tmp_path, caplog):
    caplog.set_level("INFO")
    fill(tmp_path)
    (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    (line,) = [record.message for record in caplog.records if "reading the log from" in record.message]
    assert int(line.split()[-2]) > store.max_physical_offset - 10_000
    store.close()


# -- the log's end ---------------------------------------------------------------------------------------------------


def test_torn_record_is_cut_off(tmp_path, caplog):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    for n in range(10):
        result = put(store, queue, b"%d" % n * 100)
    store.close()
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    middle = result.physical_offset + result.size // 2
    data[middle:] = bytes(len(data) - middle)
    path.write_bytes(data)
    (tmp_path / "abort").write_text("1")
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    assert queue.max_offset == 9
    assert store.max_physical_offset == result.physical_offset
    assert "no good record at" in caplog.text
    # The rest is filled with zeros, so that no old record follows the next one.
    assert not any(path.read_bytes()[result.physical_offset :])
    assert put(store, queue, b"short").queue_offset == 9
    store.close()
    assert [body for _, body in reopened(tmp_path)["T", 0]][-2:] == [b"8" * 100, b"short"]


def test_files_behind_the_end_are_deleted(tmp_path):
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    for n in range(200):
        put(store, queue, bytes([n]) * 1000)
    store.close()
    assert len(log_files(tmp_path)) >= 4
    shutil.rmtree(tmp_path / "consumequeue")
    with log_files(tmp_path)[1].open("r+b") as file:
        file.write(bytes(1200))
    store = open_store(tmp_path)
    assert store.max_physical_offset == LOG_FILE
    assert len(read_all(store, store.queue("T", 0))) == (LOG_FILE - 8) // (1000 + 92)
    # Of the later files, only the one for the next record is left.
    _, last = log_files(tmp_path)
    assert not any(last.read_bytes())
    store.close()


def test_lost_log_drops_units(tmp_path):
    """If the log is replaced by an older copy, the store opens without the checkpoint, and drops later units."""
    old, new = tmp_path / "old", tmp_path / "new"
    expected = fill(old, 100)
    shutil.copytree(old, new)
    store = open_store(new)
    for n in range(300):
        put(store, store.queue("Fruit", n % 2), b"later %d" % n)
    store.close()
    shutil.rmtree(new / "commitlog")
    shutil.copytree(old / "commitlog", new / "commitlog")
    with pytest.raises(StoreError, match="but had messages after it"):
        open_store(new)
    (new / "checkpoint").unlink()
    assert reopened(new) == expected


@pytest.mark.parametrize("where", ["gone", "empty", "elsewhere"])
@pytest.mark.parametrize("aborted", [False, True])
def test_a_log_that_is_missing_as_a_whole_cuts_no_queue(tmp_path, where, aborted):
    """If the whole log is missing, no queue is truncated, although no unit points to a record.

    For example, a disk is not mounted, or `storePathCommitLog` is wrong.
    """
    expected = fill(tmp_path)
    if aborted:
        (tmp_path / "abort").touch()
    before = snapshot(tmp_path)
    options = {}
    if where == "elsewhere":
        options["store_path_commit_log"] = [tmp_path / "other"]
    else:
        (tmp_path / "commitlog").rename(tmp_path / "moved")
    if where == "empty":
        (tmp_path / "commitlog").mkdir()
    with pytest.raises(StoreError, match=r"has no file of the log, but the queues in .*consumequeue have messages"):
        open_store(tmp_path, **options)
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "other").exists()
    with pytest.raises(StoreError):
        rebuild(small_config(tmp_path, **options), cut=True)
    assert snapshot(tmp_path) == before
    if where != "elsewhere":
        if where == "empty":
            (tmp_path / "commitlog").rmdir()
        (tmp_path / "moved").rename(tmp_path / "commitlog")
    assert reopened(tmp_path) == expected


def test_a_store_whose_log_is_gone_begins_anew_without_its_queues(tmp_path):
    """A store without its log starts empty after its queues are deleted, as the error message suggests."""
    fill(tmp_path)
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    store = open_store(tmp_path)
    assert put(store, store.queue("Fruit", 0), b"first").queue_offset == 0
    store.close()


def test_wrong_file_sizes_are_refused(tmp_path):
    fill(tmp_path)
    for options in (
        {"mapped_file_size_commit_log": LOG_FILE * 2},
        {"mapped_file_size_commit_log": LOG_FILE // 2},
        {"mapped_file_size_consume_queue": 20 * (UNITS_PER_FILE - 1)},
    ):
        with pytest.raises(StoreError, match="mappedFileSize"):
            open_store(tmp_path, **options)
    log_files(tmp_path)[1].unlink()
    with pytest.raises(StoreError, match="lacks the file"):
        open_store(tmp_path)


def test_single_log_file_of_another_size_is_not_touched(tmp_path):
    store = open_store(tmp_path)
    put(store, store.queue("T", 0), b"x")
    store.close()
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog is 1073741824"):
        MessageStore(StoreConfig(tmp_path), bytes(8)).open()
    assert log_files(tmp_path)[0].stat().st_size == LOG_FILE
    assert reopened(tmp_path) == {("T", 0): [(0, b"x")]}


def test_empty_last_log_file(tmp_path):
    expected = fill(tmp_path, 20)
    last = log_files(tmp_path)[-1]
    (tmp_path / "commitlog" / f"{int(last.name) + LOG_FILE:020d}").touch()
    assert reopened(tmp_path) == expected


def test_topic_deleted_and_made_anew(tmp_path):
    """The log still has old records with the same queue offsets. The later ones count."""
    store = open_store(tmp_path)
    for n in range(30):
        put(store, store.queue("T", 0), b"old %d" % n)
    store.delete_topic("T")
    for n in range(5):
        put(store, store.queue("T", 0), b"new %d" % n)
    store.close()
    expected = {("T", 0): [(n, b"new %d" % n) for n in range(5)]}
    assert reopened(tmp_path) == expected
    save_checkpoint(tmp_path / "checkpoint", Checkpoint())
    (tmp_path / "abort").write_text("1")
    assert reopened(tmp_path) == expected
    shutil.rmtree(tmp_path / "consumequeue")
    assert reopened(tmp_path) == expected


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
def test_joined_runs_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are in two queues in turn, so a read of seven records has two runs."""
    store = open_store(tmp_path)
    for n in range(140):
        put(store, store.queue("Fruit", n % 2), b"%d" % n)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    monkeypatch.setattr(log_reader, "native", native)
    monkeypatch.setattr(log_reader, "_AT_ONCE", 7)
    monkeypatch.setattr(recovery, "_MOST_JOINED", 20)
    monkeypatch.setattr(recovery, "_MOST_WAITING", 10_000)
    lengths: list[int] = []
    put_at_once = recovery.Recovery._put_at_once

    def noting(self: recovery.Recovery, queue: ConsumeQueue, offset: int, units: bytes) -> bool:
        lengths.append(len(units) // UNIT_SIZE)
        return put_at_once(self, queue, offset, units)

    monkeypatch.setattr(recovery.Recovery, "_put_at_once", noting)
    assert len(reopened(tmp_path)["Fruit", 1]) == 70
    assert sum(lengths) == 140
    assert len(lengths) < 12
    assert max(lengths) <= 20


# -- any damage ------------------------------------------------------------------------------------------------------


@functools.cache
def _template() -> tuple[Path, dict[tuple[str, int], list[tuple[int, bytes]]]]:
    root = Path(tempfile.mkdtemp(prefix="store-template-"))
    expected = fill(root, 60)
    return root, expected


@pytest.fixture(scope="module", autouse=True)
def _remove_template():
    yield
    if _template.cache_info().currsize:
        shutil.rmtree(_template()[0])


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_damage(data):
    """The store opens or raises a specific error.

    It returns correct bodies or reports the damage, and new messages are readable.
    """
    template, expected = _template()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        shutil.copytree(template, root)
        path = data.draw(st.sampled_from(sorted(p for p in root.rglob("*") if p.is_file() and p.name != "lock")))
        content = bytearray(path.read_bytes())
        used = max(len(content.rstrip(b"\0")), 1)
        size = len(content)
        if data.draw(st.booleans(), "cut"):
            cut = data.draw(st.integers(0, used), "at")
            content = content[:cut] + bytes(size - cut) * data.draw(st.booleans(), "zeros")
        else:
            for _ in range(data.draw(st.integers(1, 3), "flips")):
                at = data.draw(st.integers(0, min(used + 30, size - 1)), "at")
                content[at] ^= data.draw(st.integers(1, 255), "bits")
        path.write_bytes(content)
        if data.draw(st.booleans(), "aborted"):
            (root / "abort").write_text("1")
        try:
            store = open_store(root)
        except StoreError:
            return
        try:
            for topic, queue_ids in store.topics().items():
                for queue_id in queue_ids:
                    _check_queue(store, topic, queue_id, dict(expected.get((topic, queue_id), [])))
            queue = store.queue("After", 9)
            result = put(store, queue, b"goes on")
            assert store.read_record(result.physical_offset).body == b"goes on"
            assert read_all(store, queue)[-1].body == b"goes on"
        finally:
            store.close()


def _check_queue(store: MessageStore, topic: str, queue_id: int, expected: dict[int, bytes]) -> None:
    queue = store.queue(topic, queue_id)
    bodies = set(expected.values())
    for offset in range(queue.min_offset, queue.max_offset):
        result = store.get(queue, offset, 1, 1 << 20)
        for buffer in result.buffers:
            try:
                records = list(decode_records(buffer))
            except RecordError:
                continue
            for record in records:
                # Header fields have no checksum. With a changed topic or queue id, the record belongs to another queue.
                assert record.body == expected.get(record.queue_offset, b"") or not bodies


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_log_ends_before_the_first_damaged_record(data):
    template, _ = _template()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        shutil.copytree(template, root)
        shutil.rmtree(root / "consumequeue")
        (path,) = log_files(root)
        content = bytearray(path.read_bytes())
        records = list(decode_records(content[: len(content.rstrip(b"\0"))]))
        damaged = data.draw(st.sampled_from(records), "damaged")
        at = damaged.physical_offset
        if data.draw(st.booleans(), "torn"):
            # Torn properties cannot be detected, because the format has no checksum for them.
            torn = data.draw(st.integers(1, damaged.size - len(damaged.properties) - 1), "torn after")
            content[at + torn :] = bytes(len(content) - at - torn)
        else:
            body = data.draw(st.integers(88, 87 + len(damaged.body)), "in the body")
            place = data.draw(st.sampled_from([*range(12), *range(28, 36), body]), "place")
            content[at + place] ^= data.draw(st.integers(1, 255), "bits")
        path.write_bytes(content)
        (root / "abort").write_text("1")
        store = open_store(root)
        try:
            assert store.max_physical_offset == at
            kept: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
            for record in records[: records.index(damaged)]:
                if not record.sys_flag & 4:
                    key = (record.topic.decode(), record.queue_id)
                    kept.setdefault(key, []).append((record.queue_offset, record.body))
            assert contents(store) == kept
        finally:
            store.close()


def test_a_queue_that_lost_all_messages_has_a_recovered_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that had the lost messages gets the new ones at their offsets, not only those after them."""
    store = open_store(tmp_path)
    for number in range(3):
        put(store, store.queue("orders", 0), b"lost %d" % number)
    crash(store)
    # The power failed: nothing of the log and of the queue was on disk.
    shutil.rmtree(tmp_path / "commitlog")
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    put(store, queue, b"new")
    began = clock.monotonic()
    result = store.get(queue, 3, 10, 1000)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 0)
    # A queue that is created much later is a new one.
    monkeypatch.setattr(clock, "monotonic", lambda: began + 121.0)
    assert store.queue("orders", 2).recovered_end is None
    monkeypatch.undo()
    store.close()
    store = open_store(tmp_path)
    assert store.queue("orders", 1).recovered_end is None
    store.close()
