"""scale.py: growth with a broker's messages, topics and queues, and with the size of a message."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from scale_load import PULLED, ask_all, close, connect, fill, pull, queues_of, send, unique_key
from scale_run import QUEUES, SENDS, TOPIC, Row, Run, idle, sends_and_pulls, told
from scale_servers import FLUSHED_WINDOW_S, Node, cpu_us, descriptors, disk_mib, memory, nodes

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import SearchOffsetRequestHeader
from gantrymq.protocol.headers.query import QueryMessageRequestHeader
from gantrymq.protocol.message import MessageQueue

#: Total size of the messages of one size, and limit of the unacknowledged ones; in bytes.
_OF_A_SIZE = 256 << 20
_UNDER_WAY = 8 << 20
#: Largest size of a pull response in bytes. It has at least one message.
_BYTES_OF_A_PULL = 256 << 10
_LOOKUPS = 200


async def messages(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures one growing store. The broker restarts at each point."""
    rows: list[Row] = []
    async with nodes(run.directory, 1) as (of,):
        of.make_topics([TOPIC, "sent"], QUEUES)
        stored = 0
        for count in points:
            rows.append(await _with_messages(run, of, stored, count))
            stored = count
            told("messages", rows[-1])
    return rows


async def _with_messages(run: Run, of: Node, stored: int, count: int) -> Row:
    connections = await connect(of.broker.address)
    row: Row = {"x": count}
    added = count - stored
    row["batched"] = await cpu_us(of.broker, added, fill(connections, queues_of([TOPIC], QUEUES), stored, added))
    row |= await sends_and_pulls(run, of, connections, queues_of(["sent"], QUEUES))
    choose = random.Random(1)
    lookups = run.count(_LOOKUPS)
    keys = [unique_key(choose.randrange(count)) for _ in range(lookups)]
    row["by_key"] = await cpu_us(of.broker, lookups, ask_all(connections, map(_by_key, keys)))
    now_ms = time.time_ns() // 1_000_000
    row["by_time"] = await cpu_us(
        of.broker, lookups, ask_all(connections, (_by_time(now_ms - number) for number in range(lookups)))
    )
    row |= memory(of.broker)
    await close(connections)
    _, row["killed"], row["killed_cpu"] = of.start_again(kill=True)
    _, row["ready"], row["ready_cpu"] = of.start_again()
    row["disk"] = disk_mib(of.directory)
    return row


def _by_key(key: str) -> RemotingCommand:
    header = QueryMessageRequestHeader(topic=TOPIC, key=key, max_num=1, begin_timestamp=0, end_timestamp=1 << 62)
    return RemotingCommand.request(RequestCode.QUERY_MESSAGE, header)


def _by_time(timestamp_ms: int) -> RemotingCommand:
    header = SearchOffsetRequestHeader(topic=TOPIC, queue_id=0, timestamp=timestamp_ms)
    return RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


async def topics(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures topics of 8 queues. The messages go to the first queue of each topic in turn."""
    rows: list[Row] = []
    async with nodes(run.directory, len(points)) as started:
        for of, count in zip(started, points, strict=True):
            names = [f"{TOPIC}-{number}" for number in range(count)]
            of.make_topics(names, QUEUES)
            rows.append(await _with_queues(run, of, count, queues_of(names, 1)))
            told("topics", rows[-1])
        await idle(run, "topics", started, rows)
    return rows


async def queues(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures one topic with this many queues."""
    rows: list[Row] = []
    async with nodes(run.directory, len(points)) as started:
        for of, count in zip(started, points, strict=True):
            of.make_topics([TOPIC], count)
            rows.append(await _with_queues(run, of, count, queues_of([TOPIC], count)))
            told("queues", rows[-1])
        await idle(run, "queues", started, rows)
    return rows


async def _with_queues(run: Run, of: Node, count: int, used: list[MessageQueue]) -> Row:
    row: Row = {"x": count}
    _, row["unused_ready"], row["unused_cpu"] = of.start_again()
    row["unused"] = memory(of.broker)["own"]
    connections = await connect(of.broker.address)
    # The first message to each queue creates its file.
    row["stall"] = await of.stall_ms(lambda: send(connections, used, len(used)))
    row |= await sends_and_pulls(run, of, connections, used, FLUSHED_WINDOW_S)
    row |= memory(of.broker)
    row["descriptors"] = descriptors(of.broker)
    await close(connections)
    _, row["killed"], row["killed_cpu"] = of.start_again(kill=True)
    row["stop"], row["ready"], row["ready_cpu"] = of.start_again()
    row["disk"] = disk_mib(of.directory)
    row["namesrv"] = memory(of.namesrv)["own"]
    return row


async def size(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures messages of this many bytes, with one topic for each size."""
    rows: list[Row] = []
    async with nodes(run.directory, 1) as (of,):
        for size_of_body in points:
            rows.append(await _of_size(run, of, size_of_body))
            told("size", rows[-1])
    return rows


async def _of_size(run: Run, of: Node, size_of_body: int) -> Row:
    topic = f"{TOPIC}-{size_of_body}"
    of.make_topics([topic], QUEUES)
    used = queues_of([topic], QUEUES)
    connections = await connect(of.broker.address)
    count = min(run.count(SENDS), run.count(_OF_A_SIZE) // size_of_body) // QUEUES * QUEUES
    under_way = max(min(32, _UNDER_WAY // size_of_body), 1)
    await send(connections, used, max(count // 2, QUEUES), size_of_body, under_way)
    row: Row = {"x": size_of_body}
    before = _log_end(of)
    row["send"] = await cpu_us(of.broker, count, send(connections, used, count, size_of_body, under_way))
    row["record"] = (_log_end(of) - before) / count
    at_once = max(min(PULLED, int(_BYTES_OF_A_PULL // row["record"])), 1)
    places = [(queue, at) for at in range(0, count // QUEUES, at_once) for queue in used]
    row["found"] = await pull(connections, places, under_way) / len(places)
    row["pull"] = await cpu_us(of.broker, len(places), pull(connections, places, under_way))
    row["read"] = row["pull"] / row["found"]
    row["sent_mib"] = size_of_body / row["send"] / 1.048576
    row["read_mib"] = size_of_body / row["read"] / 1.048576
    row |= memory(of.broker)
    await close(connections)
    return row


def _log_end(of: Node) -> int:
    """Returns the end offset of the commit log."""
    info = of.ask(RequestCode.GET_BROKER_RUNTIME_INFO).decode()
    return int(info.partition('"commitLogMaxOffset":"')[2].partition('"')[0])
