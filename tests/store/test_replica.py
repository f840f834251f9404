"""A slave's store that receives its master's log in pieces."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_code import BOTH, use_python
from replica_support import append, assert_equal, follow, log_bytes, open_slave, write
from store_support import LOG_FILE, open_store, put, read_all

from gantrymq.errors import StoreError
from gantrymq.store import log_reader
from gantrymq.store.message_store import MessageStore
from gantrymq.store.verify import verify

PIECES = {
    "bytes": (1, 3, 7, 50),
    "records": (100, 1000),
    "frames": (32 * 1024,),
    "files": (1 << 20,),
    "mixed": (1, 20, 500, 20_000),
}


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


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "master")
    yield store
    store.close()


@pytest.fixture
def slave(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_slave(tmp_path / "slave")
    yield store
    store.close()


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "asks"])
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_a_log_in_pieces(tmp_path: Path, master: MessageStore, pieces: tuple[int, ...], waits: bool) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    slave = open_slave(tmp_path / "slave", waits=waits)
    for _ in range(3):
        write(master, rng, 30 if pieces[0] == 1 else 100)
        follow(master, slave, lambda: rng.choice(pieces))
        slave.replica.restart()
    assert_equal(master, slave)
    config = slave.config
    slave.close()
    assert verify(config).problems == []
    again = open_slave(tmp_path / "slave")
    assert_equal(master, again)
    again.close()


def test_the_beginning_of_a_record_is_held_back(master: MessageStore, slave: MessageStore) -> None:
    result = put(master, master.queue("T", 0), b"one")
    data = bytes(master.log_slice(0, 1000) or b"")
    assert len(data) == result.size
    for n in range(len(data) - 1):
        assert slave.replica.append(data[n : n + 1]) == []
        assert slave.replica.received == n + 1
        assert slave.max_physical_offset == 0
        assert slave.topics() == {}
    assert slave.replica.append(data[-1:]) == [slave.queue("T", 0)]
    assert [record.body for record in read_all(slave, slave.queue("T", 0))] == [b"one"]


def test_what_is_unfinished_is_forgotten(master: MessageStore, slave: MessageStore) -> None:
    put(master, master.queue("T", 0), b"one")
    data = bytes(master.log_slice(0, 1000) or b"")
    slave.replica.append(data[:50])
    slave.replica.restart()
    assert slave.replica.received == 0
    append(slave, data)
    assert_equal(master, slave)


def test_a_slave_takes_no_messages(master: MessageStore, slave: MessageStore) -> None:
    put(master, master.queue("T", 0), b"one")
    append(slave, master.log_slice(0, 1000) or b"")
    queue = slave.queue("T", 0)
    for _ in range(2):
        with pytest.raises(StoreError, match="is a slave"):
            put(slave, queue, b"two")
        batch = slave.begin_batch(queue, 0, 1, bytes(8), 0)
        batch.add(0, b"two", b"", 0)
        with pytest.raises(StoreError, match="is a slave"):
            slave.append_batch(batch)
    assert queue.max_offset == 1
    with pytest.raises(StoreError, match="isn't a slave"):
        master.replica.append(b"")


def test_a_slave_that_becomes_master_goes_on(master: MessageStore, slave: MessageStore) -> None:
    for n in range(5):
        put(master, master.queue("T", 0), b"%d" % n)
    data = master.log_slice(0, 1000) or b""
    append(slave, data)
    slave.replica.append(b"unfinished"[:4])
    slave.set_slave(False)
    result = put(slave, slave.queue("T", 0), b"5")
    assert (result.queue_offset, result.physical_offset) == (5, master.max_physical_offset)
    put(master, master.queue("T", 0), b"5")
    slave.set_slave(True)
    with pytest.raises(StoreError, match="is a slave"):
        put(slave, slave.queue("T", 0), b"6")


@pytest.mark.parametrize("with_blank", [False, True])
def test_a_new_master_at_the_end_of_a_file(master: MessageStore, slave: MessageStore, with_blank: bool) -> None:
    for n in range(3):
        put(master, master.queue("T", 0), b"%d" % n + bytes(LOG_FILE // 3))
    append(slave, log_bytes(master, 0)[: LOG_FILE if with_blank else 2 * len(master.record_bytes(0))])
    assert (slave.max_physical_offset == LOG_FILE) == with_blank
    slave.set_slave(False)
    for n in range(2, 6):
        put(slave, slave.queue("T", 0), b"%d" % n + bytes(LOG_FILE // 3))
    assert read_all(slave, slave.queue("T", 0))[2].physical_offset == LOG_FILE
    assert [record.body[:1] for record in read_all(slave, slave.queue("T", 0))] == [b"%d" % n for n in range(6)]


def test_a_slice_of_the_log(master: MessageStore) -> None:
    assert master.log_slice(0, 100) is None
    with pytest.raises(StoreError, match="nothing at 1"):
        master.log_slice(1, 100)
    with pytest.raises(StoreError, match="nothing at -1"):
        master.log_slice(-1, 100)
    result = put(master, master.queue("T", 0), b"one")
    assert len(master.log_slice(0, 10) or b"") == 10
    piece = master.log_slice(5, 1 << 20)
    assert piece is not None
    assert piece.readonly
    assert len(piece) == result.size - 5
    assert bytes(piece) == master.record_bytes(0)[5:]
