"""Half messages in batches, and one request that ends all half messages of a transaction."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_support import config
from half_range_support import GROUP, end_all, end_many, prepare_many, send_halves
from transaction_support import Half, Producer, all_messages, progress
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.transaction.decision_executor import DecisionExecutor, DecisionProgress
from gantrymq.broker.transaction.half_batches import DROPPED_AFTER_MS
from gantrymq.broker.transaction.next_step import PATIENCE_MS
from gantrymq.errors import StoreBusy
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.half_ranges import HalfRange
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.message_id import encode_offset_message_id
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from gantrymq.system.clock import now_ms

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
#: Time after which the broker stores half messages again that are not ended, in seconds.
LONG_S = PATIENCE_MS / 1000 + 1
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"


@asynccontextmanager
async def started(directory: Path, **changed: Any) -> AsyncIterator[tuple[Broker, Producer]]:
    broker = Broker(config(directory, **({"transaction_op_batch_interval": 20} | changed)))
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


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def first_of(broker: Broker, place: HalfRange) -> Half:
    """Returns the first half message of a range, in the form that ends a single one."""
    return half_at(broker, place.half_offset)


def half_at(broker: Broker, half_offset: int) -> Half:
    host = encode_host(*broker.address.split(":")[:1], broker.port)
    unit = broker.store.queue(HALF_TOPIC, 0).unit(half_offset)
    assert unit is not None
    return Half({"queueOffset": str(half_offset), "msgId": encode_offset_message_id(host, unit[0])})


async def ended_halves(producer: Producer) -> list[int]:
    """Returns the half offsets in the op messages, in the format that Java's broker reads."""
    ops = [op for op in await all_messages(producer, OP_TOPIC) if op.tags == "d"]
    assert all(re.fullmatch(rb"(\d+,)+", op.body) and len(op.body) < 4200 for op in ops)
    return [int(offset) for op in ops for offset in op.body.split(b",")[:-1]]


async def test_a_batch_is_stored_as_half_messages_that_came_by_themselves(pair: Pair) -> None:
    _, producer = pair
    own = {"UNIQ_KEY": "7F01", "TAGS": "red", "KEYS": "a", "colour": "röt"}
    await producer.prepare("orders", b"one", own | GROUP, queue_id=3, flag=7, born_timestamp=1_700_000_000_000)
    await prepare_many(producer, "orders", [b"one"], own, queue_id=3, born_timestamp=1_700_000_000_000)
    assert await all_messages(producer, "orders", 3) == []
    alone, of_batch = await all_messages(producer, HALF_TOPIC)
    # Java's broker does not add these properties to the messages of a batch.
    for name in ("MSG_REGION", "TRACE_ON", "CLUSTER"):
        del alone.properties[name]
    assert of_batch.properties == alone.properties | {"GANTRY_HALF": "true"}
    for name in ("body", "flag", "sys_flag", "born_timestamp", "born_host", "queue_id", "reconsume_times", "tags"):
        assert getattr(of_batch, name) == getattr(alone, name), name


async def test_a_commit_shows_all_messages_as_single_commits_would(pair: Pair) -> None:
    broker, producer = pair
    own = {"UNIQ_KEY": "7F01", "TAGS": "red", "colour": "röt"}
    ranges = [await prepare_many(producer, "orders", numbers(300 * n, 300), own, queue_id=n % 2) for n in range(4)]
    single = await producer.prepare("orders", b"single", own | GROUP, queue_id=2, flag=7)
    assert await all_messages(producer, "orders", 0) == []
    await end_all(producer, ranges)
    await producer.end(single)
    [alone] = await all_messages(producer, "orders", 2)
    for name in ("MSG_REGION", "TRACE_ON", "CLUSTER"):
        del alone.properties[name]
    halves = {half.body: half for half in await all_messages(producer, HALF_TOPIC)}
    for queue_id, bodies in ((0, numbers(0, 300) + numbers(600, 300)), (1, numbers(300, 300) + numbers(900, 300))):
        messages = await all_messages(producer, "orders", queue_id)
        assert [message.body for message in messages] == bodies
        for message in messages:
            half = halves[message.body]
            assert message.properties == alone.properties
            assert message.prepared_transaction_offset == half.commit_log_offset
            assert (message.sys_flag, message.flag, message.tags) == (TRANSACTION_COMMIT, 7, "red")
            assert (message.born_timestamp, message.born_host) == (half.born_timestamp, half.born_host)
    await until(lambda: not broker.features.transactions.ops)
    assert sorted(await ended_halves(producer)) == list(range(1201))
    assert broker.features.transactions.counts.commits["orders"] == 1201


