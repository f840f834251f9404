"""Implements `gantry up`: runs a cluster on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import typer

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.cli.supervisor import Supervisor
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.testing.cluster_ports import ClusterPorts, cluster_ports
from gantrymq.testing.processes import (
    HOST,
    IN_SYNC_REPLICAS,
    ProcessCluster,
    replica_name,
)
from gantrymq.testing.signals import Interrupted, interruptible

if TYPE_CHECKING:
    from gantrymq.console.server import ConsoleThread

DEFAULT_QUEUES = 8
MAX_QUEUES = 1024
#: The longest time for elections, and the interval at which their end is checked.
ELECTION_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.05


def parse_topics(texts: Sequence[str]) -> dict[str, int]:
    """Parses texts of the form NAME or NAME:QUEUES. Returns {name: number of queues}."""
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
    """Runs a cluster until a signal, or until the cluster cannot continue. Always stops all processes.

    A broker that ends is restarted. If another server ends, or if all brokers are given up, the cluster ends.

    Args:
        brokers: The number of broker names.
        directory: The directory for the data. Default: a temporary directory, which is deleted if no server has failed.
        port: The port of the NameServer. The other ports are computed from it. 0 selects free ports.
        topics: {topic: queues on each broker}. These are created before the cluster is reported as ready.
        replicas: The replicas of each broker name.
        proxy: If true, also runs a proxy.
        controller: If true, also runs a controller.
        console: If true, also runs the console, in this process.

    Returns:
        The exit code: 130 after SIGINT, 0 after SIGTERM. 1 if the cluster cannot start or continue; the error is
        printed before the servers stop.

    Raises:
        GantryError: A port is in use.
    """
    supervisor: Supervisor | None = None
    try:
        with interruptible() as interruption:
            ports = cluster_ports(port)
            _check_ports(ports, brokers, replicas, proxy=proxy, controller=controller, console=console)
            path = Path(tempfile.mkdtemp(prefix="gantry-")) if directory is None else directory.absolute()
            cluster = ProcessCluster(
                path, brokers=brokers, replicas=replicas, proxy=proxy, controller=controller, port=port
            )
            try:
                with ExitStack() as stack:
                    stack.callback(cluster.stop)
                    try:
                        cluster.start()
                        if controller:
                            asyncio.run(_until_masters(cluster.namesrv_addr, brokers, replicas))
                        if topics:
                            asyncio.run(_make_topics(cluster.namesrv_addr, topics))
                        shown = _console(cluster, path, ports.console) if console else None
                        if shown is not None:
                            stack.enter_context(shown)
                        _print_cluster(cluster, topics, replicas, None if shown is None else shown.address)
                        supervisor = Supervisor(cluster, interruption)
                        supervisor.run(shown)
                    except Exception as e:
                        # A signal must not interrupt the stop of the servers, which can take seconds.
                        interruption.ignore()
                        if isinstance(e, BrokenPipeError):
                            raise
                        print(f"gantry: {e}; the logs are in {path / 'logs'}", file=sys.stderr, flush=True)
                        if isinstance(e, GantryError | OSError):
                            return 1
                        raise
            except (Interrupted, BrokenPipeError):
                if supervisor is not None and supervisor.has_failed:
                    kept = f"a server has ended during this run: the data and the logs are kept in {path}"
                    print(kept, file=sys.stderr, flush=True)
                elif directory is None:
                    rmtree(path, ignore_errors=True)
                raise
    except Interrupted as e:
        return INTERRUPTED if e.signal_number == signal.SIGINT else 0


def _print_cluster(cluster: ProcessCluster, topics: Mapping[str, int], replicas: int, console: str | None) -> None:
    """Prints the servers and topics, then the line that says that the cluster is ready."""
    for server in cluster.servers:
        print(f"{server.name}  {server.address}  pid {server.pid}  log {server.log_path}")
    if cluster.controller is not None and replicas > 1:
        print(f"{replicas} replicas of each broker, one of which the controller makes master; a send is answered")
        print(f"when all in sync have it, {IN_SYNC_REPLICAS} at least")
    elif replicas > 1:
        print(f"{replicas} replicas of each broker; a send is answered when {IN_SYNC_REPLICAS} have it")
    for name, queues in topics.items():
        print(f"topic {name}  {queues} queues on each broker")
    by_grpc = f", gRPC at {cluster.proxy.address}" if cluster.proxy is not None else ""
    in_browser = f", console at {console}" if console is not None else ""
    print(f"ready: NameServer at {cluster.namesrv_addr}{by_grpc}{in_browser}; Ctrl-C stops the cluster", flush=True)


async def _until_masters(name_server: str, brokers: int, replicas: int) -> None:
    """Waits until each broker name has a master and its slaves. Raises GantryError after ELECTION_TIMEOUT_S."""
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


def _check_ports(
    ports: ClusterPorts, brokers: int, replicas: int, *, proxy: bool, controller: bool, console: bool
) -> None:
    """Raises GantryError if a port is in use. Checks all ports before the first server starts."""
    names = {ports.name_server: "the NameServer"} | {
        ports.broker(number, replica): replica_name(number, replica)
        for number in range(brokers)
        for replica in range(replicas)
    }
    if controller:
        names[ports.controller] = "the controller"
    if proxy:
        names[ports.proxy] = "the proxy"
        names[ports.proxy_remoting] = "the proxy's remoting protocol"
    if console:
        names[ports.console] = "the console"
    names.pop(0, None)
    for number, name in names.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, number))
            except OSError as e:
                raise GantryError(
                    f"port {number} of {name} can't be used ({e.strerror}): choose other ports with '--port', or free "
                    f"ones with '--port 0'; if a cluster runs there, 'gantry topology -n {HOST}:{ports.name_server}' "
                    "shows it"
                ) from e


def _console(cluster: ProcessCluster, directory: Path, port: int) -> ConsoleThread:
    from gantrymq.console.server import ConsoleThread
    from gantrymq.console.settings import Settings

    settings = Settings(cluster.namesrv_addr, port=port, directory=directory / "console")
    return ConsoleThread(settings)
