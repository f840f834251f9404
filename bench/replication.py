"""Sends to a master with 0, 1 and 2 slaves, with and without waiting for them, for each system in turn."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

# `systems` comes first: it puts interop on the import path.
import systems
from loads import run_load
from measures import Figures, Measure, alternate
from servers import Server, call
from systems import Cluster, System

from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.codes import RequestCode

#: Number of slaves, and whether a send waits for all of them.
SETUPS = [(0, False), (1, False), (1, True), (2, False), (2, True)]
_TOPIC = "replicated"
_SYNC_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Replicated(Cluster):
    """A cluster whose broker has slaves."""

    slaves: tuple[Server, ...]

    def wait_until_in_sync(self) -> None:
        """Waits until all slaves are in sync. Raises RuntimeError after a timeout."""
        deadline = time.monotonic() + _SYNC_TIMEOUT_S
        while True:
            status = HaStatus.decode(call(self.broker.address, RequestCode.GET_BROKER_HA_STATUS).body)
            if status.in_sync_slave_nums == len(self.slaves):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.system.name}: {status.in_sync_slave_nums} of {len(self.slaves)} slaves")
            time.sleep(0.1)

    def slaves_cpu_seconds(self) -> float:
        """Returns the CPU time of all slaves after they have finished deferred work."""
        return sum(systems.settled_cpu_seconds(slave.process.pid, self.system.name) for slave in self.slaves)


@contextmanager
def replicated(system: System, directory: Path, slave_count: int, *, waits: bool) -> Iterator[Replicated]:
    """Starts a cluster with slaves, and kills it at the end."""
    config: dict[str, object] = {"slaveReadEnable": "true"}
    if waits:
        config |= {"brokerRole": "SYNC_MASTER", "inSyncReplicas": slave_count + 1}
    with ExitStack() as stack:
        master = stack.enter_context(systems.cluster(system, directory, **config))
        slaves = []
        for number in range(1, slave_count + 1):
            keys: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": number, "slaveReadEnable": "true"}
            slave = system.start_broker(directory / f"{system.name}-slave-{number}", master.namesrv.address, keys)
            stack.callback(slave.kill)
            slaves.append(slave)
        cluster = Replicated(system, master.namesrv, master.broker, tuple(slaves))
        cluster.wait_until_in_sync()
        yield cluster


def measure_replication(compared: Sequence[System], args: argparse.Namespace) -> list[Measure]:
    """Measures rate, p99 and CPU time of each setup. For each setup, the clusters of both systems run side by side."""
    measures = []
    for slave_count, waits in SETUPS:
        name = f"{args.sizes[0]} B sends, {slave_count} slave{'s' * (slave_count != 1)}"
        if slave_count:
            name += ", sync" if waits else ", async"
        with tempfile.TemporaryDirectory(dir=args.directory) as directory, ExitStack() as stack:
            clusters = [
                stack.enter_context(replicated(system, Path(directory), slave_count, waits=waits))
                for system in compared
            ]
            for cluster in clusters:
                cluster.make_topics([f"{_TOPIC}0"], args.queues)
            measures += alternate(clusters, args, name, lambda cluster, _: _send(cluster, args))
    return measures


def _send(cluster: Cluster, args: argparse.Namespace) -> Figures:
    assert isinstance(cluster, Replicated)
    before_s = cluster.slaves_cpu_seconds()
    options = [_TOPIC, *map(str, (1, args.threads, args.sizes[0], 1, args.warm_up, args.count))]
    ran = run_load("LoadTopics", cluster, options, args.serialize, "DONE")
    seconds, p99_ms = map(float, ran.line.split()[1:])
    figures: dict[tuple[str, str], float] = {
        ("master CPU", "µs/message"): ran.cpu_s / args.count * 1e6,
        ("rate", "/s"): args.count / seconds,
        ("p99", "ms"): p99_ms,
    }
    if cluster.slaves:
        # The slaves also copied the messages of the warm-up.
        spent_s = cluster.slaves_cpu_seconds() - before_s
        each_s = spent_s / len(cluster.slaves) / (args.count + args.warm_up)
        figures["CPU of a slave", "µs/message"] = each_s * 1e6
    return figures