async def test_what_is_known_of_ended_ones_takes_no_memory_for_each(pair: Pair) -> None:
    """The state of ended half messages takes constant memory.

    With one entry for each, 10,000,000 half messages took 650 MiB until the next check round.
    """
    broker, producer = pair
    await end_all(producer, [await prepare_many(producer, "orders", numbers(0, 1000)) for _ in range(4)])
    check = broker.features.transactions.check
    assert (len(check.ends), check.progress[0]) == (0, 4000)


async def test_copies_are_what_single_commits_store(pair: Pair) -> None:
    """The records are equal in every byte except offsets and timestamps."""
    broker, producer = pair
    own = {"UNIQ_KEY": "7F01", "TAGS": "red"}
    bodies = [b"", b"x", b"y" * 5000]
    copied = await prepare_many(producer, "t" * 127, bodies, own, born_timestamp=10**13)
    await end_all(producer, [copied], topics="t" * 127)
    ended_alone = await prepare_many(producer, "u" * 127, bodies, own, born_timestamp=10**13)
    for half_offset in range(ended_alone.half_offset, ended_alone.end):
        assert (await producer.end(half_at(broker, half_offset))).code == ResponseCode.SUCCESS
    records = []
    for topic in ("t" * 127, "u" * 127):
        queue = broker.store.queue(topic, 0)
        units = [queue.unit(n) for n in range(len(bodies))]
        assert all(unit is not None and unit[2] == tags_code(b"red") for unit in units)
        records.append([broker.store.read_record(unit[0]) for unit in units if unit is not None])
    for copy, single in zip(*records, strict=True):
        same = {"topic": b"", "physical_offset": 0, "store_timestamp": 0, "prepared_transaction_offset": 0}
        assert copy._replace(**same) == single._replace(**same)  # type: ignore[arg-type]
        assert copy.prepared_transaction_offset < copy.physical_offset


async def test_with_sync_flush_answers_come_when_all_is_on_the_disk(tmp_path: Path) -> None:
    settings = config(tmp_path)
    settings.store.flush_disk_type = "SYNC_FLUSH"
    # Without a request, the log would be flushed only after a minute.
    settings.store.flush_interval_commit_log_ms = 60_000
    broker, producer = Broker(settings), Producer()
    await broker.start()
    try:
        await producer.connect(broker.port)
        ranges = [await prepare_many(producer, "orders", numbers(0, 10))]
        assert broker.store.flushed_offset > broker.store.read_record(ranges[0].physical_offset).physical_offset
        await end_all(producer, ranges)
        last = broker.store.queue("orders", 0).unit(9)
        assert last is not None
        assert broker.store.flushed_offset >= last[0] + last[1]
    finally:
        await producer.client.close()
        await broker.stop()


async def test_a_waiting_pull_is_woken(pair: Pair) -> None:
    _, producer = pair
    ranges = [await prepare_many(producer, "orders", [b"a", b"b"])]
    pull = asyncio.create_task(producer.pull("orders", suspend_ms=8000))
    await end_all(producer, ranges)
    assert (await pull).code == ResponseCode.SUCCESS


async def test_a_rollback_shows_nothing(pair: Pair) -> None:
    broker, producer = pair
    ranges = [await prepare_many(producer, "orders", numbers(0, 500))]
    await end_all(producer, ranges, TRANSACTION_ROLLBACK)
    assert await all_messages(producer, "orders") == []
    assert sorted(await ended_halves(producer)) == list(range(500))
    assert broker.features.transactions.counts.rollbacks["orders"] == 500


