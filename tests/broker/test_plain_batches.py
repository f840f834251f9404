"""Batches that native code stores.

They are stored and answered as by Python. Native code stores only batches with a cached header.
"""

from __future__ import annotations

import random
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from broker_support import set_request_slice
from plain_sends_support import (
    IN_BATCH,
    OF_BATCH,
    WAYS,
    Client,
    any_batch,
    batch_frame,
    frame,
    known,
    properties_of,
    running,
    stored,
)
from wait_until import until

from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.kernels import native
from gantrymq.protocol.batch import MAX_BATCH_MESSAGES, encode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.record import encode_host
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import SYNC_FLUSH

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

MESSAGES = [(number, b"body %d" % number, IN_BATCH[number % 4]) for number in range(32)]


def batches(*opaques: int, way: str = "java", properties: str = OF_BATCH) -> bytes:
    return b"".join(batch_frame(way, opaque, MESSAGES, properties) for opaque in opaques)


async def told(broker: Broker) -> Client:
    """Returns a client whose batch header native code has cached."""
    client = Client(broker)
    for opaque in (1, 2):
        client.read(batches(opaque))
    assert known(broker) == 1
    return client


@pytest.mark.parametrize("properties", [OF_BATCH, OF_BATCH[:-1], ""], ids=["whole", "without end", "none"])
@pytest.mark.parametrize("way", WAYS)
async def test_python_handles_the_first_one_only(
    way: str, properties: str, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    for natively in (False, True):
        async with running(tmp_path / str(natively), monkeypatch, natively=natively, region_id="там") as broker:
            client = Client(broker)
            by_python.clear()
            for opaques in ([1], [2], range(3, 12)):
                seen.append(client.read(batches(*opaques, way=way, properties=properties)))
            assert set(by_python) == ({1, 2} if natively else set(range(1, 12)))
            queue = broker.store.queue("orders", 0)
            assert (queue.max_offset, queue.dirty) == (11 * len(MESSAGES), True)
            seen.append(stored(broker))
    assert seen[:4] == seen[4:]


@pytest.mark.parametrize("seed", range(4))
async def test_both_ways_are_the_same(
    seed: int, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data also crosses the ends of log and queue files."""
    draw = random.Random(seed)
    settings: dict[str, Any] = {"auto_create_topic_enable": False}
    settings["of_store"] = {"mapped_file_size_commit_log": 1024 * 1024}
    async with (
        running(tmp_path / "python", monkeypatch, natively=False, **settings) as one,
        running(tmp_path / "native", monkeypatch, **settings) as other,
    ):
        by_native, by_other = Client(other), Client(one)
        opaque = natively_stored = 0
        for _ in range(60):
            count = draw.choice([1, 3, 10])
            data = b"".join(any_batch(draw, opaque + number) for number in range(1, count + 1))
            opaque += count
            by_python.clear()
            answers = by_native.read(data)
            natively_stored += count - len(set(by_python))
            assert answers == by_other.read(data)
        assert stored(other) == stored(one)
        assert other.store.max_physical_offset > 2 * other.config.store.mapped_file_size_commit_log
        assert 30 < natively_stored < opaque


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_batch(MESSAGES)[:-1],
        encode_batch(MESSAGES) + b"\0",
        pack(">iiiii", 21, 0, 0, 0, 0) + b"\0",
        encode_batch([*MESSAGES, (0, b"x", b"POP_CK\x01x\x02")]),
        encode_batch([(0, b"", b"")] * (MAX_BATCH_MESSAGES + 1)),
        encode_batch([(0, bytes(1000), b"")] * 900),
        encode_batch([(0, b"", b"")] * 12_000),
    ],
    ids=["empty", "cut off", "too long", "too short", "receipt", "too many", "too large", "larger than a file"],
)
async def test_what_is_odd_ends_the_call(
    body: bytes, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code stops at the odd batch.

    Python alone stores that batch, however much of it is valid.
    """
    seen: list[Any] = []
    for natively in (False, True):
        async with running(
            tmp_path / str(natively), monkeypatch, natively=natively, of_store={"max_message_size": 800_000}
        ) as broker:
            client = Client(broker)
            odd = frame("java", 4, body, OF_BATCH, code=320, m="true")
            by_python.clear()
            for data in (batches(1), batches(2), batches(3) + odd + batches(5), batches(6)):
                seen.append(client.read(data))
            seen.append(stored(broker))
    assert by_python == [1, 2, 4, 5]
    assert seen[:5] == seen[5:]


@pytest.mark.parametrize("item", ["DELAY\x012", "DELAY\x010", "TRAN_MSG\x01true", "POP_CK\x01x"])
async def test_properties_that_ask_for_something(
    item: str, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        client.read(batches(3, properties=properties_of("WAIT\x01true", item)))
        client.read(batches(4))
        assert by_python == [1, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [{"f": 4}, {"f": 8}, {"j": 1}, {"e": -1}, {"flag": 2}, {"b": "%RETRY%orders"}, {"gantryAfter": "-1:00000000"}],
    ids=lambda fields: " ".join(f"{name} {value}" for name, value in fields.items()),
)
async def test_headers_of_which_nothing_is_told(
    fields: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code does not cache these headers.

    One of them belongs to batches of idempotent writers, which contain the preceding write id.
    """
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        rows = [(0, b"x", b"GANTRY_ID\x01w-0-0-%d\x02GANTRY_SEQ\x01%016d\x02" % (row, row)) for row in range(3)]
        for opaque in range(1, 5):
            client.read(batch_frame("binary", opaque, rows, **fields))  # type: ignore[arg-type]
        assert known(broker) == 0


async def test_a_batch_waits_behind_a_long_one(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        queue = broker.store.queue("orders", 0)
        before = queue.max_offset
        with monkeypatch.context() as patch:
            set_request_slice(patch, 0.0)
            assert client.read(batch_frame("binary", 3, [(0, b"long", b"")] * 3000)) == b""
            assert client.read(batches(4)) == b""
            assert by_python == [1, 2, 3, 4]
            await until(lambda: queue.max_offset == before + 3000 + len(MESSAGES))
        unit = queue.unit(before)
        assert unit is not None
        assert broker.store.read_record(unit[0]).body == b"long"
        assert client.answers(batches(5))
        assert by_python == [1, 2, 3, 4]


_SLAVES = ReplicationConfig(in_sync_replicas=2, slave_timeout=30)


@pytest.mark.parametrize(
    "changed",
    [
        {"broker_role": BrokerRole.SYNC_MASTER, "replication": _SLAVES},
        {"of_store": {"flush_disk_type": SYNC_FLUSH}},
    ],
    ids=["slaves", "disk"],
)
async def test_answers_wait(
    changed: dict[str, Any], by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses wait for slow slaves or for the disk, unless the batch has `WAIT=false`."""
    seen: list[Any] = []
    for natively in (False, True):
        async with running(tmp_path / str(natively), monkeypatch, natively=natively, **changed) as broker:
            waits = next(part for part in broker.features.all if isinstance(part, PendingResponses))
            client = Client(broker)
            by_python.clear()
            answers = []
            for opaques in ((1,), (2,), (3, 4, 5), (6, 7)):
                assert client.read(batches(*opaques)) == b""
                await until(lambda waits=waits, client=client: waits.count == 0 and client.written)  # type: ignore[misc]
                answers += [(answer.opaque, answer.code, answer.ext_fields) for answer in client.taken()]
            careless = client.answers(batches(8, properties=properties_of("WAIT\x01false")))
            assert [answer.code for answer in careless] == [ResponseCode.SUCCESS]
            seen += [answers, stored(broker)]
    assert by_python == [1, 2, 8]
    assert seen[:2] == seen[2:]
    assert len(seen[0]) == 7


class Queue:
    """A consume queue with `room` free bytes."""

    def __init__(self, room: int) -> None:
        self.mapping, self.position, self.limit, self.max_offset = bytearray(room), 40, room, 5


class Log:
    """A commit log with `room` free bytes."""

    def __init__(self, room: int) -> None:
        self.position, self.limit, self.store_timestamp = 4196, 4196 + room, 0
        self.written: list[bytes] = []

    def write(self, records: bytes) -> None:
        self.written.append(records)


@pytest.mark.parametrize(("of_log", "of_queue"), [(10_000, 680), (1900, 680), (10_000, 679)])
def test_without_room_for_all_nothing_is_written(of_log: int, of_queue: int) -> None:
    assert native is not None
    host = encode_host("127.0.0.1", 10911)
    parts = b"7F000001", (b"", b""), (b"{", b"", b"", b"", b"}")
    sends = native.PlainSends([], b"POP_CK\x01", b"", host, (1 << 20, 100, 1 << 20), *parts, (b"KEY\x01", []))
    log, queue = Log(of_log), Queue(of_queue)
    assert sends.handle(batches(1), log, 7, host)[4]
    properties = OF_BATCH.encode()
    assert sends.allow(1, 1_700_000_000_124, properties, b"orders", 3, 0, 0, True, 320, queue)  # type: ignore[arg-type]
    answers, requests, dealt, queues, is_asking = sends.handle(batches(2), log, 7, host)
    assert not is_asking
    if (of_log, of_queue) == (10_000, 680):
        assert (requests, dealt, queues, len(answers) > 0) == ([(320, 1)], len(batches(2)), [queue], True)
        assert (queue.max_offset, queue.position, log.store_timestamp) == (37, 680, 7)
        assert [4196 + len(records) for records in log.written] == [log.position]
    else:
        assert (requests, dealt, queues, answers) == ([], 0, [], b"")
        assert not log.written
        assert not any(queue.mapping)
        assert (log.position, queue.position, queue.max_offset) == (4196, 40, 5)
