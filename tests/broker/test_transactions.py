"""Half messages and the ends of their transactions, from a producer's point of view."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_support import config
from transaction_support import Half, Producer, all_messages
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@asynccontextmanager
async def started(directory: Path, **changed: Any) -> AsyncIterator[tuple[Broker, Producer]]:
    """Runs a broker without periodic transaction checks, and a producer."""
    settings = {"transaction_op_batch_interval": 20} | changed
    broker = Broker(config(directory, **settings))
    await broker.start()
    producer = Producer()
    try:
        yield broker, await producer.connect(broker.port)
    finally:
        await producer.client.close()
        await broker.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Broker, Producer]]:
    async with started(tmp_path / "store") as both:
        yield both


Pair = tuple[Broker, Producer]


def half_offset_of(broker: Broker) -> int:
    return broker.store.queue(HALF_TOPIC, 0).max_offset


async def test_message_comes_with_the_commit(pair: Pair) -> None:
    _, producer = pair
    sent = {"UNIQ_KEY": "7F000001", "TAGS": "red", "KEYS": "a", "colour": "röt"}
    half = await producer.prepare("orders", b"hello", sent, queue_id=3, flag=7)
    assert half.fields["queueId"] == "3"
    assert half.fields["transactionId"] == "7F000001"
    assert await all_messages(producer, "orders", 3) == []
    [waiting] = await all_messages(producer, HALF_TOPIC)
    assert (waiting.queue_offset, waiting.commit_log_offset) == (half.queue_offset, half.commit_log_offset)
    assert waiting.sys_flag == 0
    assert waiting.properties["REAL_TOPIC"] == "orders"
    assert waiting.properties["REAL_QID"] == "3"

    assert (await producer.end(half)).code == ResponseCode.SUCCESS
    [message] = await all_messages(producer, "orders", 3)
    assert (message.body, message.flag, message.queue_id, message.tags) == (b"hello", 7, 3, "red")
    assert message.born_timestamp == waiting.born_timestamp
    assert message.born_host == waiting.born_host
    assert message.sys_flag == TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == half.commit_log_offset
    # Java's broker stores these properties, too.
    added = {"TRAN_MSG": "true", "PGROUP": "producers", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert message.properties == sent | added | {"CLUSTER": "DefaultCluster", "__transactionId__": "7F000001"}


async def test_commit_wakes_a_waiting_pull(pair: Pair) -> None:
    _, producer = pair
    half = await producer.prepare("orders", b"hello")
    pull = asyncio.create_task(producer.pull("orders", suspend_ms=8000))
    await producer.end(half)
    assert (await pull).code == ResponseCode.SUCCESS


async def test_rollback_delivers_nothing(pair: Pair) -> None:
    broker, producer = pair
    half = await producer.prepare("orders", b"hello")
    assert (await producer.end(half, TRANSACTION_ROLLBACK)).code == ResponseCode.SUCCESS
    assert await all_messages(producer, "orders") == []
    await until(lambda: broker.store.queue(OP_TOPIC, 0).max_offset == 1)


async def test_who_does_not_know_gets_no_answer(pair: Pair) -> None:
    _, producer = pair
    half = await producer.prepare("orders", b"hello")
    with pytest.raises(RequestTimeout):
        await producer.end(half, 0, timeout_ms=100)
    assert await all_messages(producer, "orders") == []
    assert (await producer.end(half)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"producer_group": "others"}, ResponseCode.SYSTEM_ERROR, "The producer group wrong"),
        ({"tran_state_table_offset": 77}, ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"),
        ({"commit_log_offset": 5}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"commit_log_offset": 1 << 50}, ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"),
        ({"commit_or_rollback": TRANSACTION_PREPARED}, ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong"),
    ],
)
async def test_wrong_end_is_refused(pair: Pair, changed: dict[str, object], code: int, remark: str) -> None:
    _, producer = pair
    half = await producer.prepare("orders", b"hello")
    response = await producer.end(half, **changed)
    assert response.code == code
    assert remark in (response.remark or "")
    assert await all_messages(producer, "orders") == []


async def test_only_half_messages_can_be_committed(pair: Pair) -> None:
    _, producer = pair
    forged = {"PGROUP": "producers", "REAL_TOPIC": "orders", "REAL_QID": "0"}
    half = Half((await producer.send("other", b"x", properties=forged)).ext_fields)
    response = await producer.end(half)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")


async def test_commit_after_the_immune_time_waits_for_the_question(tmp_path: Path) -> None:
    async with started(tmp_path, transaction_time_out=100) as (_, producer):
        old = 1_700_000_000_000
        half = await producer.prepare("orders", b"x", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"}, born_timestamp=old)
        assert (await producer.end(half)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await producer.end(half, from_transaction_check=True)).code == ResponseCode.SUCCESS


async def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    async with started(tmp_path, reject_transaction_message=True) as (broker, producer):
        response = await producer.send("orders", b"x", properties={"TRAN_MSG": "true"})
        assert response.code == ResponseCode.NO_PERMISSION
        assert response.remark == "the broker[127.0.0.1] sending transaction message is forbidden"
        assert half_offset_of(broker) == 0


async def test_mark_of_a_retried_message_is_ignored(pair: Pair) -> None:
    """Consumers before 4.6.1 sent such messages to the retry topic with `TRAN_MSG` still set."""
    broker, producer = pair
    properties = {"TRAN_MSG": "true", "PGROUP": "producers", "DELAY": "1"}
    response = await producer.send(
        "%RETRY%consumers", b"x", properties=properties, reconsume_times=1, max_reconsume_times=16
    )
    assert response.code == ResponseCode.SUCCESS
    assert half_offset_of(broker) == 0


async def test_delay_begins_with_the_commit(pair: Pair) -> None:
    broker, producer = pair
    half = await producer.prepare("orders", b"later", {"DELAY": "1", "TAGS": "t"}, queue_id=2)
    assert half_offset_of(broker) == 1
    await producer.end(half)
    [scheduled] = await all_messages(producer, "SCHEDULE_TOPIC_XXXX")
    assert "TRAN_MSG" not in scheduled.properties
    response = await producer.pull("orders", queue_id=2, suspend_ms=8000)
    assert response.code == ResponseCode.SUCCESS
    [message] = await all_messages(producer, "orders", 2)
    assert (message.body, message.tags) == (b"later", "t")


async def test_properties_leave_room_for_questions(pair: Pair) -> None:
    broker, producer = pair
    properties = {"TRAN_MSG": "true", "PGROUP": "producers", "long": "x" * 32_500}
    response = await producer.send("orders", b"x", properties=properties)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert half_offset_of(broker) == 0


async def test_op_messages_list_many_ends(tmp_path: Path) -> None:
    async with started(tmp_path, transaction_op_batch_interval=60_000, transaction_op_msg_max_size=30) as (_, producer):
        halves = [await producer.prepare("orders", b"x") for _ in range(15)]
        for half in halves[:14]:
            await producer.end(half, TRANSACTION_ROLLBACK)
        # The offsets 0 to 9 take 20 bytes. With 10 to 13, the op message exceeds 30 bytes. Meanwhile the queue's first
        # file is created.
        while not await all_messages(producer, OP_TOPIC):
            pass
        await producer.end(halves[14], TRANSACTION_ROLLBACK)
        [op] = await all_messages(producer, OP_TOPIC)
        assert op.body == b"0,1,2,3,4,5,6,7,8,9,10,11,12,13,"
        assert op.tags == "d"


async def test_ends_are_written_down_at_the_stop(tmp_path: Path) -> None:
    async with started(tmp_path, transaction_op_batch_interval=60_000) as (_, producer):
        await producer.end(await producer.prepare("orders", b"x"))
    async with started(tmp_path) as (_, producer):
        [op] = await all_messages(producer, OP_TOPIC)
        assert op.body == b"0,"


async def test_half_message_survives_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, producer):
        half = await producer.prepare("orders", b"hello")
    async with started(tmp_path) as (_, producer):
        assert await all_messages(producer, "orders") == []
        assert (await producer.end(half)).code == ResponseCode.SUCCESS
        [message] = await all_messages(producer, "orders")
        assert message.body == b"hello"