async def test_the_same_request_again_does_nothing_more(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, producer):
        ranges = [await prepare_many(producer, "orders", numbers(0, 200))]
        await asyncio.gather(*(end_all(producer, ranges) for _ in range(3)))
        refused = await end_many(producer, ranges, TRANSACTION_ROLLBACK)
        assert (refused.code, refused.remark) == (
            ResponseCode.ILLEGAL_OPERATION,
            "the transaction is committed already",
        )
    async with started(tmp_path) as (_, producer):
        await end_all(producer, ranges)
        assert [message.body for message in await all_messages(producer, "orders")] == numbers(0, 200)


async def test_wrong_ends_are_refused_and_nothing_is_shown(pair: Pair) -> None:
    broker, producer = pair
    good = await prepare_many(producer, "orders", numbers(0, 10))
    other = await prepare_many(producer, "others", numbers(0, 10))
    foreign = await prepare_many(producer, "orders", numbers(0, 10), of_batch=GROUP | {"PGROUP": "foreign"})
    half_offset, physical_offset, count = good
    position = broker.store.max_physical_offset
    for ranges, remark in (
        ([HalfRange(half_offset, physical_offset + 1, count)], "isn't at this place of the log"),
        ([HalfRange(half_offset, physical_offset, 31)], "there is no half message 30"),
        ([HalfRange(half_offset, physical_offset, 0)], "is no range of half messages"),
        ([HalfRange(half_offset, physical_offset, -5)], "is no range of half messages"),
        ([HalfRange(1 << 50, physical_offset, 1)], "there is no half message"),
        ([good, good], "not behind that before it"),
        ([other, good], "not for orders"),
        ([good, other], "not for orders"),
        ([good, foreign], "another producer group"),
        # The last half message of this range belongs to another topic.
        ([HalfRange(half_offset, physical_offset, 20)], "not for orders"),
        ([], "are not 1 to"),
    ):
        answer = await end_many(producer, ranges)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
    assert (await end_many(producer, [good], 4)).remark == "commitOrRollback field wrong"
    assert broker.store.max_physical_offset == position
    assert await all_messages(producer, "orders") == []


async def test_what_is_between_two_of_a_range_is_ended_only_if_it_may_be(pair: Pair) -> None:
    _, producer = pair
    first = await prepare_many(producer, "orders", [b"first"])
    await prepare_many(producer, "others", [b"hidden"])
    await prepare_many(producer, "orders", [b"foreign"], of_batch=GROUP | {"PGROUP": "foreign"})
    await producer.prepare("orders", b"single")
    await prepare_many(producer, "orders", [b"last"])
    await end_all(producer, [HalfRange(first.half_offset, first.physical_offset, 5)])
    assert [message.body for message in await all_messages(producer, "orders")] == [b"first", b"single", b"last"]
    assert await all_messages(producer, "others") == []
    assert sorted(await ended_halves(producer)) == [0, 3, 4]


