"""Measures a producer's calls and the steps of a consumer: microseconds of CPU time per message.

    .venv/bin/python bench/client_micro.py

A real producer sends to a transport without a socket that responds like a broker, in the next iteration of the loop.
The time to make the responses is not counted. The figures are the best and the median of the repetitions, in CPU time
of this thread. For push consumers and `SyncProducer`, they are the CPU time of all threads. `SyncProducer` sends to a
broker process, so its figures contain the system calls. Other programs affect the figures only through the CPU caches
and, with several threads, through the order in which the threads run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any

from result_files import add_out, recorded

from gantrymq.background.event_loop import new_event_loop
from gantrymq.client.consuming.assignment import Assignment
from gantrymq.client.consuming.batches import Batches
from gantrymq.client.consuming.concurrently import ConsumeConcurrently
from gantrymq.client.consuming.consumer_context import ConsumerContext
from gantrymq.client.consuming.handler_pool import MessageHandler
from gantrymq.client.consuming.orderly import ConsumeOrderly
from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.client.consuming.push_consumer import CONCURRENCY, PushConsumerOptions
from gantrymq.client.consuming.queue_puller import QueuePuller
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.send_attempt import first_look
from gantrymq.client.pulled_messages import decode_pulled
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.protocol.command import SerializeType
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.protocol.pull_response import encode_pull_head
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.protocol.send_response import SendResponses
from gantrymq.remoting.connection import Connection
from gantrymq.sync import SyncProducer
from gantrymq.testing.processes import ProcessCluster

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from transports import Swallowing  # isort: skip

TOPIC, BROKER, ADDRESS = "BenchmarkTest", "broker-a", "127.0.0.1:10911"
QUEUES = 8
BATCH = 32
PULLED = 256
HOST = encode_host("127.0.0.1", 10911)
#: Format of a frame's length, and of the opaque number with its position in a frame with a binary header.
_LENGTH, _OPAQUE, _OPAQUE_AT = Struct(">i"), Struct(">i"), 13
#: The header field of the queue id, with one digit.
_QUEUE_ID = b"\x00\x01e\x00\x00\x00\x01"


class Answering(Swallowing):
    """Responds to written requests like a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.connection: Connection | None = None
        #: Time to make the responses, in nanoseconds.
        self.spent_ns = 0
        self._loop = loop
        self._responses = SendResponses(HOST, "DefaultRegion", True)
        self._written: list[bytes] = []
        self._stored = 0

    def write(self, data: bytes) -> None:
        if not self._written:
            # The responses of one iteration are sent together in the next one.
            self._loop.call_soon(self._loop.call_soon, self._answer)
        self._written.append(data)

    def _answer(self) -> None:
        began = time.thread_time_ns()
        data, answers, pos = b"".join(self._written), [], 0
        self._written.clear()
        while pos < len(data):
            queue_at = data.index(_QUEUE_ID, pos) + len(_QUEUE_ID)
            (opaque,) = _OPAQUE.unpack_from(data, pos + _OPAQUE_AT)
            self._stored += 1
            queue_id = data[queue_at] - ord("0")
            answers.append(self._responses.encode(1, opaque, self._stored * 300, queue_id, self._stored))
            pos += 4 + _LENGTH.unpack_from(data, pos)[0]
        read = b"".join(answers)
        self.spent_ns += time.thread_time_ns() - began
        assert self.connection is not None
        self.connection.data_received(read)


