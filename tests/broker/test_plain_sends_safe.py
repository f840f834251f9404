"""Plain sends whose responses wait for the disk or for slaves.

The sends of one read wait together.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from plain_sends_support import WAYS, Client, any_send, frame, known, properties_of, running, stored
from wait_until import until

from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.errors import RefusalReason, StoreError
from gantrymq.kernels import native
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.private_fields import REASON_FIELD, TIMEOUT_FIELD
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import SYNC_FLUSH

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

SUCCESS = ResponseCode.SUCCESS


def waits_of(broker: Broker) -> PendingResponses:
    return broker.features.waits.flush


def for_slaves(timeout_ms: int = 5_000) -> dict[str, Any]:
    """Returns broker options that make each response wait for one slave."""
    replication = ReplicationConfig(in_sync_replicas=2, slave_timeout=timeout_ms)
    return {"broker_role": BrokerRole.SYNC_MASTER, "replication": replication}


class Slave:
    """Simulates the slave of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._events = broker.context.events
        self._has = 0
        broker.replication.replicated = lambda count: self._has  # type: ignore[method-assign]

    def has(self, end: int) -> None:
        self._has = end
        self._events.replica_acknowledged.publish()


async def told(broker: Broker, slave: Slave, way: str = "java") -> Client:
    """Returns a client whose header native code has cached."""
    client = Client(broker)
    for opaque in (1, 2):
        client.read(frame(way, opaque))
    slave.has(broker.store.max_physical_offset)
    await until(lambda: client.written)
    assert len(client.taken()) == 2
    assert known(broker) == 1
    return client


def frames(*opaques: int, way: str = "java", **fields: object) -> bytes:
    return b"".join(frame(way, opaque, **fields) for opaque in opaques)  # type: ignore[arg-type]


def said(client: Client) -> list[tuple[int, int]]:
    """Returns (opaque number, code) of the responses since the last call."""
    return [(answer.opaque, answer.code) for answer in client.taken()]


async def test_those_of_one_read_are_answered_when_the_slave_has_the_last(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        slave = Slave(broker)
        client = await told(broker, slave)
        client.read(frames(3, 4))
        middle = broker.store.max_physical_offset
        client.read(frames(5, 6))
        end = broker.store.max_physical_offset
        slave.has(middle - 1)
        slave.has(middle)
        await until(lambda: client.written)
        assert said(client) == [(3, SUCCESS), (4, SUCCESS)]
        slave.has(end)
        await until(lambda: client.written)
        assert (said(client), by_python) == ([(5, SUCCESS), (6, SUCCESS)], [1, 2])


async def test_what_is_acknowledged_together_is_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        slave = Slave(broker)
        client = await told(broker, slave)
        for opaque in (3, 4, 5):
            client.read(frames(opaque))
        # Python handles the last send, and its response.
        client.read(frames(6, properties=properties_of("UNIQ_KEY\x017F", "WAIT\x01True")))
        slave.has(broker.store.max_physical_offset)
        await until(lambda: client.written)
        assert client.written == 1
        assert said(client) == [(n, SUCCESS) for n in (3, 4, 5, 6)]


@pytest.mark.parametrize("way", WAYS)
async def test_each_answer_says_that_the_slaves_are_late(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves(timeout_ms=30)) as broker:
        slave = Slave(broker)
        client = await told(broker, slave, way)
        client.read(frames(3, 4, 5, way=way))
        await until(lambda: client.written)
        answers = client.taken()
        assert [(answer.opaque, answer.code) for answer in answers] == [
            (n, ResponseCode.FLUSH_SLAVE_TIMEOUT) for n in (3, 4, 5)
        ]
        assert [answer.ext_fields["queueOffset"] for answer in answers] == ["2", "3", "4"]


async def test_a_deposed_master_refuses_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        client = await told(broker, Slave(broker))
        client.read(frames(3, 4))
        await waits_of(broker).become_slave()
        await until(lambda: client.written)
        answers = client.taken()
        assert [(answer.opaque, answer.code) for answer in answers] == [
            (n, ResponseCode.SERVICE_NOT_AVAILABLE) for n in (3, 4)
        ]
        assert "another broker has become master" in str(answers[0].remark)
        assert answers[0].ext_fields[REASON_FIELD] == RefusalReason.MAY_BE_STORED


async def test_a_disk_that_fails_is_said_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, of_store={"flush_disk_type": SYNC_FLUSH}) as broker:
        asked: list[Callable[[Exception | None], None]] = []
        client = Client(broker)
        for opaque in (1, 2):
            client.read(frames(opaque))
        await until(lambda: waits_of(broker).count == 0)
        await until(lambda: client.written)
        client.taken()
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "when_flushed", lambda end, then: asked.append(then))
            client.read(frames(3, 4))
        [then] = asked
        assert not client.written
        then(StoreError("the disk is gone"))
        await until(lambda: client.written)
        answers = client.taken()
        assert [(answer.opaque, answer.code) for answer in answers] == [(n, ResponseCode.SYSTEM_ERROR) for n in (3, 4)]
        assert "the disk is gone" in str(answers[1].remark)
        assert answers[1].ext_fields[REASON_FIELD] == RefusalReason.MAY_BE_STORED


