"""scale.py: growth with a NameServer's brokers."""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from scale_load import ask_all, close, connect
from scale_run import QUEUES, TOPIC, Row, Run, told
from scale_servers import cpu_us, memory

# `scale_servers` puts interop on the import path.
from servers import Server, gantry_namesrv  # isort: skip

from gantrymq.protocol.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader
from gantrymq.protocol.headers.topic import GetRouteInfoRequestHeader
from gantrymq.remoting.connection import Connection

#: Number of topics of each broker. All brokers have the same topics.
TOPICS_OF_A_BROKER = 1_000
_QUERIES = 20_000
#: Approximate size of all responses for one figure, in bytes. The responses for 1,000 brokers are long.
_OF_ANSWERS = 512 << 20
_BYTES_OF_A_BROKER = 250
#: Smallest number of registrations per figure.
_REGISTRATIONS = 100
_UNDER_WAY = 4
#: Idle timeout of the NameServer, in seconds. So brokers need not register every 30 s here.
_PATIENCE_S = 3600


async def brokers(run: Run, points: Sequence[int]) -> list[Row]:
    """Measures brokers that register, as they do every 30 s, and clients that query routes."""
    rows: list[Row] = []
    for count in points:
        with ExitStack() as stack:
            namesrv = gantry_namesrv(run.directory / str(count), serverChannelMaxIdleTimeSeconds=_PATIENCE_S)
            stack.callback(namesrv.kill)
            rows.append(await _with_brokers(run, namesrv, count))
            told("brokers", rows[-1])
    return rows


async def _with_brokers(run: Run, namesrv: Server, count: int) -> Row:
    names = [f"{TOPIC}-{number}" for number in range(TOPICS_OF_A_BROKER)]
    version = DataVersion()
    registered = await connect(namesrv.address, count)
    asking = await connect(namesrv.address, 4)
    rounds = -(-_REGISTRATIONS // count)

    async def register(rounds: int, *, changed: bool) -> None:
        for _ in range(rounds):
            if changed:
                version.advance()
            await ask_all(registered, _registrations(count, names, version), _UNDER_WAY)

    row: Row = {"x": count, "first": await cpu_us(namesrv, count, register(1, changed=False))}
    row["again"] = await cpu_us(namesrv, rounds * count, register(rounds, changed=False))
    row["changed"] = await cpu_us(namesrv, rounds * count, register(rounds, changed=True))
    # Not part of the figures above, because it queries the same server.
    async with asyncio.TaskGroup() as both:
        slowest = both.create_task(_slowest_route(asking[0], names, both.create_task(register(1, changed=True))))
    row["slowest"] = slowest.result()
    queries = min(run.count(_QUERIES), run.count(_OF_ANSWERS) // (count * _BYTES_OF_A_BROKER))
    choose = random.Random(1)
    requests = [_query(choose.choice(names)) for _ in range(queries)]
    (length,) = await ask_all(asking, iter(requests[:1]))
    row["answer"] = length / 1024
    row["body"] = len(_register_body(names, version)) / 1024
    row["route"] = await cpu_us(namesrv, queries, ask_all(asking, iter(requests)))
    row |= memory(namesrv)
    await close([*registered, *asking])
    return row


async def _slowest_route(connection: Connection, names: Sequence[str], until: asyncio.Task[None]) -> float:
    """Returns the longest time of a route query, in milliseconds, while brokers register changed topics."""
    slowest = 0.0
    while not until.done():
        began = time.perf_counter()
        await ask_all([connection], iter([_query(names[0])]), 1)
        slowest = max(slowest, time.perf_counter() - began)
        await asyncio.sleep(0.005)
    return slowest * 1000


def _query(topic: str) -> RemotingCommand:
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    return RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)


def _registrations(count: int, names: Sequence[str], version: DataVersion) -> Iterator[RemotingCommand]:
    body = _register_body(names, version)
    crc32 = zlib.crc32(body) & 0x7FFFFFFF
    for number in range(count):
        header = RegisterBrokerRequestHeader(
            broker_name=f"broker-{number}",
            broker_addr=f"10.0.{number // 250}.{number % 250 + 1}:10911",
            cluster_name="scale",
            broker_id=0,
            ha_server_addr=f"10.0.{number // 250}.{number % 250 + 1}:10912",
            heartbeat_timeout_millis=_PATIENCE_S * 1000,
            body_crc32=crc32,
        )
        yield RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)


def _register_body(names: Sequence[str], version: DataVersion) -> bytes:
    topics = {name: TopicConfig(name, QUEUES, QUEUES) for name in names}
    return encode_register_body(RegisterBrokerBody(TopicConfigTable(topics, version)))
