"""Middleware around sends of a producer with `linger`."""

from __future__ import annotations

import asyncio

import pytest
from scripted_producer import ProducerBroker, producer_over
from wait_until import until

from gantrymq.client.broker_api import SendResult
from gantrymq.client.lifecycle import FAREWELL_S
from gantrymq.client.middleware import Middleware, SendCall, SendContext
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed, IllegalMessage, SendOutcomeUnknown
from gantrymq.protocol.message import Message

MESSAGE = Message("topic", b"body")
LARGE = Message("topic", bytes(60))


class Pauses(Middleware):
    """Waits before or after its `call`, until the test sets `go`."""

    def __init__(self, *, before: bool) -> None:
        self._before = before
        self.go = asyncio.Event()
        self.waiting = self.cancelled = 0

    async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
        if self._before:
            await self._pause()
            return await call(context)
        result = await call(context)
        await self._pause()
        return result

    async def _pause(self) -> None:
        self.waiting += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def test_middleware_can_repeat_its_call() -> None:
    class Twice(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            await call(context)
            return await call(context)

    broker = ProducerBroker()
    async with producer_over(broker, middleware=[Twice()], linger=0.001) as producer:
        result = await producer.send(MESSAGE)
    assert len(broker.sent) == 2
    assert result.queue_offset == 2


async def test_a_message_that_middleware_delays_is_sent_alone() -> None:
    class Delays(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            context.messages[0].properties["DELAY"] = "1"
            return await call(context)

    broker = ProducerBroker()
    async with producer_over(broker, middleware=[Delays()], linger=0.001) as producer:
        result = await producer.send(MESSAGE)
        with pytest.raises(IllegalMessage, match="in no batch"):
            await producer.enqueue(MESSAGE)
    assert [sent.properties["DELAY"] for sent in broker.sent] == ["1"]
    assert broker.sent[0].properties["UNIQ_KEY"] == result.msg_id


async def test_a_flush_waits_for_the_middleware() -> None:
    pauses = Pauses(before=False)
    async with producer_over(ProducerBroker(), middleware=[pauses], linger=30) as producer:
        futures = [await producer.enqueue(MESSAGE) for _ in range(3)]
        flush = asyncio.create_task(producer.flush())
        await until(lambda: pauses.waiting == 3)
        pauses.go.set()
        await flush
        assert [future.done() for future in futures] == [True] * 3


async def test_a_flush_does_not_wait_for_middleware_before_its_call() -> None:
    pauses = Pauses(before=True)
    async with producer_over(ProducerBroker(), middleware=[pauses], linger=0.001) as producer:
        send = asyncio.create_task(producer.send(MESSAGE))
        await until(lambda: pauses.waiting == 1)
        await asyncio.wait_for(producer.flush(), 10)
        pauses.go.set()
        await send


async def test_middleware_can_flush() -> None:
    class Flushes(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            result = await call(context)
            await producer.flush()
            return result

    async with producer_over(ProducerBroker(), middleware=[Flushes()], linger=0.001) as producer:
        await asyncio.wait_for(asyncio.gather(producer.send(MESSAGE), producer.send(MESSAGE)), 10)


async def test_a_close_waits_for_the_middleware() -> None:
    class Slow(Middleware):
        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            result = await call(context)
            await asyncio.sleep(2 * FAREWELL_S)
            return result

    async with producer_over(ProducerBroker(), middleware=[Slow()], linger=30) as producer:
        future = await producer.enqueue(MESSAGE)
        await producer.close(timeout=30)
        assert future.done()
        assert (await future).queue_offset == 1


async def outcome(producer: Producer, pauses: Pauses, timeout: float) -> object:
    """Returns the error of a `send` that is inside the middleware when the producer is closed."""
    send = asyncio.create_task(producer.send(MESSAGE))
    await until(lambda: pauses.waiting == 1)
    await producer.close(timeout=timeout)
    (result,) = await asyncio.gather(send, return_exceptions=True)
    assert pauses.cancelled == 1
    return result


async def test_a_close_ends_middleware_of_a_stored_message() -> None:
    broker, pauses = ProducerBroker(), Pauses(before=False)
    async with producer_over(broker, middleware=[pauses], linger=0.001) as producer:
        future = await producer.enqueue(MESSAGE)
        await until(lambda: pauses.waiting == 1)
        await producer.close(timeout=0)
        with pytest.raises(SendOutcomeUnknown, match="before the middleware of a message to topic had ended"):
            await future
        pauses.waiting = pauses.cancelled = 0
        await producer.start()
        assert isinstance(await outcome(producer, pauses, 0), SendOutcomeUnknown)
    assert len(broker.sent) == 2


async def test_a_close_ends_middleware_before_its_call_at_once() -> None:
    broker, pauses = ProducerBroker(), Pauses(before=True)
    async with producer_over(broker, middleware=[pauses], linger=0.001) as producer:
        async with asyncio.timeout(30):
            result = await outcome(producer, pauses, 3600)
    assert isinstance(result, ClientClosed)
    assert broker.sent == []


async def test_a_cancelled_send_is_not_sent_later() -> None:
    broker, pauses = ProducerBroker(), Pauses(before=True)
    async with producer_over(broker, middleware=[pauses], linger=0.001) as producer:
        for call in (producer.send, producer.enqueue):
            sending = asyncio.create_task(call(MESSAGE))
            await until(lambda: pauses.waiting == 1)
            sending.cancel()
            await until(lambda: pauses.cancelled == 1)
            assert (await asyncio.gather(sending, return_exceptions=True))[0].__class__ is asyncio.CancelledError
            pauses.waiting = pauses.cancelled = 0
        pauses.go.set()
        await producer.send(MESSAGE)
    assert len(broker.sent) == 1


async def test_a_send_that_is_cancelled_without_space_cancels_its_middleware() -> None:
    class Counts(Middleware):
        def __init__(self) -> None:
            self.called = self.cancelled = 0

        async def around_send(self, call: SendCall, context: SendContext) -> SendResult | None:
            self.called += 1
            try:
                return await call(context)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

    broker, counts = ProducerBroker(answer=None), Counts()
    async with producer_over(broker, middleware=[counts], linger=0.001, buffer_bytes=200) as producer:
        await producer.enqueue(LARGE)
        waiting = asyncio.create_task(producer.enqueue(LARGE))
        await until(lambda: counts.called == 2)
        waiting.cancel()
        await until(lambda: counts.cancelled == 1)
        await producer.close(timeout=0)
