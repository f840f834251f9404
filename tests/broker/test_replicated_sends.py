"""The response of a `SYNC_MASTER` to each kind of send, for each state of its slaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_support import Peer, config
from paused_slaves import pause_slave, resume_slave
from replicated_brokers import Replicas
from slow_disk import SlowDisk
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.headers.transaction import EndTransactionRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.private_fields import TIMEOUT_FIELD, UNCONFIRMED_FIELD
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT
from gantrymq.remoting.client import RemotingClient

LATE_MS = 150
KINDS = ("single", "batch", "half", "delayed", "timed")
LATE = ResponseCode.FLUSH_SLAVE_TIMEOUT


async def send(peer: Peer, kind: str, fields: dict[str, str] | None = None) -> RemotingCommand:
    match kind:
        case "batch":
            batch = encode_batch([(0, b"x", b""), (0, b"y", b"")])
            return await peer.send("orders", batch, code=RequestCode.SEND_BATCH_MESSAGE, fields=fields)
        case "half":
            properties = {"TRAN_MSG": "true", "PGROUP": "producers"}
            return await peer.send("orders", b"x", properties=properties, fields=fields)
        case "delayed":
            return await peer.send("orders", b"x", properties={"DELAY": "1"}, fields=fields)
        case "timed":
            return await peer.send("orders", b"x", properties={"TIMER_DELAY_SEC": "60"}, fields=fields)
    return await peer.send("orders", b"x", fields=fields)


@pytest.fixture(params=[1, 2], ids=["one_slave", "two_slaves"])
async def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path, request.param) as replicas:
        yield replicas


@pytest.mark.parametrize("kind", KINDS)
async def test_ok_when_the_slaves_have_it(replicas: Replicas, kind: str) -> None:
    peer = await replicas.peer()
    assert (await send(peer, kind)).code == ResponseCode.SUCCESS
    end = replicas.master.store.max_physical_offset
    assert all(slave.store.max_physical_offset == end for slave in replicas.brokers.values())


@pytest.mark.parametrize("kind", KINDS)
async def test_late_when_a_slave_takes_nothing(replicas: Replicas, kind: str) -> None:
    peer = await replicas.peer()
    assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
    replicas.master.config.replication.slave_timeout = LATE_MS
    pause_slave(replicas.slave)
    answer = await send(peer, kind)
    assert answer.code == LATE
    assert answer.ext_fields["msgId"]
    careless = await peer.send("orders", b"careless", properties={"WAIT": "false"})
    assert careless.code == ResponseCode.SUCCESS
    resume_slave(replicas.slave)
    replicas.master.config.replication.slave_timeout = 10_000
    assert (await send(peer, kind)).code == ResponseCode.SUCCESS


async def test_without_slaves(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 0) as replicas:
        replicas.master.config.replication.slave_timeout = LATE_MS
        peer = await replicas.peer()
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        replicas.master.config.replication.in_sync_replicas = 2
        replicas.master.context.events.config_changed.publish()
        assert [(await send(peer, kind)).code for kind in KINDS] == [LATE] * len(KINDS)


async def test_java_s_default_waits_for_no_slave(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 1)
    replicas.replication = {}
    async with replicas:
        pause_slave(replicas.slave)
        peer = await replicas.peer()
        assert [(await send(peer, kind)).code for kind in KINDS] == [ResponseCode.SUCCESS] * len(KINDS)


async def test_an_async_master_waits_for_nobody(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        pause_slave(replicas.slave)
        peer = await replicas.peer()
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        assert not replicas.master.features.waits.flush.is_used


async def test_one_of_two_slaves_is_enough(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 2)
    replicas.replication["in_sync_replicas"] = 2
    async with replicas:
        pause_slave(replicas.brokers[2])
        peer = await replicas.peer()
        assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
        replicas.master.config.replication.slave_timeout = LATE_MS
        pause_slave(replicas.brokers[1])
        assert (await peer.send("orders", b"x")).code == LATE


async def test_a_slave_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        assert (await peer.send("orders", b"1")).code == ResponseCode.SUCCESS
        await replicas.stop(1)
        replicas.master.config.replication.slave_timeout = LATE_MS
        assert (await peer.send("orders", b"2")).code == LATE
        replicas.master.config.replication.slave_timeout = 10_000
        waiting = asyncio.ensure_future(peer.send("orders", b"3"))
        await replicas.start(1)
        assert (await waiting).code == ResponseCode.SUCCESS
        pulled = await (await replicas.peer(1)).pull("orders")
        assert [message.body for message in decode_messages(pulled.body)] == [b"1", b"2", b"3"]


async def test_many_that_wait_are_answered_together_and_once(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        await peer.send("orders", b"first")
        pause_slave(replicas.slave)
        sends = [asyncio.ensure_future(peer.send("orders", b"%d" % n)) for n in range(100)]
        waits = replicas.master.features.waits.flush
        await until(lambda: waits.count == 100)
        resume_slave(replicas.slave)
        answers = await asyncio.gather(*sends)
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 100
        assert [answer.ext_fields["queueOffset"] for answer in answers] == [str(n + 1) for n in range(100)]
        assert waits.count == 0


async def test_disk_and_slaves_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    replicas = Replicas(tmp_path, 1)
    # Only the responses of the master wait for the disk.
    replicas.master_store_options["flush_disk_type"] = "SYNC_FLUSH"
    try:
        async with replicas:
            master = replicas.master
            peer = await replicas.peer()
            assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
            disk.works.clear()
            master.config.store.sync_flush_timeout_ms = LATE_MS
            assert (await peer.send("orders", b"x")).code == ResponseCode.FLUSH_DISK_TIMEOUT
            master.config.replication.slave_timeout = LATE_MS
            pause_slave(replicas.slave)
            # If both are late, Java reports the slave.
            assert (await peer.send("orders", b"x")).code == LATE
            disk.works.set()
            assert (await peer.send("orders", b"x")).code == LATE
            resume_slave(replicas.slave)
            master.config.replication.slave_timeout = 10_000
            assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
            assert master.features.waits.flush.count == 0
    finally:
        disk.works.set()


async def test_what_waits_for_slaves_makes_the_broker_busy(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 1)
    replicas.options["send_thread_pool_queue_capacity"] = 3
    async with replicas:
        peer = await replicas.peer()
        await peer.send("orders", b"first")
        pause_slave(replicas.slave)
        replicas.master.config.replication.slave_timeout = LATE_MS
        answers = await asyncio.gather(*(peer.send("orders", b"x") for _ in range(5)))
        assert sorted(answer.code for answer in answers) == sorted([LATE] * 3 + [ResponseCode.SYSTEM_BUSY] * 2)


async def test_a_transaction_s_end_waits_and_says_nothing_of_it(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        half = await send(peer, "half")
        pause_slave(replicas.slave)
        header = EndTransactionRequestHeader(
            producer_group="producers",
            tran_state_table_offset=int(half.ext_fields["queueOffset"]),
            commit_log_offset=decode_offset_message_id(half.ext_fields["msgId"])[1],
            commit_or_rollback=TRANSACTION_COMMIT,
            msg_id=half.ext_fields["transactionId"],
        )
        ending = asyncio.ensure_future(peer.ask(RequestCode.END_TRANSACTION, header))
        await until(lambda: replicas.master.features.waits.flush.count == 1)
        assert not ending.done()
        resume_slave(replicas.slave)
        assert (await ending).code == ResponseCode.SUCCESS


async def test_a_message_that_is_given_back_waits_too(tmp_path: Path) -> None:
    """A send-back waits for slaves, because the consumer drops the message after the acknowledgement.

    Java's broker does not wait for slaves here.
    """
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        sent = await peer.send("orders", b"x")
        await peer.pull("orders")
        pause_slave(replicas.slave)
        header = ConsumerSendMsgBackRequestHeader(
            offset=decode_offset_message_id(sent.ext_fields["msgId"])[1], group="consumers", delay_level=1
        )
        giving_back = asyncio.ensure_future(peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header))
        await until(lambda: replicas.master.features.waits.flush.count == 1)
        resume_slave(replicas.slave)
        assert (await giving_back).code == ResponseCode.SUCCESS


async def test_without_a_controller_a_consumer_is_not_told_of_late_slaves(tmp_path: Path) -> None:
    """Without a controller, a send-back succeeds although slaves are late.

    The consumer cannot help a slave that is down. Each retry would only store another copy.
    """
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        sent = await peer.send("orders", b"x")
        pause_slave(replicas.slave)
        replicas.master.config.replication.slave_timeout = LATE_MS
        header = ConsumerSendMsgBackRequestHeader(
            offset=decode_offset_message_id(sent.ext_fields["msgId"])[1], group="consumers", delay_level=1
        )
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", KINDS)
async def test_answers_come_before_the_client_s_timeout(tmp_path: Path, kind: str) -> None:
    """If the client sends no timeout field of GantryMQ, the limit is the default of Java clients, 3 s.

    `slaveTimeout` is longer than both.
    """
    async with Replicas(tmp_path, 1) as replicas:
        peer = await replicas.peer()
        assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
        pause_slave(replicas.slave)
        began = time.monotonic()

        async def answered(**fields: str) -> float:
            assert (await send(peer, kind, fields)).code == LATE
            return time.monotonic() - began

        # The first request waits longest.
        java, ours, hasty = await asyncio.gather(
            answered(), answered(**{TIMEOUT_FIELD: "1500"}), answered(**{TIMEOUT_FIELD: "300"})
        )
        assert 0.1 < hasty < 0.6
        assert 0.8 < ours < 1.4
        assert 1.8 < java < 2.8


async def test_answers_come_before_the_client_s_timeout_whatever_the_disk_does(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings.store.flush_disk_type = "SYNC_FLUSH"
    broker = Broker(settings)
    with pytest.MonkeyPatch.context() as patch:
        disk = SlowDisk(patch)
        await broker.start()
        remoting = RemotingClient()
        try:
            peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
            assert (await peer.send("orders", b"first")).code == ResponseCode.SUCCESS
            disk.works.clear()
            began = time.monotonic()
            answer = await peer.send("orders", b"late", fields={TIMEOUT_FIELD: "600"})
            assert (answer.code, time.monotonic() - began < 0.6) == (ResponseCode.FLUSH_DISK_TIMEOUT, True)
            assert UNCONFIRMED_FIELD not in answer.ext_fields
        finally:
            disk.works.set()
            await remoting.close()
            await broker.stop()
