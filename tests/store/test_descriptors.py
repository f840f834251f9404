"""Stores with few file descriptors.

Mapped files need no descriptor. The tests cover the choice of mapped files, and a store without a free descriptor. Each
test with a low limit runs in its own process.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from constants import change_constant
from store_support import mapped_files, open_store, put, read_all

from gantrymq.background.report import JobReport
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.mapped_file import MappedFile
from gantrymq.store.preallocation import Preallocation
from gantrymq.store.queue_mappings import QueueMappings
from gantrymq.system import files

BEGIN = """
import errno, os, resource, sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from store_support import flushed, open_store, put, read_all
from gantrymq.errors import StoreError
root = Path(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


def run(script: str, root: Path, descriptors: int) -> str:
    arguments = [sys.executable, "-c", BEGIN + script, str(Path(__file__).parent), str(root), str(descriptors)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


# -- many queues -----------------------------------------------------------------------------------------------------


def test_600_queues_with_128_descriptors(tmp_path):
    """All queues are mapped, written to, and read in turn."""
    run(
        """
store = open_store(root)
queues = [store.queue("T", n) for n in range(600)]
for turn in range(3):
    for queue in queues:
        assert put(store, queue, b"%d" % turn).queue_offset == turn
assert all(queue.mapping is not None for queue in queues)
for queue in queues:
    assert [record.body for record in read_all(store, queue)] == [b"0", b"1", b"2"]
flushed(store)
store.close()
store = open_store(root)
assert all(store.queue("T", n).max_offset == 3 for n in range(600))
store.close()
""",
        tmp_path,
        128,
    )


def test_a_queue_of_600_files_with_128_descriptors(tmp_path):
    """A consumer that reads the whole queue leaves the files mapped."""
    run(
        """
store = open_store(root, mapped_file_size_commit_log=8 << 20)
queue = store.queue("T", 0)
for n in range(30_000):
    put(store, queue, b"")
assert len(read_all(store, queue)) == 30_000
assert [queue.unit(n)[2] for n in range(0, 30_000, 50)] == [0] * 600
assert sum(file.mapping is not None for file in queue._files.values()) >= 600
store.close()
store = open_store(root, mapped_file_size_commit_log=8 << 20)
assert len(read_all(store, store.queue("T", 0))) == 30_000
store.close()
""",
        tmp_path,
        128,
    )


def test_where_memory_is_not_promised_a_mapping_keeps_its_descriptor(tmp_path, monkeypatch):
    """If anonymous memory is refused, a mapping keeps its descriptor.

    The file replaces that memory, which counts for a moment. With `vm.overcommit_memory` 2, the kernel can refuse it.
    """
    if sys.version_info >= (3, 13):
        pytest.skip("no anonymous memory is needed")

    class Refused(files.Mapping):
        def __new__(cls, fd, size):
            if fd == -1:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return super().__new__(cls, fd, size)

    monkeypatch.setattr(files, "Mapping", Refused)
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    put(store, queue, b"x")
    assert [record.body for record in read_all(store, queue)] == [b"x"]
    store.close()


def test_a_file_that_can_not_be_put_there(tmp_path):
    """The descriptor is read-only, so the file cannot be mapped for writing."""
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(PermissionError):
        files.map_file(fd, 4096)
    os.close(fd)


# -- eviction order --------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path, monkeypatch):
    change_constant(monkeypatch, "queue_mappings.MOST_MAPPINGS", 4)
    store = open_store(tmp_path)
    yield store
    store.close()


def mapped(store) -> list[int]:
    """Returns the ids of the queues that have a mapped file."""
    return [int(path.parent.name) for path in mapped_files(store.config.consume_queue_directory)]


def test_what_was_used_longest_ago_goes_first(store):
    queues = [store.queue("T", n) for n in range(6)]
    for queue in queues[:4]:
        put(store, queue, b"x")
    assert mapped(store) == [0, 1, 2, 3]
    for queue in (queues[0], queues[2]):
        queue.unit(0)
    put(store, queues[4], b"x")
    put(store, queues[5], b"x")
    assert mapped(store) == [0, 2, 4, 5]
    put(store, queues[1], b"x")
    assert 0 not in mapped(store)


def test_what_is_written_to_stays(store):
    """The file stays mapped although `append` does not report each use."""
    busy, *others = (store.queue("T", n) for n in range(20))
    put(store, busy, b"x")
    mapping = busy.mapping
    for queue in others:
        put(store, queue, b"x")
        put(store, busy, b"x")
    assert busy.mapping is mapping
    for queue in others:
        read_all(store, queue)
    assert busy.mapping is None
    assert put(store, busy, b"x").queue_offset == 20


def test_a_file_that_is_gone_counts_no_more(tmp_path):
    mappings, preallocation = QueueMappings(), Preallocation(JobReport("test"), waits=True)
    queues = [ConsumeQueue("T", n, tmp_path / str(n), 1000, mappings, preallocation) for n in range(3)]
    for queue in queues:
        queue.preallocate()
    assert len(mappings) == 3
    # As in `delete_topic`.
    for queue in queues:
        queue.forget_files()
    assert len(mappings) == 0


def test_the_one_that_is_being_mapped_never_goes():
    """A file that is being mapped is never evicted, even if all other files have been written to."""

    class Queue:
        def __init__(self) -> None:
            self.max_offset = 0
            self.unmapped: list[MappedFile] = []

        def is_written_to(self, file: MappedFile) -> bool:
            return True

        def unmap_file(self, file: MappedFile) -> None:
            self.unmapped.append(file)
            mappings.forget(file)

    class File:
        is_used = False

        def map(self) -> None:
            pass

    mappings, queue = QueueMappings(3), Queue()
    files = [File() for _ in range(5)]
    for file in files:
        queue.max_offset += 100
        mappings.map(file, queue)
    assert queue.unmapped == files[:2]
    assert len(mappings) == 3


# -- no free descriptor ----------------------------------------------------------------------------------------------

_TAKE_ALL = """
spare = []
def take_all():
    try:
        while True:
            spare.append(os.dup(0))
    except OSError as e:
        assert e.errno == errno.EMFILE
def give_back():
    while spare:
        os.close(spare.pop())
def safe(offset):
    answers, done = [], threading.Event()
    store.when_flushed(offset, lambda error: (answers.append(error), done.set()))
    assert done.wait(20)
    return answers[0]
"""


def test_a_log_file_is_flushed_without_another_descriptor(tmp_path):
    """Connections use up all descriptors. The rest of the current file is filled and flushed."""
    run(
        _TAKE_ALL
        + """
# Nor does a flusher of queues give one back meanwhile.
store = open_store(root, flush_disk_type="SYNC_FLUSH", flush_interval_consume_queue_ms=600_000)
queue, new = store.queue("T", 0), store.queue("New", 0)
assert safe(put(store, queue, b"first").physical_offset) is None
take_all()
for n in range(20):
    assert safe(put(store, queue, bytes(1000)).physical_offset) is None
for _ in range(3):
    try:
        put(store, new, b"x")
    except StoreError as e:
        assert "Too many open files" in str(e)
    else:
        raise AssertionError("its file can't be opened")
assert safe(put(store, queue, b"y").physical_offset) is None
give_back()
assert put(store, new, b"x").queue_offset == 0
for n in range(100):
    assert safe(put(store, queue, bytes(1000)).physical_offset) is None
count = queue.max_offset
store.close()
assert not (root / "abort").exists()
store = open_store(root)
assert store.queue("T", 0).max_offset == count == 122
store.close()
""",
        tmp_path,
        256,
    )


def test_the_next_log_file_waits_for_a_descriptor(tmp_path):
    """Without a free descriptor, messages are refused. They are accepted again as soon as one is free."""
    run(
        _TAKE_ALL
        + """
store = open_store(root, flush_interval_commit_log_ms=600_000, flush_interval_consume_queue_ms=600_000)
queue = store.queue("T", 0)
put(store, queue, bytes(30_000))
take_all()
refused = 0
for _ in range(20):
    try:
        put(store, queue, bytes(5_000))
    except StoreError as e:
        assert "Too many open files" in str(e)
        refused += 1
assert 10 < refused < 20
# Not even the flusher has one to spare.
assert safe(0) is None
give_back()
assert safe(put(store, queue, bytes(5_000)).physical_offset) is None
assert len(read_all(store, queue)) == 1 + 20 - refused + 1
store.close()
""",
        tmp_path,
        256,
    )


def test_no_descriptor_is_left_behind(tmp_path):
    output = run(
        """
def count():
    return len(os.listdir("/proc/self/fd"))
before = count()
for turn in range(5):
    store = open_store(root)
    for n in range(200):
        put(store, store.queue("T", n % 7), bytes(2000), properties=b"KEYS\\x01k%d\\x02" % n)
    flushed(store)
    store.keys.build_index(10)
    store.close()
    print(count() - before)
try:
    open_store(root, mapped_file_size_commit_log=4096)
except StoreError:
    print(count() - before)
""",
        tmp_path,
        256,
    )
    assert output.split() == ["0"] * 6
