"""Checks of open transactions.

The tests cover their time, recipients and number, and the state that is kept.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bare_store import damage
from broker_support import config, job
from transaction_support import Half, Producer, all_messages, progress
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.tables import TransactionCounts
from gantrymq.broker.transaction.check import TransactionCheck
from gantrymq.broker.transaction.op_messages import OpMessages
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.transaction import ResumeCheckHalfMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, encode_properties
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gantrymq.system.clock import now_ms

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
QUICK = {"transaction_time_out": 50, "transaction_check_interval": 20, "transaction_op_batch_interval": 10}


@asynccontextmanager
async def started(directory: Path, producer: Producer | None = None, **changed: Any) -> AsyncIterator[Any]:
    broker = Broker(config(directory, **(QUICK | changed)))
    await broker.start()
    producer = producer or Producer()
    try:
        yield broker, await producer.connect(broker.port)
    finally:
        await producer.client.close()
        await broker.stop()


async def test_question_carries_the_message_and_its_new_place(tmp_path: Path) -> None:
    async with started(tmp_path) as (broker, producer):
        half = await producer.prepare("orders", b"hello", {"UNIQ_KEY": "7F01", "TAGS": "t"}, queue_id=2, flag=5)
        header, message = await producer.question()
        assert time.time_ns() // 1_000_000 - message.born_timestamp > QUICK["transaction_time_out"]
        assert (message.topic, message.queue_id, message.body, message.tags) == ("orders", 2, b"hello", "t")
        assert (message.flag, message.msg_id) == (5, "7F01")
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert header.topic == HALF_TOPIC
        assert header.bname == "broker-a"
        assert (header.msg_id, header.transaction_id) == ("7F01", "7F01")
        assert header.tran_state_table_offset == half.queue_offset + 1
        assert decode_offset_message_id(header.offset_msg_id) == (broker.address, header.commit_log_offset)
        place = Half({"queueOffset": str(header.tran_state_table_offset), "msgId": header.offset_msg_id})
        assert (await producer.end(place, from_transaction_check=True)).code == ResponseCode.SUCCESS
        [delivered] = await all_messages(producer, "orders", 2)
        assert (delivered.body, delivered.flag) == (b"hello", 5)


async def test_both_offsets_advance_and_are_kept(tmp_path: Path) -> None:
    committing = Producer(lambda message: TRANSACTION_COMMIT)
    async with started(tmp_path, committing, transaction_time_out=2000) as (broker, producer):
        for n in range(10):
            half = await producer.prepare("orders", b"%d" % n)
            if n % 2:
                await producer.end(half, TRANSACTION_ROLLBACK)
        await until(lambda: broker.store.queue("orders", 0).max_offset == 5)
        queues = [broker.store.queue(HALF_TOPIC, 0), broker.store.queue(OP_TOPIC, 0)]
        await until(lambda: queues[1].max_offset > 0 and progress(broker) == tuple(q.max_offset for q in queues))
        assert {m.body for m in await all_messages(producer, "orders")} == {b"0", b"2", b"4", b"6", b"8"}
        kept = progress(broker)
    table = json.loads((tmp_path / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert (table[f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"]["0"], table[f"{OP_TOPIC}@CID_RMQ_SYS_TRANS"]["0"]) == kept


async def test_ended_transaction_is_not_asked_about(tmp_path: Path) -> None:
    """An ended transaction is not checked, even before its op message is written."""
    # The timeout is long enough to end each one in time on a busy machine.
    slower = {"transaction_op_batch_interval": 60_000, "transaction_time_out": 2000}
    async with started(tmp_path, **slower) as (_, producer):
        for verdict in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            await producer.end(await producer.prepare("orders", b"ended"), verdict)
        await producer.prepare("orders", b"open")
        _, message = await producer.question()
        assert message.body == b"open"


async def test_what_cannot_be_read_or_stored_again_keeps_none_behind_it_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(tmp_path, transaction_time_out=1000) as (broker, producer):
        damaged = await producer.prepare("orders", b"damaged")
        damage(broker.store, damaged.commit_log_offset)
        # Stored as by a Java broker: its properties have no space for those that a check adds.
        fields = {"TRAN_MSG": "true", "PGROUP": "producers", "REAL_TOPIC": "orders", "REAL_QID": "0", "pad": ""}
        fields["pad"] = "x" * (MAX_PROPERTIES_LENGTH - len(encode_properties(fields)))
        queue = broker.store.queue(HALF_TOPIC, 0)
        host = encode_host("127.0.0.1", 1)
        with broker.store.waiting():
            broker.store.append(queue, 0, 0, now_ms(), host, 0, b"long", encode_properties(fields), 0)
        await producer.prepare("orders", b"good")
        _, message = await producer.question()
        assert message.body == b"good"
        [aside] = await all_messages(producer, MAX_TIME_TOPIC)
        assert (aside.body, aside.properties["pad"]) == (b"long", fields["pad"])
    assert f"message 0 of {HALF_TOPIC}-0, at {damaged.commit_log_offset} in the commit log, is skipped" in caplog.text


async def test_members_of_the_group_are_asked_in_turn(tmp_path: Path) -> None:
    other = Producer()
    async with started(tmp_path) as (broker, producer):
        try:
            await other.connect(broker.port)
            for _ in range(4):
                await producer.prepare("orders", b"x")
            for _ in range(2):
                await producer.question()
                await other.question()
        finally:
            await other.client.close()


async def test_after_the_last_question_the_message_is_put_aside_and_can_be_resumed(tmp_path: Path) -> None:
    async with started(tmp_path, transaction_check_max=3) as (broker, producer):
        await producer.prepare("orders", b"hello")
        times = [(await producer.question())[1].properties["TRANSACTION_CHECK_TIMES"] for _ in range(3)]
        assert times == ["1", "2", "3"]
        await until(lambda: broker.store.queue(MAX_TIME_TOPIC, 0).max_offset == 1)
        [aside] = await all_messages(producer, MAX_TIME_TOPIC)
        assert (aside.body, aside.properties["REAL_TOPIC"]) == (b"hello", "orders")
        assert producer.questions.empty()

        header = ResumeCheckHalfMessageRequestHeader(msg_id=aside.offset_msg_id)
        assert (await producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code == ResponseCode.SUCCESS
        assert (await producer.question())[1].properties["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.parametrize("msg_id", ["nonsense", "7F000001000000000000000000000007"])
async def test_only_half_messages_can_be_resumed(tmp_path: Path, msg_id: str) -> None:
    async with started(tmp_path) as (_, producer):
        header = ResumeCheckHalfMessageRequestHeader(msg_id=msg_id)
        assert (await producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code == ResponseCode.SYSTEM_ERROR
        forged = {"PGROUP": "producers", "REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"}
        ordinary = await producer.send("orders", b"x", properties=forged)
        header = ResumeCheckHalfMessageRequestHeader(msg_id=ordinary.ext_fields["msgId"])
        assert (await producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code == ResponseCode.SYSTEM_ERROR


async def test_message_older_than_the_log_files_is_put_aside(tmp_path: Path) -> None:
    async with started(tmp_path) as (broker, producer):
        hours_ago = time.time_ns() // 1_000_000 - 73 * 3_600_000
        await producer.prepare("orders", b"old", born_timestamp=hours_ago)
        await until(lambda: broker.store.queue(MAX_TIME_TOPIC, 0).max_offset == 1)
        assert producer.questions.empty()


async def test_young_message_holds_those_behind_it(tmp_path: Path) -> None:
    """A check round ends at the first half message that is too young, because the queue is sorted by time."""
    async with started(tmp_path, transaction_time_out=60_000) as (broker, producer):
        await producer.end(await producer.prepare("orders", b"ended"), TRANSACTION_ROLLBACK)
        await producer.prepare("orders", b"young")
        await until(lambda: progress(broker) == (1, 1))
        assert producer.questions.empty()
        assert broker.store.queue(HALF_TOPIC, 0).max_offset == 2


async def test_immune_message_does_not_hold_those_behind_it(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, producer):
        immune = await producer.prepare("orders", b"immune", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
        await producer.prepare("orders", b"behind")
        _, message = await producer.question()
        assert message.body == b"behind"
        # An end request names the first position of the message. It also ends the later copies.
        assert (await producer.end(immune)).code == ResponseCode.SUCCESS
        assert (await producer.end(immune_copy(await all_messages(producer, HALF_TOPIC)))).code == ResponseCode.SUCCESS


def immune_copy(messages: list[Any]) -> Half:
    copy = [message for message in messages if message.body == b"immune"][-1]
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in copy.properties
    return Half({"queueOffset": str(copy.queue_offset), "msgId": copy.offset_msg_id})


async def test_end_of_an_immune_message_ends_its_copies(tmp_path: Path) -> None:
    """The end of a half message also ends its copies, even if the broker reads these only after a restart."""
    async with started(tmp_path) as (broker, producer):
        immune = await producer.prepare("orders", b"immune", {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
        await producer.prepare("orders", b"old", born_timestamp=now_ms() - 73 * 3_600_000)
        await until(lambda: progress(broker)[0] not in (None, 0))
        assert (await producer.end(immune)).code == ResponseCode.SUCCESS
    async with started(tmp_path) as (broker, producer):
        half_queue = broker.store.queue(HALF_TOPIC, 0)
        await until(lambda: progress(broker)[0] == half_queue.max_offset)
        copies = half_queue.max_offset
        await producer.prepare("orders", b"later")
        assert (await producer.question())[1].body == b"later"
        assert half_queue.max_offset == copies + 2


async def rounds(broker: Broker, count: int) -> None:
    """Waits until `count` more check rounds have ended."""
    report = job(broker, "ask about open transactions")
    end = report.runs + count
    await until(lambda: report.runs >= end)


async def test_without_a_producer_the_message_waits_for_the_next(tmp_path: Path) -> None:
    """The half message stays in place. Rounds without a connected producer are not counted."""
    async with started(tmp_path, transaction_check_max=100) as (broker, producer):
        await producer.prepare("orders", b"hello")
        assert (await producer.question())[1].properties["TRANSACTION_CHECK_TIMES"] == "1"
        await producer.client.close()
        await until(lambda: not broker.members.producers)
        # There can be several copies if the broker was faster than this test.
        copies = broker.store.queue(HALF_TOPIC, 0).max_offset
        await rounds(broker, 10)
        assert broker.store.queue(HALF_TOPIC, 0).max_offset <= copies + 1
        later = await Producer().connect(broker.port)
        try:
            _, message = await later.question()
            assert message.body == b"hello"
            assert int(message.properties["TRANSACTION_CHECK_TIMES"]) <= copies + 2
        finally:
            await later.client.close()


async def test_nobody_waits_for_a_group_that_is_away(tmp_path: Path) -> None:
    async with started(tmp_path) as (broker, producer):
        away = {"PGROUP": "away"}
        first = await producer.prepare("orders", b"first", away)
        await producer.prepare("orders", b"second", away)
        await producer.prepare("orders", b"behind")
        assert (await producer.question())[1].body == b"behind"
        # The copy that was stored meanwhile ends together with the first one.
        header = {"producer_group": "away"}
        assert (await producer.end(first, **header)).code == ResponseCode.SUCCESS
        await rounds(broker, 3)
        assert [message.body for message in await all_messages(producer, "orders")] == [b"first"]
        assert broker.features.transactions.open_count() == 2


@pytest.mark.parametrize("properties", [{}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1000000000"}], ids=["", "immune"])
async def test_half_messages_of_the_future(tmp_path: Path, properties: dict[str, str]) -> None:
    """Half messages with a timestamp in the future.

    They are not stored again in each round, and they expire like others.
    """
    async with started(tmp_path, transaction_timeout_max=2000) as (broker, producer):
        fields = {"PGROUP": "away"} | properties
        for n in range(20):
            await producer.prepare("orders", b"%d" % n, fields, born_timestamp=1 << 62)
        await rounds(broker, 5)
        assert broker.store.queue(HALF_TOPIC, 0).max_offset == 20
        # Other transactions are checked, and with each check these messages are stored again.
        for _ in range(2):
            await producer.end(await producer.prepare("orders", b"behind"), TRANSACTION_ROLLBACK)
            await producer.prepare("orders", b"open")
            await producer.question()

        async def set_aside() -> list[MessageExt] | None:
            # The topic also contains the other messages, which can expire before.
            aside = await all_messages(producer, MAX_TIME_TOPIC)
            return aside if {message.body for message in aside} >= {b"%d" % n for n in range(20)} else None

        aside = await until(set_aside)
        assert all(abs(time.time() * 1000 - message.born_timestamp) < 60_000 for message in aside)


async def test_unread_op_messages_stay_until_their_half_messages_are_passed(tmp_path: Path) -> None:
    """An op message stays unread while its half message follows a young one.

    After a restart, the broker needs this op message again.
    """
    slow = {"transaction_time_out": 60_000}
    async with started(tmp_path, **slow) as (broker, producer):
        await producer.prepare("orders", b"young")
        ended = await producer.prepare("orders", b"ended")
        await producer.end(ended, TRANSACTION_ROLLBACK)
        await until(lambda: broker.store.queue(OP_TOPIC, 0).max_offset == 1)
        await until(lambda: progress(broker) == (0, 0))
    async with started(tmp_path) as (broker, producer):
        assert (await producer.question())[1].body == b"young"
        assert (await producer.question())[1].body == b"young"


async def test_a_round_over_thousands_works_in_small_slices(tmp_path: Path) -> None:
    """A check round over thousands of half messages runs in small steps.

    Each step reads only a few dozen messages. Other clients are served in between.
    """
    count = 3000
    async with started(tmp_path, transaction_check_interval=3_600_000, transaction_time_out=0) as (broker, producer):
        requests = [producer.prepare("orders", b"%d" % n) for n in range(count)]
        halves = [half for at in range(0, count, 100) for half in await asyncio.gather(*requests[at : at + 100])]
        ended = halves[: count // 2]
        for at in range(0, len(ended), 100):
            await asyncio.gather(*(producer.end(half, TRANSACTION_ROLLBACK) for half in ended[at : at + 100]))
        await until(lambda: not broker.features.transactions.ops)
        check = TransactionCheck(
            broker.config,
            broker.appender,
            topics=broker.topics,
            offsets=broker.offsets,
            ops=OpMessages(broker.config, broker.appender),
            counts=TransactionCounts(),
        )
        check.load()
        slices = list(check.round(time.time_ns() // 1_000_000, lambda group, topic: True))
        asked = [question for questions in slices for question in questions]
        assert len(asked) == count - len(ended)
        assert max(map(len, slices)) <= 32
        assert check.progress == (count, broker.store.queue(OP_TOPIC, 0).max_offset)


async def test_a_half_queue_that_lost_its_end_is_looked_after(tmp_path: Path) -> None:
    """The committed offsets come from an earlier store, and are higher than the queue's end.

    New messages must be checked anyway.
    """
    async with started(tmp_path) as (broker, _):
        broker.offsets.commit("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, 100)
        broker.offsets.commit("CID_RMQ_SYS_TRANS", OP_TOPIC, 0, 100)
    async with started(tmp_path, transaction_check_interval=300) as (_, producer):
        await producer.prepare("orders", b"new")
        assert (await producer.question())[1].body == b"new"
