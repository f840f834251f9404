"""`gantry up`: a cluster on this machine, in the foreground."""

from __future__ import annotations

import signal
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.errors import GantryError
from gantrymq.testing.processes import HOST, ProcessCluster, broker_name, broker_port
from gantrymq.testing.signals import Interrupted, interruptible

#: How often the processes are looked at.
WATCH_INTERVAL_S = 0.5


def run_cluster(brokers: int, directory: Path | None, port: int) -> int:
    """Runs until SIGINT (exit code 130), SIGTERM (0) or the end of a server (GantryError). No process is left."""
    try:
        with interruptible(), ExitStack() as stack:
            _check_ports(port, brokers)
            if directory is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gantry-")))
            cluster = ProcessCluster(directory.absolute(), brokers=brokers, port=port)
            stack.enter_context(cluster)
            for server in cluster.servers:
                print(f"{server.name}  {server.address}  pid {server.pid}  log {server.log_path}")
            print(f"ready: NameServer at {cluster.namesrv_addr}; Ctrl-C stops the cluster", flush=True)
            _watch(cluster)
    except Interrupted as e:
        return INTERRUPTED if e.signal_number == signal.SIGINT else 0


def _check_ports(port: int, brokers: int) -> None:
    """Raises GantryError when one is taken; the servers would say so of one after the other."""
    if not port:
        return
    names = {port: "the NameServer"} | {broker_port(port, number): broker_name(number) for number in range(brokers)}
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


def _watch(cluster: ProcessCluster) -> NoReturn:
    while True:
        for server in cluster.servers:
            if not server.is_running:
                raise GantryError(f"{server.name} (pid {server.pid}) has ended; its log is {server.log_path}")
        time.sleep(WATCH_INTERVAL_S)
