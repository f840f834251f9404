"""The store refuses messages for a while, during each operation of the broker.

Nothing may be lost or delivered twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bare_store import bodies, full_disk
from broker_support import config, job
from pop_support import PopPeer, now_ms
from transaction_support import Producer
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.sys_flag import TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import TRANSACTION_OP_TOPIC
from gantrymq.remoting.client import RemotingClient

TOPIC, GROUP = "orders", "poppers"
BACK = "%RETRY%poppers_orders"
#: Each checkpoint goes to the log at once, so its acknowledgement does, too.
NO_BUFFER: dict[str, Any] = {"pop_ck_stay_buffer_time": 0}
SHORT_BUFFER: dict[str, Any] = {"pop_ck_stay_buffer_time": 1600, "pop_ck_stay_buffer_time_out": 2000}
MINUTE_MS = 60_000
REFUSED = ResponseCode.SERVICE_NOT_AVAILABLE


@asynccontextmanager
async def started(directory: Path, remoting: RemotingClient, **changed: Any) -> AsyncIterator[tuple[Broker, PopPeer]]:
    broker = Broker(config(directory, **changed))
    await broker.start()
    try:
        if broker.topics.get(TOPIC) is None:
            broker.topics.put(TopicConfig(TOPIC, 4, 4))
        yield broker, PopPeer(await remoting.connection(broker.address))
    finally:
        await broker.stop()


async def read_revive_log(broker: Broker, records: int) -> None:
    """Waits until the revive log has at least `records` records and the broker has processed all of them."""
    queues = [broker.store.queue("rmq_sys_REVIVE_LOG_DefaultCluster", queue_id) for queue_id in range(8)]

    def is_done() -> bool:
        committed = [broker.offsets.query("CID_RMQ_SYS_REVIVE_GROUP", queue.topic, queue.queue_id) for queue in queues]
        ends = [queue.max_offset for queue in queues]
        return sum(ends) >= records and all(
            end == 0 or done == end - 1 for end, done in zip(ends, committed, strict=True)
        )

    await until(is_done)


async def test_an_acknowledgement_that_is_refused_may_be_repeated(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path, remoting, **NO_BUFFER) as (broker, peer):
        for n in range(2):
            await peer.send(TOPIC, b"%d" % n)
        first, _ = await peer.messages(TOPIC, invisible_ms=2500)
        with full_disk(broker.store):
            assert (await peer.ack(first)).code == REFUSED
        assert (await peer.ack(first)).code == ResponseCode.SUCCESS
        # The checkpoint and the acknowledgement.
        await read_revive_log(broker, 2)
        assert bodies(broker.store, BACK) == [b"1"]


async def test_a_change_of_time_that_is_refused_changes_nothing(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path, remoting, **NO_BUFFER) as (broker, peer):
        await peer.send(TOPIC, b"x")
        (one,) = await peer.messages(TOPIC, invisible_ms=1500)
        with full_disk(broker.store):
            assert (await peer.change(one, 60_000)).code == REFUSED
        await read_revive_log(broker, 1)
        assert bodies(broker.store, BACK) == [b"x"]


async def test_nothing_is_handed_out_that_cannot_be_noted(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path, remoting, pop_ck_max_buffer_size=1) as (broker, peer):
        for queue_id in range(4):
            await peer.send(TOPIC, b"%d" % queue_id, queue_id=queue_id)
        with full_disk(broker.store):
            # The memory has space for the messages of one queue.
            (one,) = await peer.messages(TOPIC)
            assert (await peer.pop(TOPIC)).code == REFUSED
        others = await peer.messages(TOPIC)
        assert sorted(each.body for each in [one, *others]) == [b"0", b"1", b"2", b"3"]
        for each in (one, *others):
            assert (await peer.ack(each)).code == ResponseCode.SUCCESS


async def test_what_memory_alone_knows_is_noted_when_there_is_room(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path, remoting, **SHORT_BUFFER) as (broker, peer):
        for n in range(2):
            await peer.send(TOPIC, b"%d" % n)
        first, _ = await peer.messages(TOPIC, invisible_ms=4000)
        assert len(broker.pops.buffer) == 1
        with full_disk(broker.store):
            noting = job(broker, "write down what is popped")
            await until(lambda: noting.failing_since is not None)
            assert (await peer.ack(first)).code == ResponseCode.SUCCESS
        await until(lambda: not len(broker.pops.buffer))
        assert noting.failing_since is None
        await read_revive_log(broker, 1)
        assert bodies(broker.store, BACK) == [b"1"]


async def test_a_broker_that_stops_meanwhile_hands_out_again(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path, remoting) as (broker, peer):
        for n in range(2):
            await peer.send(TOPIC, b"%d" % n)
        first, _ = await peer.messages(TOPIC)
        assert (await peer.ack(first)).code == ResponseCode.SUCCESS
        with full_disk(broker.store):
            await broker.stop()
    async with started(tmp_path, remoting) as (broker, peer):
        assert sorted(one.body for one in await peer.messages(TOPIC)) == [b"0", b"1"]


async def test_what_was_not_acknowledged_comes_back_once_there_is_room(
    tmp_path: Path, remoting: RemotingClient
) -> None:
    async with started(tmp_path, remoting, **NO_BUFFER) as (broker, peer):
        for n in range(3):
            await peer.send(TOPIC, b"%d" % n)
        await peer.messages(TOPIC, invisible_ms=1000)
        revive_queues = [broker.store.queue("rmq_sys_REVIVE_LOG_DefaultCluster", n) for n in range(8)]
        await until(lambda: any(queue.max_offset for queue in revive_queues))
        with full_disk(broker.store):
            reviving = job(broker, "revive unacknowledged messages")
            await until(lambda: reviving.failing_since is not None)
        await read_revive_log(broker, 1)
        assert bodies(broker.store, BACK) == [b"0", b"1", b"2"]


async def test_delayed_messages_come_once_there_is_room(tmp_path: Path, remoting: RemotingClient) -> None:
    async with started(tmp_path, remoting) as (broker, peer):
        for n in range(3):
            await peer.send(TOPIC, b"level %d" % n, properties={"DELAY": "1"})
            await peer.send(TOPIC, b"timer %d" % n, properties={"TIMER_DELIVER_MS": str(now_ms() + 1500)}, queue_id=1)
        await until(lambda: broker.features.timer.waiting() == {TOPIC: 3})
        with full_disk(broker.store):
            await until(lambda: job(broker, "deliver delay level 1").failing_since is not None)
            await until(lambda: broker.features.timer.behind().overdue_ms > 500)
            assert (await peer.send(TOPIC, b"refused", queue_id=2)).code == REFUSED
        broker.jobs.find("deliver delay level 1").wake()
        await until(lambda: broker.features.timer.waiting() == {TOPIC: 0})
        await until(lambda: broker.features.schedule.offsets().get(1) == 3)
        assert bodies(broker.store, TOPIC, 0) == [b"level %d" % n for n in range(3)]
        assert bodies(broker.store, TOPIC, 1) == [b"timer %d" % n for n in range(3)]
        assert bodies(broker.store, TOPIC, 2) == []


async def test_transactions_end_once_there_is_room(tmp_path: Path) -> None:
    quick = {"transaction_op_batch_interval": 10, "transaction_check_interval": 20, "transaction_time_out": 60_000}
    broker = Broker(config(tmp_path, **quick))
    await broker.start()
    producer = Producer()
    try:
        await producer.connect(broker.port)
        committed, rolled_back = [await producer.prepare(TOPIC, body) for body in (b"committed", b"rolled back")]
        ops = broker.store.queue(TRANSACTION_OP_TOPIC, 0)
        with full_disk(broker.store):
            assert (await producer.end(committed)).code == REFUSED
            assert (await producer.end(rolled_back, TRANSACTION_ROLLBACK)).code == ResponseCode.SUCCESS
            writing = job(broker, "write down which transactions have ended")
            await until(lambda: writing.failing_since is not None)
            assert ops.max_offset == 0
        assert (await producer.end(committed)).code == ResponseCode.SUCCESS
        await until(lambda: writing.failing_since is None)
        assert [body for op in bodies(broker.store, TRANSACTION_OP_TOPIC) for body in op.split(b",") if body] == [
            b"%d" % half.queue_offset for half in (rolled_back, committed)
        ]
        assert bodies(broker.store, TOPIC) == [b"committed"]
    finally:
        await producer.client.close()
        await broker.stop()


async def test_a_slot_is_finished_when_the_broker_stops(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    async with started(tmp_path, remoting) as (broker, peer):
        # A message that is waiting for a new topic or its file can be stored after later ones.
        await peer.send("other", b"", properties={"TIMER_DELAY_MS": str(10 * MINUTE_MS)})
        await peer.send(TOPIC, b"0")
        due = str(now_ms() + MINUTE_MS)
        await asyncio.gather(
            *(peer.send(TOPIC, b"%d" % n, properties={"TIMER_DELIVER_MS": due}) for n in range(1, 400))
        )
        wrong_clock.ahead_s = 60
        await until(lambda: broker.store.queue(TOPIC, 0).max_offset > 1)
    async with started(tmp_path, remoting) as (broker, peer):
        await until(lambda: broker.features.timer.behind().waiting == 1)
        assert bodies(broker.store, TOPIC) == [b"%d" % n for n in range(400)]


async def test_a_slot_that_cannot_be_finished_is_no_reason_not_to_stop(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    async with started(tmp_path, remoting) as (broker, peer):
        due = str(now_ms() + MINUTE_MS)
        for n in range(3):
            await peer.send(TOPIC, b"%d" % n, properties={"TIMER_DELIVER_MS": due})
        await until(lambda: broker.features.timer.waiting() == {TOPIC: 3})
        with full_disk(broker.store):
            wrong_clock.ahead_s = 60
            await until(
                lambda: broker.features.timer.behind().overdue_ms > 0 and broker.features.timer.delivery.is_delivering
            )
            await broker.stop()
    async with started(tmp_path, remoting) as (broker, peer):
        await until(lambda: broker.features.timer.waiting() == {TOPIC: 0})
        assert bodies(broker.store, TOPIC) == [b"0", b"1", b"2"]
