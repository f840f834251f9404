"""Damaged pieces of a master's log.

The slave detects and hides the damage, and continues when it receives the piece again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from replica_support import BEHIND, TAG_CODES, assert_equal, follow, log_bytes, open_slave, write
from store_support import LOG_FILE, open_store, put, queue_files, read_all

from gantrymq.errors import RecordError
from gantrymq.protocol.record import BLANK_SIZE, BODY_AT_V4, offset_of
from gantrymq.protocol.sys_flag import TRANSACTION_PREPARED
from gantrymq.store.consume_queue import UNIT
from gantrymq.store.message_store import MessageStore


def damaged(data: bytes, at: int, mask: int) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def feed(slave: MessageStore, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        slave.replica.append(data[start : start + size])


def assert_has_a_part(master: MessageStore, slave: MessageStore) -> None:
    """Checks that the slave's log is the beginning of the master's log, and that all its records are readable."""
    end = slave.max_physical_offset
    assert slave.replica.received == end
    assert log_bytes(slave, 0) == log_bytes(master, 0)[:end]
    for topic, queue_ids in slave.topics().items():
        for queue_id in queue_ids:
            read_all(slave, slave.queue(topic, queue_id))


@pytest.mark.parametrize("seed", [*range(12), None])
def test_damage_at_any_byte_is_noticed(tmp_path: Path, seed: int | None) -> None:
    """Records with a checksum over all fields: every damage must be detected."""
    if seed is None:
        seed = random.randrange(BEHIND)
        print(f"seed {seed}")
    rng = random.Random(seed)
    with_crc = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}
    master = open_store(tmp_path / "master", **with_crc)
    slave = open_slave(tmp_path / "slave", **with_crc)
    for _ in range(6):
        write(master, rng, 12)
        start = slave.max_physical_offset
        data = log_bytes(master, start)
        at = rng.randrange(len(data))
        with pytest.raises(RecordError):
            feed(slave, damaged(data, at, 1 << rng.randrange(8)), rng.choice((1000, 5000, 1 << 20)))
        assert slave.max_physical_offset <= start + at
        assert_has_a_part(master, slave)
        follow(master, slave, lambda: rng.choice((200, 20_000)))
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


FIELDS = ("size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "body_length")


@pytest.mark.parametrize("field", [*FIELDS, "body", "topic length", "properties length"])
def test_damage_of_a_record_without_a_checksum_over_all(tmp_path: Path, field: str) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    properties = b"TAGS\x01t1\x02"
    for n in range(5):
        put(master, master.queue("T", 3), b"number %d" % n, properties=properties, tags_code=TAG_CODES[1])
    sizes = [size for _, size, _ in UNIT.iter_unpack(master.queue("T", 3).units(0, 5))]
    start = sum(sizes[:3])
    first = {
        "body": BODY_AT_V4,
        "topic length": BODY_AT_V4 + 8,
        "properties length": sizes[3] - len(properties) - 2,
    }.get(field) or offset_of(field)
    length = {"body": 8, "topic length": 1, "properties length": 2, "queue_offset": 8, "physical_offset": 8}.get(
        field, 4
    )
    data = log_bytes(master, 0)
    for at in range(start + first, start + first + length):
        for bit in range(8):
            # The record is the last one received, and the slave must not wait for more.
            with pytest.raises(RecordError, match=rf"at {start} is damaged"):
                slave.replica.append(damaged(data[: start + sizes[3]], at, 1 << bit)[slave.max_physical_offset :])
            assert slave.max_physical_offset == start
            assert slave.topics() == {"T": [3]}
    follow(master, slave, lambda: 100)
    assert_equal(master, slave)
    for store in (master, slave):
        store.close()


def test_what_is_good_before_is_taken(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    results = [put(master, master.queue("T", 0), b"%d" % n) for n in range(5)]
    data = damaged(log_bytes(master, 0), results[3].physical_offset + BODY_AT_V4, 1)
    with pytest.raises(RecordError):
        slave.replica.append(data)
    assert slave.max_physical_offset == results[3].physical_offset
    assert slave.queue("T", 0).max_offset == 3
    # Pending pulls get the messages before the damage.
    assert slave.replica.append(log_bytes(master, slave.max_physical_offset)) == [slave.queue("T", 0)]
    assert_equal(master, slave)
    with pytest.raises(RecordError, match="magic"):
        slave.replica.append(b"\xff" * 100)
    put(master, master.queue("T", 0), b"6")
    assert slave.replica.append(log_bytes(master, slave.max_physical_offset)) == [slave.queue("T", 0)]
    for store in (master, slave):
        store.close()


def test_a_blank_of_another_size(tmp_path: Path) -> None:
    """A slave refuses a log whose files are larger or smaller than its own."""
    for name, size in (("smaller", LOG_FILE // 2), ("larger", LOG_FILE * 2)):
        master = open_store(tmp_path / name)
        slave = open_slave(tmp_path / f"{name} slave", mapped_file_size_commit_log=size)
        for _ in range(3):
            put(master, master.queue("T", 0), bytes(LOG_FILE // 3))
        with pytest.raises(RecordError, match="mappedFileSizeCommitLog" if size > LOG_FILE else "file ends"):
            follow(master, slave, lambda: 1000)
        for store in (master, slave):
            store.close()


def test_a_blank_that_isn_t_empty(tmp_path: Path) -> None:
    """A blank record can contain any bytes, but is usually empty.

    The slave accepts other content only when it receives it twice.
    """
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for _ in range(3):
        put(master, master.queue("T", 0), bytes(LOG_FILE // 3))
    data = log_bytes(master, 0)
    at = LOG_FILE - 1
    assert data[at - BLANK_SIZE : at + 1] == bytes(BLANK_SIZE + 1)
    with pytest.raises(RecordError, match="isn't empty"):
        slave.replica.append(damaged(data, at, 1))
    slave.replica.append(damaged(data, at, 1)[slave.max_physical_offset :])
    assert log_bytes(slave, 0) == damaged(data, at, 1)
    for store in (master, slave):
        store.close()


# -- queue offsets ---------------------------------------------------------------------------------------------------


def skipped(master: MessageStore, offset: int) -> None:
    """Changes the next queue offset of the master's queue, as a disk failure can."""
    queue = master.queue("T", 0)
    if offset > queue.max_offset:
        queue.skip_to(offset)
    else:
        queue.cut(offset)


