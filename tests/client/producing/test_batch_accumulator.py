from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Any

import pytest
from scripted_producer import ProducerBroker, producer_over
from wait_until import until

from gantrymq.client.broker_api import SendResult, SendStatus
from gantrymq.client.producing.batch_accumulator import MAX_UNDER_WAY, BatchAccumulator, BatchKey, Send
from gantrymq.client.producing.message_encoder import UNIQUE_KEY_SIZE, EncodedMessage
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.errors import ClientClosed, ClientError, RequestTimeout, SendOutcomeUnknown
from gantrymq.protocol.message import Message, MessageQueue

QUEUE = MessageQueue("t", "broker", 3)


def part(number: int, size: int = 100) -> EncodedMessage:
    return EncodedMessage("t", b"x" * (size - 22 - UNIQUE_KEY_SIZE), b"", 0, 0, False, f"ID{number}")


class Sends:
    """Receives an accumulator's batches. `error` fails all of them; `held` delays them."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchKey, list[str], int]] = []
        self.error: Exception | None = None
        self.held: asyncio.Event | None = None

    async def __call__(self, key: BatchKey, parts: Sequence[EncodedMessage], timeout_ms: int) -> SendResult:
        ids = [one.msg_id for one in parts]
        self.batches.append((key, ids, timeout_ms))
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        return SendResult(SendStatus.SEND_OK, ",".join(ids), QUEUE, 40, ",".join(f"O{one}" for one in ids))


def accumulating(send: Send, **options: Any) -> BatchAccumulator:
    return BatchAccumulator(send, ProducerOptions("127.0.0.1:9876", "group", **options))


async def test_a_full_batch_goes_at_once() -> None:
    sends = Sends()
    accumulator = accumulating(sends, linger=30, batch_size=300)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(3)]
    results = await asyncio.wait_for(asyncio.gather(*futures), 10)
    assert sends.batches == [(("t", None), ["ID0", "ID1", "ID2"], 3000)]
    assert [(r.msg_id, r.queue, r.queue_offset, r.offset_msg_id) for r in results] == [
        (f"ID{n}", QUEUE, 40 + n, f"OID{n}") for n in range(3)
    ]


async def test_a_batch_that_is_not_full_goes_after_its_time() -> None:
    sends = Sends()
    accumulator = accumulating(sends, linger=0.01)
    future = accumulator.add(("t", None), part(1), 3000)
    assert (await asyncio.wait_for(future, 10)).msg_id == "ID1"


async def test_topics_and_queues_are_kept_apart() -> None:
    sends = Sends()
    accumulator = accumulating(sends, linger=30)
    keys: list[BatchKey] = [("t", None), ("u", None), ("t", QUEUE)]
    for n in range(6):
        accumulator.add(keys[n % 3], part(n), 1000 * n)
    await accumulator.flush()
    assert sends.batches == [(keys[n], [f"ID{n}", f"ID{n + 3}"], 1000 * (n + 3)) for n in range(3)]


async def test_a_message_that_does_not_fit_begins_a_batch() -> None:
    sends = Sends()
    accumulator = accumulating(sends, linger=30, batch_size=250)
    for n, size in enumerate([100, 100, 100, 1000]):
        accumulator.add(("t", None), part(n, size), 3000)
    await accumulator.flush()
    assert [ids for _, ids, _ in sends.batches] == [["ID0", "ID1"], ["ID2"], ["ID3"]]


async def test_an_error_is_that_of_every_message() -> None:
    sends = Sends()
    sends.error = RequestTimeout("as scripted", "broker")
    accumulator = accumulating(sends, linger=0.001)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(5)]
    futures[2].cancel()
    results = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)
    assert [type(result) for n, result in enumerate(results) if n != 2] == [RequestTimeout] * 4
    assert accumulator.bytes == 0


async def test_senders_wait_for_room() -> None:
    sends = Sends()
    sends.held = asyncio.Event()
    accumulator = accumulating(sends, linger=30, batch_size=200, buffer_bytes=400)
    for n in range(4):
        accumulator.add(("t", None), part(n), 3000)
    order: list[int] = []

    async def wait(number: int) -> None:
        await accumulator.wait_for_space()
        order.append(number)

    tasks = [asyncio.create_task(wait(n)) for n in range(3)]
    await until(lambda: len(sends.batches) == 2)
    assert order == []
    tasks[0].cancel()
    sends.held.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert order == [1, 2]


async def test_a_queue_that_keeps_batches_whole_has_one_offset_id() -> None:
    async def send(key: BatchKey, parts: Sequence[EncodedMessage], timeout_ms: int) -> SendResult:
        return SendResult(SendStatus.SEND_OK, "ID0,ID1", QUEUE, 40, "ONE")

    accumulator = accumulating(send, linger=0.001)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(2)]
    results = await asyncio.wait_for(asyncio.gather(*futures), 10)
    assert [(result.msg_id, result.offset_msg_id) for result in results] == [("ID0", "ONE"), ("ID1", "ONE")]


@pytest.mark.parametrize("count", [0, 1])
async def test_flush_waits_for_what_is_under_way(count: int) -> None:
    sends = Sends()
    accumulator = accumulating(sends, linger=30)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(count)]
    await accumulator.flush()
    assert all(future.done() for future in futures)


@pytest.mark.parametrize(
    "options",
    [{"linger": -0.001}, {"linger": 30.001}, {"batch_size": 0}, {"batch_size": 2**21 + 1}, {"buffer_bytes": 0}],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=next(iter(options))):
        ProducerOptions("127.0.0.1:9876", "group", **options)


async def test_who_waited_for_room_does_not_wait_again() -> None:
    sends = Sends()
    held = sends.held = asyncio.Event()
    accumulator = accumulating(sends, linger=30, batch_size=200, buffer_bytes=200)
    first = accumulator.add(("t", None), part(0, 200), 3000)
    # Another caller is faster, and fills the buffer before the waiting caller continues.
    first.add_done_callback(lambda done: (held.clear(), accumulator.add(("t", None), part(1, 200), 3000)))
    waiting = asyncio.create_task(accumulator.wait_for_space())
    await until(lambda: accumulator._waiters)
    held.set()
    await asyncio.wait_for(waiting, 5)
    assert accumulator.bytes == 200
    held.set()
    await accumulator.flush()


async def test_only_so_many_batches_are_under_way() -> None:
    """A slow broker has few pending batches. The rest stay within their timeout as long as some get responses."""
    sends = Sends()
    sends.held = asyncio.Event()
    accumulator = accumulating(sends, linger=30, batch_size=100)
    futures = [accumulator.add(("t", None), part(n), 1000) for n in range(3 * MAX_UNDER_WAY)]
    await until(lambda: sends.batches)
    assert len(sends.batches) == MAX_UNDER_WAY
    await asyncio.sleep(1.1)
    sends.held.set()
    await asyncio.wait_for(asyncio.gather(*futures), 10)
    assert [ids for _, ids, _ in sends.batches] == [[f"ID{n}"] for n in range(3 * MAX_UNDER_WAY)]


async def test_when_nothing_is_answered_the_rest_is_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    async def send(key: BatchKey, parts: Sequence[EncodedMessage], timeout_ms: int) -> SendResult:
        nonlocal asked
        asked += 1
        await asyncio.sleep(timeout_ms / 1000)
        raise RequestTimeout("as scripted", "broker")

    accumulator = accumulating(send, linger=30, batch_size=100)
    for n in range(10 * MAX_UNDER_WAY):
        accumulator.add(("t", None), part(n), 50)
    # A busy program: the first batches are sent nevertheless.
    time.sleep(0.1)  # noqa: ASYNC251
    await accumulator.flush()
    assert asked == MAX_UNDER_WAY
    assert accumulator.bytes == 0
    gc.collect()
    # One line per batch, and no line of asyncio about unretrieved exceptions.
    assert "never retrieved" not in caplog.text
    assert caplog.text.count("messages to t failed") == 10 * MAX_UNDER_WAY


async def test_other_tasks_go_on_while_one_enqueues() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, linger=30, batch_size=1000) as producer:
        for _ in range(1000):
            await producer.enqueue(Message("topic", b"x"))
            if broker.sent:
                break
    assert broker.sent
    assert len(broker.sent) < 50


async def test_a_flush_waits_for_the_messages_before_it() -> None:
    held = {topic: asyncio.Event() for topic in ("before", "after")}

    async def send(key: BatchKey, parts: Sequence[EncodedMessage], timeout_ms: int) -> SendResult:
        await held[key[0]].wait()
        return SendResult(SendStatus.SEND_OK, parts[0].msg_id, QUEUE, 40, "OFFSET")

    accumulator = accumulating(send, linger=30, batch_size=100)
    accumulator.add(("before", None), part(0), 3000)
    flush = asyncio.create_task(accumulator.flush())
    await asyncio.sleep(0)
    later = accumulator.add(("after", None), part(1), 3000)
    await asyncio.sleep(0)
    assert not flush.done()
    held["before"].set()
    await asyncio.wait_for(flush, 10)
    assert not later.done()
    held["after"].set()
    await later


async def test_flush_of_a_producer() -> None:
    broker = ProducerBroker()
    async with producer_over(broker, linger=30) as producer:
        futures = [await producer.enqueue(Message("topic", b"%d" % n)) for n in range(3)]
        await producer.flush()
        assert [future.result().status for future in futures] == [SendStatus.SEND_OK] * 3
    assert len(broker.sent) == 1
    with pytest.raises(ClientClosed):
        await producer.flush()
    async with producer_over(broker) as producer:
        await producer.flush()  # has no effect without batches


async def test_each_message_gets_an_error_of_its_own() -> None:
    """A shared error object would collect the tracebacks and notes of all callers."""
    sends = Sends()
    sends.error = RequestTimeout("127.0.0.1:1 did not answer", "127.0.0.1:1")
    accumulator = accumulating(sends, linger=0.001)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(3)]
    errors = await asyncio.gather(*futures, return_exceptions=True)
    assert [str(error) for error in errors] == ["127.0.0.1:1 did not answer"] * 3
    assert len({id(error) for error in errors}) == 3


async def test_nobody_waits_for_a_batch_whose_send_was_cancelled() -> None:
    sends = Sends()
    sends.held = asyncio.Event()
    accumulator = accumulating(sends, linger=0.001)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(3)]
    await until(lambda: sends.batches)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)
    assert all(isinstance(outcome, SendOutcomeUnknown) for outcome in outcomes)
    assert accumulator.bytes == 0


async def test_nobody_waits_for_a_batch_whose_answer_cannot_be_read() -> None:
    async def send(key: BatchKey, parts: Sequence[EncodedMessage], timeout_ms: int) -> SendResult:
        return None  # type: ignore[return-value]

    accumulator = accumulating(send, linger=0.001)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(3)]
    outcomes = await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 10)
    assert all(isinstance(outcome, TypeError) for outcome in outcomes)


async def test_a_close_waits_for_answers_not_for_ever() -> None:
    sends = Sends()
    sends.held = asyncio.Event()
    accumulator = accumulating(sends, linger=30, batch_size=100)
    futures = [accumulator.add(("t", None), part(n), 3000) for n in range(MAX_UNDER_WAY + 1)]
    async with asyncio.timeout(10):
        await accumulator.close(0.05)
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    # The last one was not sent before the timeout.
    assert [type(outcome) for outcome in outcomes] == [SendOutcomeUnknown] * MAX_UNDER_WAY + [ClientClosed]
