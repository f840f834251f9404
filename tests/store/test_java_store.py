"""A store that the broker of Apache RocketMQ 5.5.0 wrote and closed: java_store/store.tar.xz.

Settings: mappedFileSizeCommitLog=1048576, mappedFileSizeConsumeQueue=2000. A Java producer sent these messages, twice:

- 12 messages with the tags TagA, TagB, none, 标签
- a batch of 3
- one compressed with zlib
- one with delay level 18
- two of 600 kB
- two in transactions, of which one was committed
- 65 to queue 0 of Fruit
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
from store_support import STORE_HOST, put, read_all

from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import find_property
from gantrymq.store.config import StoreConfig
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.message_store import MessageStore

ARCHIVE = Path(__file__).parent / "java_store" / "store.tar.xz"
TWO_HOURS_MS = 2 * 3_600_000
END = 3_762_710
COUNTS = {
    ("Big", 0): 2,
    ("Big", 1): 2,
    ("Fruit", 0): 148,
    ("Fruit", 1): 14,
    ("Paid", 0): 1,
    ("Paid", 2): 1,
    ("RMQ_SYS_TRANS_HALF_TOPIC", 0): 4,
    ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0): 2,
    ("SCHEDULE_TOPIC_XXXX", 17): 2,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def opened(root: Path) -> MessageStore:
    config = StoreConfig(root, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000)
    store = MessageStore(config, STORE_HOST)
    store.open()
    return store


def counts(store: MessageStore) -> dict[tuple[str, int], int]:
    return {
        (topic, queue_id): len(read_all(store, store.queue(topic, queue_id)))
        for topic, queue_ids in store.topics().items()
        for queue_id in queue_ids
    }


def test_every_message_is_there(root):
    store = opened(root)
    assert (store.min_physical_offset, store.max_physical_offset) == (0, END)
    assert counts(store) == COUNTS
    fruit = read_all(store, store.queue("Fruit", 0))
    assert [record.queue_offset for record in fruit] == list(range(148))
    assert [record.body for record in fruit[:9]] == [b"apple %d" % n for n in range(0, 12, 2)] + [
        b"batch %d" % n for n in range(3)
    ]
    assert {len(record.body) for record in read_all(store, store.queue("Big", 1))} == {600_000}
    (zipped,) = [
        message
        for buffer in store.get(store.queue("Fruit", 1), 6, 1, 1 << 20).buffers
        for message in decode_messages(buffer)
    ]
    assert zipped.body == b"z" * 2000
    (paid,) = read_all(store, store.queue("Paid", 0))
    assert paid.body == b"committed"
    half = store.read_record(paid.prepared_transaction_offset)
    assert (half.topic, half.body) == (b"RMQ_SYS_TRANS_HALF_TOPIC", b"committed")
    later = read_all(store, store.queue("SCHEDULE_TOPIC_XXXX", 17))
    assert find_property(later[0].properties, b"REAL_TOPIC") == b"Later"
    store.close()


def test_tags_codes(root):
    store = opened(root)
    queue = store.queue("Fruit", 1)
    codes = {tag: string_hash_code(tag) for tag in ("TagB", "标签")}
    assert [queue.unit(offset)[2] for offset in range(4)] == [codes["TagB"], codes["标签"]] * 2
    result = store.get(queue, 0, 32, 1 << 20, frozenset({codes["标签"]}))
    assert result.message_count == 6
    schedule = store.queue("SCHEDULE_TOPIC_XXXX", 17)
    assert schedule.unit(0)[2] == store.store_time(schedule, 0) + TWO_HOURS_MS
    store.close()


@pytest.mark.parametrize("aborted", [False, True])
def test_opening_changes_no_queue_and_no_record(root, aborted):
    if aborted:
        (root / "abort").write_text("")
    before = {path: path.read_bytes() for path in root.glob("co*/**/*") if path.is_file()}
    opened(root).close()
    assert {path: path.read_bytes() for path in root.glob("co*/**/*") if path.is_file()} == before


def test_queues_are_rebuilt_as_java_had_them(root):
    before = {path: path.read_bytes() for path in root.glob("consumequeue/*/*/*")}
    shutil.rmtree(root / "consumequeue")
    opened(root).close()
    assert {path: path.read_bytes() for path in root.glob("consumequeue/*/*/*")} == before


def test_writing_goes_on(root):
    store = opened(root)
    result = put(store, store.queue("Fruit", 0), b"ours")
    assert (result.queue_offset, result.physical_offset) == (148, END)
    store.close()
    store = opened(root)
    assert counts(store) == COUNTS | {("Fruit", 0): 149}
    assert read_all(store, store.queue("Fruit", 0))[-1].body == b"ours"
    store.close()


@pytest.mark.parametrize("begin", [0, 2 << 20], ids=["from the beginning", "from a later file"])
@pytest.mark.parametrize("size", [777, 32 * 1024])
def test_a_slave_of_ours_has_what_java_has(root, size, begin):
    """The slave has the same log and queues as the Java broker, byte for byte.

    If the slave begins at a later file, its queues start with filler units instead.
    """
    data = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))[:END]
    config = StoreConfig(root / "slave", mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=2000)
    slave = MessageStore(config, STORE_HOST)
    slave.open()
    slave.set_slave(True)
    slave.replica.begin_at(begin)
    for at in range(begin, END, size):
        slave.replica.append(data[at : at + size])
    assert slave.max_physical_offset == END
    slave.close()
    assert b"".join(path.read_bytes() for path in sorted((root / "slave/commitlog").iterdir())) == data[begin:].ljust(
        (4 << 20) - begin, b"\0"
    )
    java = {path.relative_to(root): path.read_bytes() for path in root.glob("consumequeue/*/*/*")}
    ours = {path.relative_to(root / "slave"): path.read_bytes() for path in root.glob("slave/consumequeue/*/*/*")}
    if begin:
        java = {path: with_fillers(data, begin) for path, data in java.items()}
        java = {path: data for path, data in java.items() if any(at >= begin for at, size, _ in UNIT.iter_unpack(data))}
    assert ours == java


def with_fillers(units: bytes, begin: int) -> bytes:
    return b"".join(
        UNIT.pack(0, 2**31 - 1, 0) if size and at < begin else UNIT.pack(at, size, code)
        for at, size, code in UNIT.iter_unpack(units)
    )
