"""Consumer calls that are cancelled in every iteration: the consumer keeps its queues and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager

import pytest
from cancelling import cancel_at_every_turn
from wait_until import until, wait_until

from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.sync import SyncProducer
from gantrymq.testing.processes import ProcessCluster

TOPIC = "cancelled"
#: Twelve messages that exceed one small response. Half of them are compressed.
BODIES = {b"%d" % number * (1 if number % 2 else 5000) for number in range(12)}

_groups = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Starts a cluster in its own processes, so that all tasks and sockets of this process belong to the clients."""
    with (
        ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        SyncProducer(Producer(cluster.namesrv_addr, "producers", compress_over=1000)) as producer,
    ):
        for body in BODIES:
            producer.send(Message(TOPIC, body))
        wait_until(lambda: _is_known(producer))
        yield cluster


def _is_known(producer: SyncProducer) -> bool:
    try:
        return bool(producer.queues(TOPIC))
    except GantryError:
        return False


@pytest.fixture
async def _silence(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Asserts that asyncio's debug mode reports nothing. Leftovers of other tests do not count."""
    gc.collect()
    caplog.clear()
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 10.0  # A slow callback on a busy machine is no failure.
    yield
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


#: Bodies that the tested consumer has returned.
found: set[bytes] = set()


async def poll(consumer: LitePullConsumer) -> None:
    found.update(message.body for message in await consumer.poll(timeout=0.2))


async def read_all(consumer: LitePullConsumer) -> None:
    """Receives all messages that were not returned yet."""

    async def are_there() -> bool:
        await poll(consumer)
        return found >= BODIES

    await until(are_there)


async def read_all_again(consumer: LitePullConsumer) -> None:
    """Checks that the consumer still has all queues, and reads all messages again."""
    queues = await consumer.queues(TOPIC)
    assert consumer.assignment == set(queues)
    for queue in queues:
        await consumer.seek(queue, 0)
    found.clear()
    await read_all(consumer)


async def assign_all(consumer: LitePullConsumer) -> None:
    await consumer.assign(await consumer.queues(TOPIC))


async def seek_all(consumer: LitePullConsumer) -> None:
    for queue in consumer.assignment:
        await consumer.seek(queue, 1)


async def on_one_queue(consumer: LitePullConsumer, call: Callable[..., Coroutine[object, object, object]]) -> None:
    for queue in sorted(consumer.assignment)[:2]:
        await call(consumer, queue)


async def take_one(consumer: LitePullConsumer) -> None:
    async for message in consumer:
        found.add(message.body)
        return


async def twice(call: Callable[[LitePullConsumer], Awaitable[object]], consumer: LitePullConsumer) -> None:
    """Repeats the cancelled call, and then reads all messages."""
    for queue in consumer.assignment:
        await consumer.seek(queue, 0)
    await call(consumer)
    await read_all_again(consumer)


LITE_CALLS: dict[str, Callable[[LitePullConsumer], Coroutine[object, object, object]]] = {
    "poll": poll,
    "async for": take_one,
    "commit": lambda consumer: consumer.commit(),
    "commit of offsets": lambda consumer: consumer.commit(dict.fromkeys(consumer.assignment, 1)),
    "queues": lambda consumer: consumer.queues(TOPIC),
    "assign": assign_all,
    "seek": seek_all,
    "seek_to_begin": lambda consumer: on_one_queue(consumer, LitePullConsumer.seek_to_begin),
    "seek_to_end": lambda consumer: on_one_queue(consumer, LitePullConsumer.seek_to_end),
    "seek_to_time": lambda consumer: on_one_queue(consumer, lambda c, q: c.seek_to_time(q, 0)),
    "offset_for_time": lambda consumer: on_one_queue(consumer, lambda c, q: c.offset_for_time(q, 0)),
    "end_offset": lambda consumer: on_one_queue(consumer, LitePullConsumer.end_offset),
    "committed": lambda consumer: on_one_queue(consumer, LitePullConsumer.committed),
}


@pytest.mark.usefixtures("_silence")
@pytest.mark.parametrize("name", LITE_CALLS)
async def test_a_call_of_a_lite_pull_consumer(name: str, cluster: ProcessCluster) -> None:
    call = LITE_CALLS[name]

    @asynccontextmanager
    async def new() -> AsyncIterator[LitePullConsumer]:
        consumer = LitePullConsumer(
            cluster.namesrv_addr,
            f"lite{next(_groups)}",
            auto_commit=False,
            start_from="earliest",
        )
        found.clear()
        async with consumer:
            if name != "assign":
                await assign_all(consumer)
            yield consumer

    async def still_works(consumer: LitePullConsumer) -> None:
        if name in ("poll", "async for"):
            # The next call returns the messages that a cancelled call did not return.
            await read_all(consumer)
        await twice(call, consumer)

    await cancel_at_every_turn(new, call, still_works)


async def received(consumer: SimpleConsumer) -> MessageExt:
    async def some() -> MessageExt | None:
        messages = await consumer.receive(max_messages=1, timeout=0.5)
        return messages[0] if messages else None

    return await until(some)


async def ack(consumer: SimpleConsumer) -> None:
    await consumer.ack(await received(consumer))


async def change(consumer: SimpleConsumer) -> None:
    await consumer.change_invisible_time(await received(consumer), 10_000)


SIMPLE_CALLS: dict[str, Callable[[SimpleConsumer], Coroutine[object, object, object]]] = {
    "receive": lambda consumer: consumer.receive(max_messages=2, timeout=0.3),
    "ack": ack,
    "change_invisible_time": change,
}


@pytest.mark.usefixtures("_silence")
@pytest.mark.parametrize("name", SIMPLE_CALLS)
async def test_a_call_of_a_simple_consumer(name: str, cluster: ProcessCluster) -> None:
    call = SIMPLE_CALLS[name]

    @asynccontextmanager
    async def new() -> AsyncIterator[SimpleConsumer]:
        consumer = SimpleConsumer(cluster.namesrv_addr, f"simple{next(_groups)}")
        consumer.subscribe(TOPIC)
        async with consumer:
            yield consumer

    await cancel_at_every_turn(new, call, call)
