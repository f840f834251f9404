"""scale.py: growth with a broker's consumer groups and connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle

from scale_load import SUSPEND_MS, ask_all, close, commit, connect, heartbeat, pull_request, queues_of, send
from scale_run import QUEUES, TOPIC, Row, Run, idle, sends_and_pulls, told
from scale_servers import Node, cpu_us, descriptors, memory, nodes

from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection

#: Number of connections that share all groups, as proxies do.
_CLIENTS = 20
#: Smallest number of heartbeats, and of joining connections, per figure.
_HEARTBEATS = 20_000
_JOINS = 1_000


async def groups(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures groups of one member each that commit their offsets of 8 queues."""
    rows: list[Row] = []
    async with nodes(run.directory, len(points)) as started, beating() as beating_clients:
        for of, count in zip(started, points, strict=True):
            rows.append(await _with_groups(run, of, count, beating_clients))
            told("groups", rows[-1])
        await idle(run, "groups", started, rows)
    return rows


async def _with_groups(run: Run, of: Node, count: int, clients: Beating) -> Row:
    of.make_topics([TOPIC], QUEUES)
    names = [f"group-{number}" for number in range(count)]
    of.make_groups(names)
    connections = await connect(of.broker.address, _CLIENTS)
    queues = queues_of([TOPIC], QUEUES)
    await send(connections, queues, QUEUES)
    beats = [heartbeat(f"client-{number}", names[number::_CLIENTS], TOPIC) for number in range(_CLIENTS)]
    commits = [commit(name, queue, 1) for queue in queues for name in names]

    async def all_of_it() -> None:
        """Joins all groups, sends another heartbeat, and commits offsets, which the broker writes to their file."""
        await ask_all(connections, iter(beats * 2))
        await ask_all(connections, iter(commits))

    row: Row = {"x": count, "stall": await of.stall_ms(all_of_it)}
    rounds = max(run.count(_HEARTBEATS) // count, 2)
    row["heartbeat"] = await cpu_us(of.broker, rounds * count, ask_all(connections, iter(beats * rounds)))
    rounds = max(run.count(_HEARTBEATS) // len(commits), 1)
    row["commit"] = await cpu_us(of.broker, rounds * len(commits), ask_all(connections, iter(commits * rounds)))
    row |= await sends_and_pulls(run, of, connections, queues)
    row |= memory(of.broker)
    await close(connections)
    _, row["ready"], row["ready_cpu"] = of.start_again()
    connections = await connect(of.broker.address, _CLIENTS)
    await ask_all(connections, iter(beats))
    clients.start(connections, beats, run.idle_s)
    return row


async def connections(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures connections of consumers, each with a pending pull on its own queue.

    8 of them share a group and a topic.
    """
    rows: list[Row] = []
    async with nodes(run.directory, len(points)) as started, beating() as clients:
        for of, count in zip(started, points, strict=True):
            rows.append(await _with_connections(run, of, count, clients))
            told("connections", rows[-1])
        await idle(run, "connections", started, rows)
    return rows


async def _with_connections(run: Run, of: Node, count: int, clients: Beating) -> Row:
    topics = [f"{TOPIC}-{number}" for number in range(-(-count // QUEUES))]
    of.make_topics([*topics, TOPIC], QUEUES)
    queues = [MessageQueue(topics[number // QUEUES], "broker-a", number % QUEUES) for number in range(count)]
    beats = [heartbeat(f"client-{number}", [f"of-{queue.topic}"], queue.topic) for number, queue in enumerate(queues)]
    made = await connect(of.broker.address)
    # The memory of the groups is not part of this measurement, so they are created first.
    await ask_all(made, iter(beats))
    await close(made)
    before = memory(of.broker)["own"]

    async def come_and_go() -> None:
        made = await connect(of.broker.address, count)
        await ask_all(made, iter(beats))
        await close(made)

    row: Row = {"x": count, "stall": await of.stall_ms(come_and_go)}
    rounds = -(-run.count(_JOINS) // count)

    async def come_and_go_often() -> None:
        for _ in range(rounds):
            await come_and_go()

    row["join"] = await cpu_us(of.broker, rounds * count, come_and_go_often())
    made = await connect(of.broker.address, count)
    await ask_all(made, iter(beats))
    rounds = -(-run.count(_HEARTBEATS) // count)
    row["heartbeat"] = await cpu_us(of.broker, rounds * count, ask_all(made, iter(beats * rounds)))
    # Uses few queues, because those of a thousand topics cost more than the connections.
    row |= await sends_and_pulls(run, of, made, queues_of([TOPIC], QUEUES))
    clients.start(made, beats, run.idle_s)
    clients.wait_for_messages(made, queues)
    # All connections have sent their pull after this time.
    await asyncio.sleep(1)
    row["own"] = memory(of.broker)["own"]
    row["each"] = (row["own"] - before) * 1024 / count
    row["descriptors"] = descriptors(of.broker)
    return row


class Beating:
    """Clients that behave like consumers without messages until they are stopped."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: list[Connection] = []

    def start(self, connections: Sequence[Connection], beats: Sequence[RemotingCommand], period_s: float) -> None:
        """Sends a heartbeat for each connection once per period, evenly distributed."""
        self._connections += connections
        self._tasks.append(asyncio.create_task(_beat(connections, beats, period_s)))

    def wait_for_messages(self, connections: Sequence[Connection], queues: Sequence[MessageQueue]) -> None:
        """Pulls repeatedly from the end of each queue."""
        pairs = zip(connections, queues, strict=True)
        self._tasks += [asyncio.create_task(_wait_for_messages(*pair)) for pair in pairs]

    async def stop(self) -> None:
        """Stops the clients. Raises the exception of a client that failed."""
        ended = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close(self._connections)
        for task in ended:
            task.result()


@asynccontextmanager
async def beating() -> AsyncIterator[Beating]:
    clients = Beating()
    try:
        yield clients
    finally:
        await clients.stop()


async def _beat(connections: Sequence[Connection], beats: Sequence[RemotingCommand], period_s: float) -> None:
    began = time.perf_counter()
    for number, (connection, request) in enumerate(cycle(zip(connections, beats, strict=True))):
        await asyncio.sleep(began + number * period_s / len(beats) - time.perf_counter())
        await ask_all([connection], iter([request]), under_way=1)


async def _wait_for_messages(connection: Connection, queue: MessageQueue) -> None:
    # A pull behind the end gets a response at once, with the end offset.
    answer = await connection.invoke(pull_request(queue, 1 << 40), 2 * SUSPEND_MS)
    end = int(answer.ext_fields["maxOffset"])
    while True:
        await connection.invoke(pull_request(queue, end, suspend=True), 2 * SUSPEND_MS)
