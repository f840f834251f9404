"""`gantry up`: a cluster on this machine, in the foreground."""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from gantrymq.cli.exit_codes import INTERRUPTED
from gantrymq.errors import GantryError
from gantrymq.testing.processes import ProcessCluster
from gantrymq.testing.signals import Interrupted, interruptible

#: How often the processes are looked at.
WATCH_INTERVAL_S = 0.5


def run_cluster(brokers: int, directory: Path | None, port: int) -> int:
    """Runs until SIGINT (exit code 130), SIGTERM (0) or the end of a server (GantryError). No process is left."""
    try:
        with interruptible(), ExitStack() as stack:
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


def _watch(cluster: ProcessCluster) -> NoReturn:
    while True:
        for server in cluster.servers:
            if not server.is_running:
                raise GantryError(f"{server.name} (pid {server.pid}) has ended; its log is {server.log_path}")
        time.sleep(WATCH_INTERVAL_S)