@pytest.mark.parametrize("offset", [2, 9, 170])
def test_a_queue_offset_that_isn_t_the_next_one(tmp_path: Path, offset: int) -> None:
    """The slave accepts an unexpected queue offset only when it receives it twice.

    Then the offset is correct in the master's log, and the slave's queue becomes equal to the master's.
    """
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(5):
        put(master, master.queue("T", 0), b"x" * 400 + b"%d" % n)
    follow(master, slave, lambda: BEHIND)
    for _ in range(50):
        put(master, master.queue("Other", 0), b"x" * 400)
    skipped(master, offset)
    for n in range(3):
        put(master, master.queue("T", 0), b"later %d" % n)
    with pytest.raises(RecordError, match="must be copied again"):
        follow(master, slave, lambda: BEHIND)
    assert slave.queue("T", 0).max_offset == 5
    follow(master, slave, lambda: BEHIND)
    queue = slave.queue("T", 0)
    assert queue.max_offset == offset + 3
    assert [queue.unit(n) for n in range(offset + 3)] == [master.queue("T", 0).unit(n) for n in range(offset + 3)]
    put(master, master.queue("T", 0), b"last")
    follow(master, slave, lambda: BEHIND)
    assert read_all(slave, queue)[-1].body == b"last"
    for store in (master, slave):
        store.close()


def test_a_topic_made_anew_begins_at_0_at_once(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for _ in range(2):
        for n in range(120):
            put(master, master.queue("T", n % 2), b"%d" % n)
        old = slave.queue("T", 0)
        follow(master, slave, lambda: BEHIND)
        assert_equal(master, slave)
        assert len(queue_files(tmp_path / "slave", "T")) == 2
        master.delete_topic("T")
    assert slave.queue("T", 0) is not old
    for store in (master, slave):
        store.close()


def test_a_topic_deleted_on_the_slave_goes_on_in_the_middle(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    for n in range(60):
        put(master, master.queue("T", 0), b"%d" % n)
    follow(master, slave, lambda: BEHIND)
    slave.delete_topic("T")
    put(master, master.queue("T", 0), b"60")
    with pytest.raises(RecordError):
        follow(master, slave, lambda: BEHIND)
    follow(master, slave, lambda: BEHIND)
    queue = slave.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (60, 61)
    assert [record.body for record in read_all(slave, queue)] == [b"60"]
    for store in (master, slave):
        store.close()


def test_prepared_records_are_in_no_queue(tmp_path: Path) -> None:
    master, slave = open_store(tmp_path / "master"), open_slave(tmp_path / "slave")
    result = put(master, master.queue("T", 0), b"half", sys_flag=TRANSACTION_PREPARED)
    follow(master, slave, lambda: BEHIND)
    assert slave.topics() == {}
    assert slave.read_record(result.physical_offset).body == b"half"
    data = damaged(slave.record_bytes(0), offset_of("queue_id"), 0x80)
    other = open_slave(tmp_path / "other")
    with pytest.raises(RecordError, match="can't be right"):
        other.replica.append(data)
    for store in (master, slave, other):
        store.close()