@pytest.mark.parametrize("value", ["false", "", "TRUE", "true1", " true"])
async def test_who_says_anything_else_than_true_is_left_to_python(
    value: str, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        client = await told(broker, Slave(broker))
        client.read(frames(3, properties=properties_of("UNIQ_KEY\x017F", "WAIT\x01" + value)))
        assert by_python == [1, 2, 3]
        assert bool(client.written) == (value not in ("", "TRUE"))
        # The properties as Java clients write them, with and without the final separator that V1 clients omit.
        client.read(frames(4, properties=properties_of("WAIT\x01true", "UNIQ_KEY\x017F")))
        client.read(frames(5, properties=properties_of("UNIQ_KEY\x017F", "WAIT\x01true")[:-1]))
        assert by_python == [1, 2, 3]


async def test_where_answers_do_not_wait_nobody_is_asked_whether_he_would(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        unwaited = properties_of("UNIQ_KEY\x017F", "WAIT\x01false")
        for opaque in (1, 2):
            client.read(frames(opaque, properties=unwaited))
        client.read(frames(3, 4, properties=unwaited))
        assert by_python == [1, 2]
        assert said(client) == [(n, SUCCESS) for n in (3, 4)]


async def test_too_many_that_wait_make_the_broker_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = for_slaves() | {"send_thread_pool_queue_capacity": 3}
    async with running(tmp_path, monkeypatch, **changed) as broker:
        slave = Slave(broker)
        client = await told(broker, slave)
        client.read(frames(3, 4, 5))
        end = broker.store.max_physical_offset
        client.read(frames(6, 7))
        assert said(client) == [(n, ResponseCode.SYSTEM_BUSY) for n in (6, 7)]
        assert broker.store.max_physical_offset == end
        slave.has(end)
        client.read(frames(8))
        slave.has(broker.store.max_physical_offset)
        await until(lambda: waits_of(broker).count == 0)
        await until(lambda: client.written)
        assert said(client) == [(n, SUCCESS) for n in (3, 4, 5, 8)]


async def test_nothing_is_taken_with_too_few_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        client = await told(broker, Slave(broker))
        end = broker.store.max_physical_offset
        waits_of(broker).lacks_replicas = True
        [answer] = client.answers(frames(3))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        assert answer.ext_fields[REASON_FIELD] == RefusalReason.NOT_ENOUGH_REPLICAS
        assert broker.store.max_physical_offset == end


async def test_answers_of_a_closed_connection_go_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        slave = Slave(broker)
        client = await told(broker, slave)
        client.read(frames(3))
        client.connection.close()
        slave.has(broker.store.max_physical_offset)
        assert waits_of(broker).count == 0
        assert not client.written


async def test_answers_that_were_gathered_go_before_the_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves()) as broker:
        slave = Slave(broker)
        client = await told(broker, slave)
        client.read(frames(3))
        slave.has(broker.store.max_physical_offset)
        assert not client.written
        client.connection.close()
        assert said(client) == [(3, SUCCESS)]


@pytest.mark.parametrize("seed", range(4))
async def test_both_ways_are_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares responses, log and queues, like `test_plain_sends`."""
    draw = random.Random(seed)
    settings: dict[str, Any] = {"auto_create_topic_enable": False, "message_delay_level": "1h 2h"} | for_slaves()
    async with (
        running(tmp_path / "python", monkeypatch, natively=False, **settings) as one,
        running(tmp_path / "native", monkeypatch, **settings) as other,
    ):
        clients = Client(one), Client(other)
        slaves = Slave(one), Slave(other)
        opaque = 0
        for _ in range(30):
            sent = []
            for _ in range(draw.choice([1, 3, 40])):
                opaque += 1
                sent.append(any_send(draw, opaque))
            for client, slave, broker in zip(clients, slaves, (one, other), strict=True):
                client.read(b"".join(sent))
                slave.has(broker.store.max_physical_offset)
                # The responses are written at the end of the event-loop iteration.
                await asyncio.sleep(0)
            by_python, by_native = (sorted(each.encode() for each in client.taken()) for client in clients)
            assert by_native == by_python
        assert stored(other) == stored(one)
        assert known(other) > 8


async def within(broker: Broker, client: Client) -> float:
    """Returns the time until all requests are answered, in seconds."""
    began = time.monotonic()
    await until(lambda: waits_of(broker).count == 0 and client.written)
    return time.monotonic() - began


@pytest.mark.parametrize("way", [way for way in WAYS if way != "java V1"])
async def test_each_waits_as_its_client_does(
    way: str, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two producers share a connection.

    The sends with the short timeout are answered in time, and the others continue to wait.
    """
    async with running(tmp_path, monkeypatch, **for_slaves(timeout_ms=60_000)) as broker:
        slave = Slave(broker)
        client = await told(broker, slave, way)
        hasty = {"way": way, TIMEOUT_FIELD: "900"}
        for opaque in (3, 4):
            client.read(frames(opaque, **hasty))
            slave.has(broker.store.max_physical_offset)
            await until(lambda: client.written)
            assert said(client) == [(opaque, SUCCESS)]
        client.read(frames(5, 6, **hasty))
        assert (by_python, known(broker)) == ([1, 2, 3, 4], 2)
        client.read(frames(7, **hasty | {TIMEOUT_FIELD: "90000"}))
        client.read(frames(8, **hasty))
        await until(lambda: waits_of(broker).count == 1)
        await asyncio.sleep(0)
        late = ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert sorted(said(client)) == [(5, late), (6, late), (8, late)]
        slave.has(broker.store.max_physical_offset)
        await until(lambda: client.written)
        assert said(client) == [(7, SUCCESS)]


async def test_many_different_timeouts_are_left_to_python(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, **for_slaves(timeout_ms=60_000)) as broker:
        slave = Slave(broker)
        client = await told(broker, slave)
        opaques = range(3, 15)
        for opaque in opaques:
            client.read(frames(opaque, **{TIMEOUT_FIELD: str(opaque * 10_000)}))
        slave.has(broker.store.max_physical_offset)
        await until(lambda: waits_of(broker).count == 0)
        await until(lambda: client.written)
        assert sorted(said(client)) == [(opaque, SUCCESS) for opaque in opaques]
        assert len(by_python) == 2 + len(opaques)
        # The header without a timeout is still cached.
        client.read(frames(100))
        client.read(frames(101))
        assert 101 not in by_python


@pytest.mark.parametrize("value", ["0", "-5", "abc", "1e3", "\u0663\u0660\u0660", "", "9" * 5_000])
async def test_timeouts_that_are_none(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an invalid timeout, the default applies. The wait is never longer than `slaveTimeout`."""
    async with running(tmp_path, monkeypatch, **for_slaves(timeout_ms=100)) as broker:
        client = Client(broker)
        client.read(frames(1, 2, way="binary", **{TIMEOUT_FIELD: value}))
        assert not client.written
        assert await within(broker, client) < 1.5
        assert said(client) == [(n, ResponseCode.FLUSH_SLAVE_TIMEOUT) for n in (1, 2)]
