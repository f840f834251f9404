"""Only the first end of a transaction counts.

After restarts and changes of master, nothing is committed twice.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_support import config, job
from controlled_support import ControlledBrokers
from test_controlled import elect
from transaction_support import Half, Producer, all_messages
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.transaction import ResumeCheckHalfMessageRequestHeader
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
#: Settings without transaction checks.
QUIET = {"transaction_check_interval": 3_600_000, "transaction_op_batch_interval": 20}
#: Settings with early checks, and op messages that are written only when the broker stops.
UNWRITTEN = {
    "transaction_time_out": 50,
    "transaction_check_interval": 20,
    "transaction_op_batch_interval": 3_600_000,
    "transaction_check_max": 1_000_000,
}


@asynccontextmanager
async def started(directory: Path, producer: Producer | None = None, **changed: Any) -> AsyncIterator[Any]:
    broker = Broker(config(directory, **changed))
    await broker.start()
    producer = producer or Producer()
    try:
        yield broker, await producer.connect(broker.port)
    finally:
        await producer.client.close()
        await broker.stop()


def killed(directory: Path) -> Path:
    """Returns a copy of a broker's files, as if the broker were killed at this moment."""
    copy = directory.with_name(f"{directory.name}-killed")
    shutil.copytree(directory, copy)
    return copy


def committing() -> Producer:
    return Producer(lambda message: TRANSACTION_COMMIT)


async def bodies(producer: Producer) -> Counter[bytes]:
    return Counter(message.body for message in await all_messages(producer, "orders"))


async def open_passed(producer: Producer) -> None:
    """Waits until a new transaction is checked and committed. The earlier ones are checked then, too."""
    before = (await bodies(producer))[b"last"]
    await producer.prepare("orders", b"last")

    async def is_there() -> bool:
        return (await bodies(producer))[b"last"] > before

    await until(is_there)


@pytest.mark.parametrize("restart", ["none", "stop", "kill"])
@pytest.mark.parametrize("first", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
async def test_a_second_end_has_no_effect(tmp_path: Path, first: int, restart: str) -> None:
    expected = [b"hello"] if first == TRANSACTION_COMMIT else []
    directory = tmp_path / "store"
    async with started(directory, **QUIET) as (broker, producer):
        half = await producer.prepare("orders", b"hello")
        assert (await producer.end(half, first)).code == ResponseCode.SUCCESS
        if restart == "none":
            for verdict in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, TRANSACTION_COMMIT):
                assert (await producer.end(half, verdict)).code == ResponseCode.SUCCESS
        await until(lambda: not broker.features.transactions.ops)
        assert [message.body for message in await all_messages(producer, "orders")] == expected
        if restart == "kill":
            directory = killed(directory)
    async with started(directory, **QUIET) as (_, producer):
        assert (await producer.end(half, TRANSACTION_COMMIT)).code == ResponseCode.SUCCESS
        assert [message.body for message in await all_messages(producer, "orders")] == expected


async def test_a_second_end_has_no_effect_once_the_first_is_behind(tmp_path: Path) -> None:
    """Check rounds have already processed the half message and its op message."""
    async with started(tmp_path, transaction_check_interval=20, transaction_op_batch_interval=10) as (broker, producer):
        half = await producer.prepare("orders", b"hello")
        await producer.end(half, TRANSACTION_ROLLBACK)
        check = broker.features.transactions.check
        await until(lambda: check.progress == (1, 1))
    async with started(tmp_path, **QUIET) as (_, producer):
        assert (await producer.end(half)).code == ResponseCode.SUCCESS
        assert await all_messages(producer, "orders") == []


async def test_a_producer_that_ends_what_it_was_asked_about(tmp_path: Path) -> None:
    """The producer ends the half message and the copies in its checks. Only one commit takes effect."""
    quick = {"transaction_time_out": 50, "transaction_check_interval": 20, "transaction_op_batch_interval": 10}
    async with started(tmp_path, **quick, transaction_check_max=1_000_000) as (broker, producer):
        half = await producer.prepare("orders", b"hello")
        copies = [await producer.question() for _ in range(3)]
        assert (await producer.end(half)).code == ResponseCode.SUCCESS
        for header, message in copies:
            copy = Half({"queueOffset": str(header.tran_state_table_offset), "msgId": message.offset_msg_id})
            assert (await producer.end(copy, from_transaction_check=True)).code == ResponseCode.SUCCESS
        await until(lambda: not broker.features.transactions.open_count())
        [message] = await all_messages(producer, "orders")
        assert message.body == b"hello"
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in message.properties


async def test_what_was_sent_on_out_of_another_transaction_is_a_new_one(tmp_path: Path) -> None:
    async with started(tmp_path, **QUIET) as (_, producer):
        await producer.end(await producer.prepare("orders", b"first"))
        copied = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "14"}
        await producer.end(await producer.prepare("orders", b"second", copied))
        assert await bodies(producer) == Counter([b"first", b"second"])
        assert not copied.keys() & (await all_messages(producer, HALF_TOPIC))[1].properties.keys()


# -- commits that are not in an op message yet ------------------------------------------------------------------


