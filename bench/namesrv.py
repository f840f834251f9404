"""Route queries against Apache's NameServer and this project's, in turn on one machine; prints a Markdown table.

Eight brokers register all topics with both NameServers. Then pipelined GET_ROUTEINFO_BY_TOPIC requests over a few
connections query random topics. The same client measures both. The compared figure is the servers' CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import uvloop
from result_files import add_out, recorded

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from servers import Server, build, gantry_namesrv, java_namesrv, missing_tools

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
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection

BROKERS = 8
CONNECTIONS = 4
IN_FLIGHT = 32
SYSTEMS: dict[str, Callable[[Path], Server]] = {
    "Java": lambda directory: java_namesrv(directory, options=["-Xmx2g", "-XX:+UseG1GC"]),
    "GantryMQ": gantry_namesrv,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 1000, 20_000], help="(%(default)s)")
    parser.add_argument("--queries", type=int, default=100_000, help="queries of one run (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system, in turn (%(default)s)")
    add_out(parser)
    args = parser.parse_args()
    if missing := missing_tools():
        print(f"bench: {missing}", file=sys.stderr)
        return 1
    build()
    with recorded(args, "bench/namesrv.py"):
        print("| | Java | GantryMQ | GantryMQ : Java |\n|---|---|---|---|")
        measure_start_up(args.rounds)
        for topics in args.topics:
            measure_queries(topics, args.queries, args.rounds)
    return 0


def measure_start_up(rounds: int) -> None:
    values: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    idle: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for _ in range(rounds):
        for name, start in SYSTEMS.items():
            with tempfile.TemporaryDirectory() as directory:
                server, seconds = timed_start(start, Path(directory))
                try:
                    values[name].append(seconds)
                    idle[name].append(resident_mib(server.process.pid))
                finally:
                    server.stop()
    row("start to first answer, s", values, "{:.2f}")
    row("memory after the start, MiB", idle, "{:.0f}")


def timed_start(start: Callable[[Path], Server], directory: Path) -> tuple[Server, float]:
    began = time.perf_counter()
    server = start(directory)
    uvloop.run(_first_answer(server.address))
    return server, time.perf_counter() - began


async def _first_answer(address: str) -> None:
    client = RemotingClient()
    await client.invoke(address, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO), 10_000)
    await client.close()


def measure_queries(topics: int, queries: int, rounds: int) -> None:
    names = [f"topic-number-{i}-of-the-benchmark" for i in range(topics)]
    rates: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    cpus: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    memory: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    with tempfile.TemporaryDirectory() as directory:
        servers: dict[str, Server] = {}
        try:
            for name, start in SYSTEMS.items():
                place = Path(directory) / name
                place.mkdir()
                servers[name] = start(place)
            uvloop.run(_run(servers, names, queries, rounds, rates, cpus))
            for name, server in servers.items():
                memory[name].append(resident_mib(server.process.pid))
        finally:
            for server in servers.values():
                server.stop()
    what = f"{topics:,} topic{'' if topics == 1 else 's'} on {BROKERS} brokers"
    row(f"{what}: queries/s", rates, "{:,.0f}")
    row(f"{what}: server's CPU, µs per query", cpus, "{:.1f}")
    row(f"{what}: memory, MiB", memory, "{:.0f}")


async def _run(
    servers: dict[str, Server],
    names: list[str],
    queries: int,
    rounds: int,
    rates: dict[str, list[float]],
    cpus: dict[str, list[float]],
) -> None:
    brokers = {name: await _register(server.address, names) for name, server in servers.items()}
    for number in range(rounds + 1):
        for name, server in servers.items():
            cpu = cpu_seconds(server.process.pid)
            began = time.perf_counter()
            await _ask(server.address, names, queries)
            seconds = time.perf_counter() - began
            # The first round warms up both servers.
            if number:
                rates[name].append(queries / seconds)
                cpus[name].append((cpu_seconds(server.process.pid) - cpu) / queries * 1e6)
    for clients in brokers.values():
        for client in clients:
            await client.close()


async def _register(address: str, names: list[str]) -> list[RemotingClient]:
    """Registers the brokers.

    Their connections stay open, because a NameServer removes a broker when its connection closes.
    """
    topics = {name: TopicConfig(name, 8, 8) for name in [*names, "one-more"]}
    body = encode_register_body(RegisterBrokerBody(TopicConfigTable(topics, DataVersion())))
    clients = []
    for i in range(BROKERS):
        client = RemotingClient()
        header = RegisterBrokerRequestHeader(
            broker_name=f"broker-{i}",
            broker_addr=f"127.0.0.1:{20_000 + i}",
            cluster_name="bench",
            broker_id=0,
            ha_server_addr=f"127.0.0.1:{21_000 + i}",
            heartbeat_timeout_millis=3_600_000,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        await client.call(address, RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body), 60_000)
        clients.append(client)
    return clients


async def _ask(address: str, names: list[str], queries: int) -> None:
    choose = random.Random(1)
    # Each worker queries the same random topics. Requests are created on demand, to save memory.
    wanted = [choose.choice(names) for _ in range(queries // (CONNECTIONS * IN_FLIGHT))]
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()

    async def worker(connection: Connection) -> None:
        for name in wanted:
            header = GetRouteInfoRequestHeader(topic=name, accept_standard_json_only=True)
            await connection.invoke(RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header), 30_000)

    connections = []
    for _ in range(CONNECTIONS):
        sock = socket.create_connection((host, int(port)))
        _, connection = await loop.create_connection(lambda: Connection({}), sock=sock)
        connections.append(connection)
    await asyncio.gather(*(worker(connection) for connection in connections for _ in range(IN_FLIGHT)))
    for connection in connections:
        connection.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def row(name: str, values: dict[str, list[float]], form: str) -> None:
    cells = [form.format(statistics.median(values[system])) for system in SYSTEMS]
    ratios = [b / a for a, b in zip(values["Java"], values["GantryMQ"], strict=True)]
    spread = f"{statistics.median(ratios):.3g} ({min(ratios):.3g} to {max(ratios):.3g})"
    print(f"| {name} | {cells[0]} | {cells[1]} | {spread} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
