"""Transactions with damaged records.

The other transactions continue.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from bare_store import commit_log
from broker_support import config
from transaction_support import Half, Producer
from wait_until import until

from gantrymq.broker.append.appender import Appender
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables import TransactionCounts
from gantrymq.broker.transaction.check import CheckRequest, TransactionCheck
from gantrymq.broker.transaction.op_messages import OpMessages
from gantrymq.errors import RecordError, StoreError
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import TRANSACTION_ROLLBACK
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import PutResult

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


class Quiet:
    """A broker with five half messages that sends no checks by itself.

    The tests run each check round explicitly.
    """

    def __init__(self, broker: Broker, producer: Producer, halves: list[Half]) -> None:
        self.broker = broker
        self.producer = producer
        self.halves = halves
        self.appender: Appender = broker.appender

    def check(self, appender: Appender | None = None) -> TransactionCheck:
        """Returns a new check service, as after a restart."""
        appender = appender or self.appender
        ops = OpMessages(self.broker.config, appender)
        check = TransactionCheck(
            self.broker.config,
            appender,
            topics=self.broker.topics,
            offsets=self.broker.offsets,
            ops=ops,
            counts=TransactionCounts(),
        )
        check.load()
        return check

    async def end(self, *numbers: int) -> None:
        """Rolls back half messages, each with its own op message."""
        for number in numbers:
            await self.producer.end(self.halves[number], TRANSACTION_ROLLBACK)
            await until(lambda: not self.broker.features.transactions.ops)

    def place(self, topic: str, queue_offset: int) -> int:
        unit = self.broker.store.queue(topic, 0).unit(queue_offset)
        assert unit is not None
        return unit[0]

    def damage(self, place: int, damage: Callable[[bytearray], None]) -> None:
        """Changes a record, as a failing disk would."""
        record = bytearray(self.broker.store.record_bytes(place))
        damage(record)
        log = commit_log(self.broker.store)
        assert log.mapping is not None
        log.mapping[place - log.base : place - log.base + len(record)] = bytes(record)


def anybody(group: str, topic: str) -> bool:
    """A producer is always connected."""
    return True


@pytest.fixture
async def quiet(tmp_path: Path) -> AsyncIterator[Quiet]:
    settings = {"transaction_op_msg_max_size": 1, "transaction_time_out": 0, "transaction_check_interval": 3_600_000}
    broker = Broker(config(tmp_path / "store", **settings))
    await broker.start()
    producer = Producer()
    await producer.connect(broker.port)
    yield Quiet(broker, producer, [await producer.prepare("orders", b"half %d" % n) for n in range(5)])
    await producer.client.close()
    await broker.stop()


def now_ms() -> int:
    return time.time_ns() // 1_000_000 + 1000


def asked(steps: list[list[CheckRequest]]) -> list[bytes]:
    return [next(decode_messages(question.request.body)).body for questions in steps for question in questions]


def flip_body(record: bytearray) -> None:
    record[88] ^= 1


def wipe(record: bytearray) -> None:
    record[:] = bytes(len(record))


def grow(record: bytearray) -> None:
    """Changes the body length so that it extends into the next record."""
    record[84:88] = (10_000).to_bytes(4, "big")


DAMAGES = [flip_body, wipe, grow]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [0, 2, 4])
async def test_a_damaged_half_message_is_skipped(
    quiet: Quiet, damage: Callable[[bytearray], None], number: int, caplog: pytest.LogCaptureFixture
) -> None:
    place = quiet.place(HALF_TOPIC, number)
    quiet.damage(place, damage)
    check = quiet.check()
    assert asked(list(check.round(now_ms(), anybody))) == [b"half %d" % n for n in range(5) if n != number]
    assert check.progress == (5, 0)
    assert str(place) in caplog.text
    assert f"message {number} of {HALF_TOPIC}-0" in caplog.text


async def test_skipped_records_are_counted(quiet: Quiet) -> None:
    await quiet.end(0)
    quiet.damage(quiet.place(HALF_TOPIC, 3), flip_body)
    quiet.damage(quiet.place(OP_TOPIC, 0), flip_body)
    check = quiet.check()
    list(check.round(now_ms(), anybody))
    assert check.skipped == 2


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_op_message_is_skipped(quiet: Quiet, damage: Callable[[bytearray], None]) -> None:
    """A damaged op message is skipped.

    The end of its half message is lost, so the producer must end it again.
    """
    await quiet.end(1, 2, 3)
    quiet.damage(quiet.place(OP_TOPIC, 1), damage)
    check = quiet.check()
    assert asked(list(check.round(now_ms(), anybody))) == [b"half 0", b"half 2", b"half 4"]
    assert check.progress[1] == 3


async def test_a_half_message_that_nothing_can_be_done_with_is_skipped(
    quiet: Quiet, caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(Appender):
        def append_again(
            self, record: Record, queue: ConsumeQueue, properties: bytes, tags_code: int, reconsume_times: int
        ) -> PutResult:
            if record.body == b"half 1":
                raise RecordError("its reconsumeTimes is out of range")
            return super().append_again(record, queue, properties, tags_code, reconsume_times)

    old = quiet.appender
    check = quiet.check(Picky(old.store, old.store_host, quiet.broker.polling))
    assert asked(list(check.round(now_ms(), anybody))) == [b"half 0", b"half 2", b"half 3", b"half 4"]
    assert check.skipped == 1
    assert f"message 1 of {HALF_TOPIC}-0" in caplog.text


async def test_a_round_goes_on_where_the_store_failed(quiet: Quiet) -> None:
    class Failing(Appender):
        left = 2

        def append_again(
            self, record: Record, queue: ConsumeQueue, properties: bytes, tags_code: int, reconsume_times: int
        ) -> PutResult:
            self.left -= 1
            if self.left < 0:
                raise StoreError("the disk is gone")
            return super().append_again(record, queue, properties, tags_code, reconsume_times)

    old = quiet.appender
    appender = Failing(old.store, old.store_host, quiet.broker.polling)
    check = quiet.check(appender)
    with pytest.raises(StoreError, match="the disk is gone"):
        list(check.round(now_ms(), anybody))
    assert check.progress == (2, 0)
    appender.left = 100
    assert asked(list(check.round(now_ms(), anybody))) == [b"half 2", b"half 3", b"half 4", b"half 0", b"half 1"]


async def test_what_has_ended_is_learned_in_small_steps(quiet: Quiet) -> None:
    """Op messages are read in steps, because there can be very many after a restart.

    Those that are written later need not be read.
    """
    quiet.halves += [await quiet.producer.prepare("orders", b"more") for _ in range(15)]
    await quiet.end(*range(18))
    check = quiet.check()
    assert check.open_count == 20
    assert check.read_ops()
    assert check.open_count == 12
    assert check.read_ops()
    assert check.read_ops()
    assert not check.read_ops()
    assert check.open_count == 2
    await quiet.end(18)
    assert quiet.broker.features.transactions.open_count() == 1
    assert check.open_count == 2
    assert check.read_ops()
    assert check.open_count == 1


async def test_an_end_that_comes_twice_counts_once(quiet: Quiet) -> None:
    await quiet.end(1, 1)
    assert quiet.broker.features.transactions.open_count() == 4
    await quiet.producer.end(quiet.halves[1], TRANSACTION_ROLLBACK)
    assert quiet.broker.features.transactions.open_count() == 4
