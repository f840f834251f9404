"""`gantry up`: a cluster on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import selectors
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import typer

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.testing.processes import (
    HOST,
    IN_SYNC_REPLICAS,
    ProcessCluster,
    ServerProcess,
    broker_port,
    controller_port,
    proxy_port,
    proxy_remoting_port,
    replica_name,
)
from gantrymq.testing.signals import Interrupted, interruptible

if TYPE_CHECKING:
    from gantrymq.console.server import ConsoleThread

DEFAULT_QUEUES = 8
MAX_QUEUES = 1024
#: How often the console is looked at; the processes tell themselves.
WATCH_INTERVAL_S = 0.5
#: So long elections may take, and how often it is looked whether they are over.
ELECTION_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.05


def parse_topics(texts: Sequence[str]) -> dict[str, int]:
    """NAME:QUEUES, or NAME, as queues by name."""
    topics = {}
    for text in texts:
        name, colon, queues = text.partition(":")
        problem = topic_problem(name)
        if problem is not None:
            raise typer.BadParameter(f"{name!r}: {problem}", param_hint="'--topic'")
        if colon and not (queues.isascii() and queues.isdigit() and 1 <= int(queues) <= MAX_QUEUES):
            raise typer.BadParameter(f"{text!r}: NAME:QUEUES, 1 to {MAX_QUEUES} queues", param_hint="'--topic'")
        topics[name] = int(queues) if colon else DEFAULT_QUEUES
    return topics


def run_cluster(
    brokers: int,
    directory: Path | None,
    port: int,
    topics: Mapping[str, int],
    replicas: int = 1,
    *,
    proxy: bool = False,
    controller: bool = False,
    console: bool = False,
) -> int:
    """Runs until SIGINT (exit code 130), SIGTERM (0) or the end of a server (GantryError). No process is left.

    `topics` are there on every broker, with so many queues on each, before it says that it is ready. With a
    controller a broker may end: another takes its place. With a console it runs in this process.
    """
    try:
        with interruptible(), ExitStack() as stack:
            _check_ports(port, brokers, replicas, proxy=proxy, controller=controller, console=console)
            if directory is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gantry-")))
            cluster = ProcessCluster(
                directory.absolute(), brokers=brokers, replicas=replicas, proxy=proxy, controller=controller, port=port
            )
            stack.enter_context(cluster)
            if controller:
                asyncio.run(_until_masters(cluster.namesrv_addr, brokers, replicas))
            if topics:
                asyncio.run(_make_topics(cluster.namesrv_addr, topics))
            shown = _console(cluster, directory, port) if console else None
            if shown is not None:
                stack.enter_context(shown)
            for server in cluster.servers:
                print(f"{server.name}  {server.address}  pid {server.pid}  log {server.log_path}")
            if controller and replicas > 1:
                print(
                    f"{replicas} replicas of each broker, one of which the controller makes master; a send is answered"
                )
                print(f"when all in sync have it, {IN_SYNC_REPLICAS} at least")
            elif replicas > 1:
                print(f"{replicas} replicas of each broker; a send is answered when {IN_SYNC_REPLICAS} have it")
            for name, queues in topics.items():
                print(f"topic {name}  {queues} queues on each broker")
            by_grpc = f", gRPC at {cluster.proxy.address}" if cluster.proxy is not None else ""
            in_browser = f", console at {shown.address}" if shown is not None else ""
            print(
                f"ready: NameServer at {cluster.namesrv_addr}{by_grpc}{in_browser}; Ctrl-C stops the cluster",
                flush=True,
            )
            _watch(cluster, shown)
    except Interrupted as e:
        return INTERRUPTED if e.signal_number == signal.SIGINT else 0


async def _until_masters(name_server: str, brokers: int, replicas: int) -> None:
    """Returns when each broker name has a master and its slaves. Raises GantryError."""
    deadline = time.monotonic() + ELECTION_TIMEOUT_S
    async with AdminClient(name_server) as admin:
        while time.monotonic() < deadline:
            table = (await admin.cluster_info()).broker_addr_table.values()
            sets = [broker.broker_addrs for broker in table]
            if len(sets) == brokers and all(MASTER_ID in each and len(each) == replicas for each in sets):
                return
            await asyncio.sleep(LOOK_INTERVAL_S)
    raise GantryError(
        f"not every broker name has a master and its slaves after {ELECTION_TIMEOUT_S:.0f} s; see the logs"
    )


async def _make_topics(name_server: str, topics: Mapping[str, int]) -> None:
    async with AdminClient(name_server) as admin:
        for name, queues in topics.items():
            await admin.ensure_topic(name, queues=queues)


def _check_ports(port: int, brokers: int, replicas: int, *, proxy: bool, controller: bool, console: bool) -> None:
    """Raises GantryError when one is taken; the servers would say so of one after the other."""
    if not port:
        return
    names = {port: "the NameServer"} | {
        broker_port(port, number, replica): replica_name(number, replica)
        for number in range(brokers)
        for replica in range(replicas)
    }
    if controller:
        names[controller_port(port)] = "the controller"
    if proxy:
        names[proxy_port(port)] = "the proxy"
        names[proxy_remoting_port(port)] = "the proxy's remoting protocol"
    if console:
        names[console_port(port)] = "the console"
    for number, name in names.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, number))
            except OSError as e:
                raise GantryError(
                    f"port {number}, for {name}, can't be had: {e.strerror}. If a cluster runs there already, gantry "
                    f"topology -n {HOST}:{port} shows it; --port 0 takes free ports"
                ) from e


def console_port(port: int) -> int:
    """Of the console, beside a NameServer at `port`; 0, any free one, where that is 0 or too low."""
    return max(port - 1696, 0)


def _console(cluster: ProcessCluster, directory: Path, port: int) -> ConsoleThread:
    from gantrymq.console.server import ConsoleThread
    from gantrymq.console.settings import Settings

    settings = Settings(cluster.namesrv_addr, port=console_port(port), directory=directory.absolute() / "console")
    return ConsoleThread(settings)


def _watch(cluster: ProcessCluster, console: ConsoleThread | None) -> NoReturn:
    with selectors.DefaultSelector() as selector:
        for server in cluster.servers:
            selector.register(server, selectors.EVENT_READ)
        while True:
            if console is not None and console.error is not None:
                raise GantryError(f"the console has ended: {console.error}")
            for key, _ in selector.select(WATCH_INTERVAL_S):
                server = cast(ServerProcess, key.fileobj)
                if server.read_output():
                    continue
                ended = f"{server.name} (pid {server.pid}) has ended; its log is {server.log_path}"
                if cluster.controller is None or server not in cluster.brokers:
                    raise GantryError(ended)
                print(ended, flush=True)
                selector.unregister(server)