class AnsweringPulls(Swallowing):
    """Responds to the pulls of one queue with `pulls`, the records of one response each. Further pulls wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pulls: Sequence[bytes]) -> None:
        super().__init__()
        self.connection: Connection | None = None
        self._loop = loop
        self._pulls = pulls
        self._answered = 0

    def write(self, data: bytes) -> None:
        if self._answered < len(self._pulls):
            opaque = json.loads(data[8:])["opaque"]
            records = self._pulls[self._answered]
            self._answered += 1
            following, end = self._answered * PULLED, len(self._pulls) * PULLED
            head = encode_pull_head(SerializeType.JSON, opaque, 0, "", 0, following, 0, end, len(records))
            assert self.connection is not None
            self._loop.call_soon(self.connection.data_received, head + records)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=128, help="bytes of a body (%(default)s)")
    parser.add_argument("--repeat", type=int, default=25, help="repetitions of each (%(default)s)")
    add_out(parser)
    args = parser.parse_args()
    body = b"x" * args.size
    with recorded(args, "bench/client_micro.py"):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run(body, args.repeat))
        run_blocking(body, args.repeat)
    return 0


#: Longer than a run of `enqueue`, so that each batch is full.
LINGER_S = 5.0


async def run(body: bytes, repeat: int) -> None:
    async with AsyncExitStack() as stack:
        producer, peer = await connected(stack)
        batching, batching_peer = await connected(stack, linger=LINGER_S)

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send(Message(TOPIC, body))

        async def send_with_keys(count: int) -> None:
            for _ in range(count):
                await producer.send(Message(TOPIC, body, tags="tag", keys="key"))

        async def send_batch(count: int) -> None:
            for _ in range(count):
                await producer.send_batch([Message(TOPIC, body) for _ in range(BATCH)])

        async def enqueue(count: int) -> None:
            futures = [await batching.enqueue(Message(TOPIC, body)) for _ in range(count)]
            await batching.flush()
            assert all(future.done() for future in futures)

        for name, work, workers, count, messages, answering in (
            ("send, 32 in flight", send, 32, 40, 1, peer),
            ("send, 1 in flight", send, 1, 600, 1, peer),
            ("send with keys and tags, 32 in flight", send_with_keys, 32, 40, 1, peer),
            (f"send_batch of {BATCH}, 8 in flight", send_batch, 8, 20, BATCH, peer),
            ("enqueue, with linger", enqueue, 1, 4000, 1, batching_peer),
        ):

            async def once(
                work: Callable[[int], Awaitable[None]] = work, workers: int = workers, count: int = count
            ) -> None:
                await asyncio.gather(*(work(count) for _ in range(workers)))

            times = []
            for _ in range(repeat):
                answering.spent_ns, began = 0, time.thread_time_ns()
                await once()
                times.append((time.thread_time_ns() - began - answering.spent_ns) / (workers * count * messages))
            show(name, times)
    steps_of_a_pull(body, repeat)
    await push_consumers(body, repeat)


def run_blocking(body: bytes, repeat: int) -> None:
    """Measures `SyncProducer.send` to a broker process: the CPU time of all threads of this process."""
    with (
        TemporaryDirectory() as directory,
        ProcessCluster(Path(directory)) as cluster,
        SyncProducer(Producer(cluster.namesrv_addr, "benchmark_producer")) as sync,
    ):

        def send(count: int) -> None:
            for _ in range(count):
                sync.send(Message(TOPIC, body))

        # Until the servers have started, and the interpreter has optimized its code.
        send(2000)
        for name, senders, count in (
            ("SyncProducer.send, 1 thread", 1, 600),
            ("SyncProducer.send, 32 threads", 32, 40),
        ):
            times = []
            for _ in range(repeat):
                threads = [threading.Thread(target=send, args=(count,)) for _ in range(senders)]
                began = time.process_time_ns()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                times.append((time.process_time_ns() - began) / (senders * count))
            show(name, times)


async def connected(stack: AsyncExitStack, linger: float = 0.0) -> tuple[Producer, Answering]:
    """Returns a producer that has a route and a connection."""
    producer = Producer("127.0.0.1:1", "benchmark_producer", linger=linger)
    await stack.enter_async_context(producer)
    peer, disconnect = await connect(producer)
    stack.push_async_callback(disconnect)
    return producer, peer


async def connect(producer: Producer) -> tuple[Answering, Callable[[], Coroutine[Any, Any, None]]]:
    """Gives a started producer a route and a connection. Returns the peer, and a function that disconnects it."""
    loop = asyncio.get_running_loop()
    client = producer.client
    # Cancel background tasks: there is no NameServer and no broker.
    for job in client._jobs:
        job.cancel()
    client.routes._on_new = lambda: None
    client.routes._keep(
        TOPIC,
        TopicRouteData(
            broker_datas=[BrokerData(cluster="DefaultCluster", broker_name=BROKER, broker_addrs={0: ADDRESS})],
            queue_datas=[
                QueueData(
                    broker_name=BROKER, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=PERM_READ | PERM_WRITE
                )
            ],
        ),
        frozenset(),
    )
    peer = Answering(loop)
    peer.connection = _to_broker(producer, peer)

    async def disconnect() -> None:
        client.remoting._connections.clear()

    return peer, disconnect


def _to_broker(producer: Producer, peer: Swallowing) -> Connection:
    remoting = producer.client.remoting
    connection = Connection({}, limits=remoting._connection_limits, first_look=first_look())
    connection.connection_made(peer)
    connection.address = ADDRESS
    remoting._connections[ADDRESS] = connection
    return connection


def steps_of_a_pull(body: bytes, repeat: int) -> None:
    """Measures a consumer's work for the records of a pull, without the handler."""
    queue = MessageQueue(TOPIC, BROKER, 3)
    records = pulled_records(queue, body)
    held = ProcessQueue(queue, 0, FlowLimits())
    times = []
    for _ in range(4 * repeat):
        began = time.thread_time_ns()
        messages, _ = decode_pulled(records, queue, 0, MAX_DECOMPRESSED_SIZE, lambda _: None)
        held.put(messages)
        for message in messages:
            held.remove(message)
        times.append((time.thread_time_ns() - began) / PULLED)
        assert len(messages) == PULLED
    show(f"a pull of {PULLED}, decoded and dealt with", times)