async def test_what_was_committed_before_a_kill_is_not_committed_again(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    async with started(directory, **UNWRITTEN | {"transaction_time_out": 3_600_000}) as (broker, producer):
        halves = [await producer.prepare("orders", b"%d" % n) for n in range(20)]
        for half in halves[:15]:
            await producer.end(half)
        delayed = await producer.prepare("orders", b"delayed", {"DELAY": "1"})
        await producer.end(delayed)
        assert broker.store.queue("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0).max_offset == 0
        after_kill = killed(directory)
    # The broker is killed again before it writes the ends that it found.
    for number in range(2):
        async with started(after_kill, committing(), **UNWRITTEN) as (broker, producer):
            await open_passed(producer)
            for half in (delayed, halves[0]):
                assert (await producer.end(half)).code == ResponseCode.SUCCESS
            assert len(await all_messages(producer, "SCHEDULE_TOPIC_XXXX")) == 1
            committed = await bodies(producer)
            # The delayed message is delivered when it is due.
            del committed[b"delayed"]
            assert committed == Counter({b"%d" % n: 1 for n in range(20)} | {b"last": number + 1})
            after_kill = killed(after_kill)


async def test_what_was_checked_before_a_kill_is_not_committed_again(tmp_path: Path) -> None:
    """The progress of check rounds is saved only from time to time.

    After the crash, the broker reads half messages again whose copies were committed.
    """
    directory = tmp_path / "store"
    settings = UNWRITTEN | {"flush_consumer_offset_interval": 3_600_000, "transaction_op_batch_interval": 10}
    async with started(directory, committing(), **settings) as (broker, producer):
        for n in range(20):
            await producer.prepare("orders", b"%d" % n)
        await until(lambda: broker.store.queue("orders", 0).max_offset == 20)
        await until(lambda: not broker.features.transactions.ops)
        after_kill = killed(directory)
    assert not (after_kill / "config" / "consumerOffset.json").exists()
    async with started(after_kill, committing(), **settings) as (broker, producer):
        await open_passed(producer)
        assert await bodies(producer) == Counter([b"%d" % n for n in range(20)] + [b"last"])


@pytest.mark.parametrize("how", ["elected", "stopped"])
async def test_a_new_master_commits_nothing_again(tmp_path: Path, how: str) -> None:
    async with ControlledBrokers(tmp_path, **UNWRITTEN) as replicas:
        await replicas.all_in_sync()
        producer = await Producer().connect(replicas.brokers[1].port)
        for n in range(30):
            assert (await producer.end(await producer.prepare("orders", b"%d" % n))).code == ResponseCode.SUCCESS
        if how == "elected":
            await elect(replicas, 2)
        else:
            await replicas.stop(1)
        await producer.client.close()
        master = await replicas.master(other_than=1)
        await replicas.all_in_sync()
        new = await committing().connect(replicas.brokers[master].port)
        await open_passed(new)
        assert await bodies(new) == Counter([b"%d" % n for n in range(30)] + [b"last"])
        await new.client.close()


# -- half messages in TRANS_CHECK_MAX_TIME_TOPIC ----------------------------------------------------------------


async def given_up(broker: Broker, producer: Producer, count: int) -> list[MessageExt]:
    queue = broker.store.queue(MAX_TIME_TOPIC, 0)
    await until(lambda: queue.max_offset == count)
    return await all_messages(producer, MAX_TIME_TOPIC)


GIVING_UP = QUIET | {"transaction_time_out": 0, "transaction_check_interval": 20, "transaction_check_max": 0}


@pytest.mark.parametrize("first", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
@pytest.mark.parametrize("restart", ["none", "stop", "kill"])
async def test_a_given_up_transaction_ends_once(tmp_path: Path, first: int, restart: str) -> None:
    expected = [b"hello"] if first == TRANSACTION_COMMIT else []
    directory = tmp_path / "store"
    async with started(directory, **GIVING_UP) as (broker, producer):
        half = await producer.prepare("orders", b"hello")
        [aside] = await given_up(broker, producer, 1)
        assert aside.prepared_transaction_offset == half.commit_log_offset
        assert (await producer.end(half, first)).code == ResponseCode.SUCCESS
        if restart == "none":
            assert (await producer.end(half, TRANSACTION_COMMIT)).code == ResponseCode.SUCCESS
        await until(lambda: broker.store.queue("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1).max_offset == 1)
        assert [message.body for message in await all_messages(producer, "orders")] == expected
        if restart == "kill":
            directory = killed(directory)
    async with started(directory, **GIVING_UP) as (broker, producer):
        assert (await producer.end(half, TRANSACTION_COMMIT)).code == ResponseCode.SUCCESS
        assert [message.body for message in await all_messages(producer, "orders")] == expected
        resume = ResumeCheckHalfMessageRequestHeader(msg_id=aside.offset_msg_id)
        answer = await producer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume)
        assert (answer.code, (answer.remark or "").endswith("has ended, or is checked again already")) == (
            ResponseCode.SYSTEM_ERROR,
            True,
        )


async def test_a_given_up_transaction_can_be_ended_after_a_restart(tmp_path: Path) -> None:
    async with started(tmp_path, **GIVING_UP) as (broker, producer):
        halves = [await producer.prepare("orders", b"%d" % n) for n in range(3)]
        await given_up(broker, producer, 3)
    async with started(tmp_path, **GIVING_UP) as (broker, producer):
        for _ in range(2):
            await producer.end(halves[1])
        assert await bodies(producer) == Counter([b"1"])
        # They are not moved to that topic again.
        await producer.prepare("orders", b"later")
        assert [message.body for message in await given_up(broker, producer, 4)] == [b"0", b"1", b"2", b"later"]


# -- the log ----------------------------------------------------------------------------------------------------


async def test_a_group_without_producers_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quick = {"transaction_time_out": 50, "transaction_check_interval": 20, "transaction_op_batch_interval": 10}
    async with started(tmp_path, **quick) as (broker, producer):
        await producer.prepare("orders", b"open", {"PGROUP": "away"})
        report = job(broker, "ask about open transactions")
        begin = report.runs
        await until(lambda: report.runs >= begin + 20)
        lines = [record.getMessage() for record in caplog.records if "away" in record.getMessage()]
        assert lines == ["no producer to check the open transactions of the groups away with"]