@pytest.mark.parametrize(
    ("properties", "of_batch", "remark"),
    [
        ({}, {"TRAN_MSG": "true"}, "needs the property PGROUP"),
        ({}, {"PGROUP": "producers", "CHECK_IMMUNITY_TIME_IN_SECONDS": "x"}, "a number"),
        ({"DELAY": "1"}, GROUP, "can't be delayed"),
        ({"TIMER_DELIVER_MS": "1"}, GROUP, "can't be delayed"),
        ({"long": "x" * 32_600}, GROUP, "bytes of properties"),
    ],
    ids=["no-group", "no-number", "delay", "timer", "long"],
)
async def test_wrong_batches_are_refused(
    pair: Pair, properties: dict[str, str], of_batch: dict[str, str], remark: str
) -> None:
    broker, producer = pair
    answer = await send_halves(producer, "orders", [b"x"], properties, of_batch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert remark in (answer.remark or "")
    assert broker.store.queue(HALF_TOPIC, 0).max_offset == 0


async def test_a_delay_of_nothing_is_none(pair: Pair) -> None:
    _, producer = pair
    await end_all(producer, [await prepare_many(producer, "orders", [b"x"], {"DELAY": "0"})])
    assert len(await all_messages(producer, "orders")) == 1


async def test_what_a_message_says_of_itself_changes_nothing(pair: Pair) -> None:
    _, producer = pair
    forged = {"REAL_TOPIC": "others", "REAL_QID": "3", "PGROUP": "foreign", "GANTRY_HALF": "x", "POP_CK": "1", "a": "b"}
    ranges = [await prepare_many(producer, "orders", [b"x"], forged)]
    await end_all(producer, ranges)
    [message] = await all_messages(producer, "orders")
    assert message.properties.keys() == {*GROUP, "UNIQ_KEY", "__transactionId__", "a"}
    assert message.properties["PGROUP"] == "producers"


async def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    async with started(tmp_path, reject_transaction_message=True) as (_, producer):
        answer = await send_halves(producer, "orders", [b"x"])
        assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


async def test_each_can_be_ended_by_itself_too(pair: Pair) -> None:
    """The driver does this after a Java broker has taken over."""
    broker, producer = pair
    place = first_of(broker, await prepare_many(producer, "orders", [b"x"], {"a": "b"}))
    assert (await producer.end(place)).code == ResponseCode.SUCCESS
    [message] = await all_messages(producer, "orders")
    assert message.properties["a"] == "b"
    assert "GANTRY_HALF" not in message.properties


async def test_many_files_of_the_log_are_made_meanwhile(pair: Pair) -> None:
    """12 MB of half messages in files of 4 MiB, and as many for the committed messages."""
    _, producer = pair
    ranges = [
        await prepare_many(producer, "orders", [b"%04d" % (100 * n + i) * 250 for i in range(100)]) for n in range(100)
    ]
    await end_all(producer, ranges)
    messages = await all_messages(producer, "orders")
    assert [int(message.body[:4]) for message in messages] == list(range(10_000))


async def test_what_is_decided_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = DecisionExecutor._step

    def half_of_them(executor: DecisionExecutor, progress: DecisionProgress) -> None:
        if broker.store.queue("orders", 0).max_offset >= 4000:
            raise StoreBusy("planted")
        step(executor, progress)

    async with started(tmp_path) as (broker, producer):
        ranges = [await prepare_many(producer, "orders", numbers(1000 * n, 1000)) for n in range(8)]
        with monkeypatch.context() as patch:
            patch.setattr(DecisionExecutor, "_step", half_of_them)
            progress = asyncio.create_task(end_many(producer, ranges))
            await until(lambda: broker.store.queue("orders", 0).max_offset >= 4000)
            progress.cancel()
            broker.features.transactions.executor.cancel()
    assert broker.features.transactions.check.decisions.open
    async with started(tmp_path) as (broker, producer):
        await until(lambda: broker.store.queue("orders", 0).max_offset == 8000)
        await until(lambda: not broker.features.transactions.check.decisions.open)
        assert [message.body for message in await all_messages(producer, "orders")] == numbers(0, 8000)
        assert set(await ended_halves(producer)) == set(range(8000))


@pytest.mark.parametrize("verdict", [TRANSACTION_COMMIT, TRANSACTION_ROLLBACK])
async def test_one_of_those_that_are_being_ended_cant_be_ended_by_itself(pair: Pair, verdict: int) -> None:
    broker, producer = pair
    executor = broker.features.transactions.executor
    executor.cancel()
    ranges = [await prepare_many(producer, "orders", numbers(0, 10))]
    progress = asyncio.create_task(end_all(producer, ranges))
    await until(lambda: bool(broker.features.transactions.check.decisions.open))
    refused = await producer.end(first_of(broker, ranges[0]), verdict)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert refused.remark == "half message 0 is of a transaction that is being committed as a whole"
    executor.start()
    await progress
    assert [message.body for message in await all_messages(producer, "orders")] == numbers(0, 10)
    assert broker.features.transactions.counts.commits["orders"] == 10


async def test_what_may_be_decided_about_isnt_ended_by_itself_before_that_is_read(pair: Pair) -> None:
    broker, producer = pair
    first = first_of(broker, await prepare_many(producer, "orders", numbers(0, 10)))
    broker.features.transactions.range_ends.clear()
    refused = await producer.end(first)
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "the broker is starting: it reads the ended transactions",
    )
    broker.features.transactions.range_ends.found()
    assert (await producer.end(first)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("between", ["nothing", "looks committed", "is committed"])
async def test_what_is_decided_and_not_begun_is_done_after_a_stop(tmp_path: Path, between: str) -> None:
    """The half messages are at the start of the log.

    Their offset, 0, also occurs in the records of normal messages.
    """
    async with started(tmp_path) as (broker, producer):
        broker.features.transactions.executor.cancel()
        ranges = [await prepare_many(producer, "orders", numbers(0, 100))]
        assert ranges[0][:2] == (0, 0)
        progress = asyncio.create_task(end_many(producer, ranges))
        await until(lambda: bool(broker.features.transactions.check.decisions.open))
        progress.cancel()
        if between == "looks committed":
            given = await producer.send("others", b"0", sys_flag=TRANSACTION_COMMIT)
            assert given.code == ResponseCode.SUCCESS
        if between == "is committed":
            # For example by a Java broker, which does not support decisions.
            with broker.store.waiting():
                broker.features.transactions.commit(broker.store.read_record(ranges[0].physical_offset))
    async with started(tmp_path) as (broker, producer):
        await end_all(producer, ranges)
        assert [message.body for message in await all_messages(producer, "orders")] == numbers(0, 100)


@pytest.mark.parametrize("since", ["just now", "written down", "passed", "before a stop"])
async def test_those_that_were_ended_by_themselves_arent_ended_again(tmp_path: Path, since: str) -> None:
    """Simulates a driver that ended some half messages one by one, while a Java broker was master."""
    interval = 60_000 if since == "just now" else 10
    times = {"transaction_op_batch_interval": interval, "transaction_check_interval": interval}
    async with started(tmp_path, **times) as (broker, producer):
        ranges = [await prepare_many(producer, "orders", numbers(20 * n, 20)) for n in range(2)]
        for half_offset, verdict in ((0, TRANSACTION_COMMIT), (1, TRANSACTION_ROLLBACK), (30, TRANSACTION_COMMIT)):
            answer = await producer.end(half_at(broker, half_offset), verdict)
            assert answer.code == ResponseCode.SUCCESS
        check = broker.features.transactions.check
        if since == "written down":
            await until(lambda: not broker.features.transactions.ops)
        elif since == "passed":
            await until(lambda: check.progress[0] == 2)
        if since != "before a stop":
            await end_all(producer, ranges)
    async with started(tmp_path, **times) as (broker, producer):
        await end_all(producer, ranges)
        messages = [message.body for message in await all_messages(producer, "orders")]
        assert messages == [b"0", b"30", *(body for body in numbers(2, 38) if body != b"30")]


async def test_one_that_was_ended_by_itself_isnt_ended_again_after_a_stop(tmp_path: Path) -> None:
    """A half message that was ended singly is not committed again after a restart.

    The broker stops after it stored the decision on the range and before it carries it out.
    """
    async with started(tmp_path) as (broker, producer):
        broker.features.transactions.executor.cancel()
        ranges = [await prepare_many(producer, "orders", numbers(0, 100))]
        await producer.end(half_at(broker, 7))
        progress = asyncio.create_task(end_many(producer, ranges))
        await until(lambda: bool(broker.features.transactions.check.decisions.open))
        progress.cancel()
    async with started(tmp_path) as (broker, producer):
        await end_all(producer, ranges)
        messages = [message.body for message in await all_messages(producer, "orders")]
        assert messages == [b"7", *numbers(0, 7), *numbers(8, 92)]


async def test_ranges_that_overlap_end_each_half_message_once(pair: Pair) -> None:
    broker, producer = pair
    executor = broker.features.transactions.executor
    executor.cancel()
    first = await prepare_many(producer, "orders", numbers(0, 10))
    await prepare_many(producer, "orders", numbers(10, 10))
    both = HalfRange(first.half_offset, first.physical_offset, 20)
    progress = asyncio.create_task(end_all(producer, [first]))
    await until(lambda: bool(broker.features.transactions.check.decisions.open))
    refused = await end_many(producer, [both])
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert refused.remark == "of half messages 0 to 19 some are being committed with others"
    executor.start()
    await progress
    await end_all(producer, [both])
    assert [message.body for message in await all_messages(producer, "orders")] == numbers(0, 20)


async def test_one_is_ended_by_itself_once(pair: Pair) -> None:
    """The response to the first request can be lost."""
    broker, producer = pair
    place = first_of(broker, await prepare_many(producer, "orders", [b"x"]))
    for _ in range(2):
        assert (await producer.end(place)).code == ResponseCode.SUCCESS
    assert len(await all_messages(producer, "orders")) == 1


async def test_copies_of_those_that_wait_are_no_more_messages(tmp_path: Path, wrong_clock: WrongClock) -> None:
    """A range that covers all half messages also contains the copies that the broker has stored meanwhile."""
    async with started(tmp_path, transaction_time_out=50, transaction_check_interval=10) as (broker, producer):
        first = await prepare_many(producer, "orders", numbers(0, 5))
        await producer.prepare("others", b"behind")
        # The broker copies the copies, too.
        for number in (1, 2):
            wrong_clock.ahead_s += number * LONG_S
            copies = 6 * number
            await until(lambda copies=copies: broker.store.queue(HALF_TOPIC, 0).max_offset >= 6 + copies)  # type: ignore[misc]
        last = await prepare_many(producer, "orders", [b"5"])
        number = last.half_offset + 1 - first.half_offset
        await end_all(producer, [HalfRange(first.half_offset, first.physical_offset, number)])
        assert [message.body for message in await all_messages(producer, "orders")] == numbers(0, 6)


async def test_they_wait_in_place_and_nobody_is_asked(tmp_path: Path) -> None:
    times = {"transaction_time_out": 10, "transaction_check_interval": 10}
    async with started(tmp_path, **times) as (broker, producer):
        ranges = [await prepare_many(producer, "orders", numbers(0, 100))]
        # Check rounds continue: a half message after the ended ones is still checked in time.
        await end_all(producer, ranges)
        await producer.prepare("orders", b"single")
        _, message = await producer.question()
        assert message.body == b"single"
        await until(lambda: (progress(broker)[0] or 0) >= 101)
        while not producer.questions.empty():
            assert producer.questions.get_nowait()[1].body == b"single"


async def test_those_that_nobody_ends_are_dropped(tmp_path: Path) -> None:
    async with started(tmp_path, transaction_check_interval=10) as (broker, producer):
        short = GROUP | {"CHECK_IMMUNITY_TIME_IN_SECONDS": "1"}
        # The producer stored them so long ago that the broker does not wait any longer.
        born_ms = now_ms() - DROPPED_AFTER_MS - 2000
        ranges = [await prepare_many(producer, "orders", numbers(0, 1000), of_batch=short, born_timestamp=born_ms)]
        check = broker.features.transactions.check
        await until(lambda: check.dropped == 1000)
        assert broker.store.queue(HALF_TOPIC, 0).max_offset == 1000
        answer = await end_many(producer, ranges)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "nothing is committed" in (answer.remark or "")
        # The driver can roll them back at any time.
        await end_all(producer, ranges, TRANSACTION_ROLLBACK)
        assert await all_messages(producer, "orders") == []
        await until(lambda: progress(broker)[0] == 1000)


async def test_those_that_wait_long_are_stored_again_and_committed_all_the_same(
    tmp_path: Path, wrong_clock: WrongClock
) -> None:
    async with started(tmp_path, transaction_time_out=50, transaction_check_interval=10) as (broker, producer):
        ranges = [await prepare_many(producer, "orders", numbers(0, 50))]
        await producer.prepare("orders", b"behind")
        wrong_clock.ahead_s = LONG_S
        _, message = await producer.question()
        assert message.body == b"behind"
        assert broker.store.queue(HALF_TOPIC, 0).max_offset > 100
        await end_all(producer, ranges)
        assert [each.body for each in await all_messages(producer, "orders")] == numbers(0, 50)