async def push_consumers(body: bytes, repeat: int) -> None:
    """Measures a push consumer with a backlog: the CPU time of all its threads, with an almost empty handler."""
    queue = MessageQueue(TOPIC, BROKER, 3)
    pulls = [pulled_records(queue, body, number * PULLED) for number in range(PULLS)]
    for kind in CONSUMERS:
        times = []
        for _ in range(repeat):
            began = time.process_time_ns()
            await consume(kind, pulls, BACKLOGS)
            times.append((time.process_time_ns() - began) / (BACKLOGS * PULLS * PULLED))
        show(f"push consumer, {kind}", times)


#: Pulls of a backlog, and backlogs that one consumer reads in turn.
PULLS, BACKLOGS = 4, 8
#: Kinds of push consumers.
ASYNC, PLAIN, LISTS, ORDERLY = "async handler", "plain function", f"lists of {BATCH}", "in order"
CONSUMERS = (ASYNC, PLAIN, LISTS, ORDERLY)


async def consume(kind: str, pulls: Sequence[bytes], repetitions: int) -> None:
    """Pulls and handles the records of `pulls` like a push consumer, `repetitions` times."""
    queue = MessageQueue(TOPIC, BROKER, 3)
    loop = asyncio.get_running_loop()
    # A counter that threads can share.
    handled, ended = itertools.count(1), asyncio.Event()
    expected = len(pulls) * PULLED

    def handle_plainly(message: MessageExt) -> None:
        if message.body and next(handled) % expected == 0:
            loop.call_soon_threadsafe(ended.set)

    async def handle(message: MessageExt) -> None:
        handle_plainly(message)

    async def handle_list(messages: list[MessageExt]) -> None:
        for message in messages:
            handle_plainly(message)

    async with AsyncExitStack() as stack:
        producer, _ = await connected(stack)
        options = PushConsumerOptions("127.0.0.1:1", "benchmark_consumer")
        assignment = Assignment(lambda queue: queue, None, None)
        context = ConsumerContext(producer.client, "benchmark_consumer", {}, options, assignment)
        handler: MessageHandler = handle_plainly if kind == PLAIN else handle
        at_a_time = CONCURRENCY
        if kind == LISTS:
            handler, at_a_time = Batches(handle_list, BATCH, 0.1, CONCURRENCY), CONCURRENCY * BATCH
            stack.push_async_callback(handler.close)
        consumption = (
            ConsumeOrderly(handler, CONCURRENCY, None, None, None, 1.0, lambda _: TOPIC, lambda _: None)
            if kind == ORDERLY
            else ConsumeConcurrently(handler, at_a_time, None, 900.0, lambda _: TOPIC)
        )
        stack.push_async_callback(consumption.close, 10.0)
        for _ in range(repetitions):
            ended.clear()
            peer = AnsweringPulls(loop, pulls)
            peer.connection = _to_broker(producer, peer)
            process_queue = ProcessQueue(queue, 0, options.limits())
            puller = QueuePuller(
                context,
                process_queue,
                SubscriptionData.parse(TOPIC),
                consumption.submit,
                lambda _, offset: None,
                commits=lambda: True,
                lite=False,
            )
            await ended.wait()
            await puller.stop()


def pulled_records(queue: MessageQueue, body: bytes, first: int = 0) -> bytes:
    """Returns the records of a pull response."""
    properties = b"UNIQ_KEY\x01%032X\x02" % 1
    return b"".join(
        bytes(
            encode_record(
                queue.queue_id, 0, n, 1000 + n * 300, 0, 1_700_000_000_000, HOST, 1_700_000_000_001, HOST, 0, 0, body,
                TOPIC.encode(), properties,
            )
        )
        for n in range(first, first + PULLED)
    )  # fmt: skip


def show(name: str, times_ns: list[float]) -> None:
    print(f"{name:42} {min(times_ns) / 1000:6.2f} us (median {statistics.median(times_ns) / 1000:.2f})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
