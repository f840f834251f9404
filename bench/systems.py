"""Apache's servers and this project's as processes that are measured from outside."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from servers import Server, call, gantry_broker, gantry_namesrv, java_broker, java_namesrv

from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: 1 GiB, the default of both systems. The tests use smaller files.
_STORE_CONFIG = {"mappedFileSizeCommitLog": 1 << 30}
#: The garbage collector is that of Apache's runbroker.sh. Its heap of 8 GiB would be too large for a small machine.
_JAVA_BROKER_OPTIONS = ["-Xms1g", "-Xmx4g", "-XX:+UseG1GC"]

#: A broker is idle if it uses less than this share of a processor during the window.
_SETTLED_SHARE = 0.2
_SETTLE_WINDOW_S = 0.5
_SETTLE_TIMEOUT_S = 120.0
#: Java's broker takes long to create ten thousand topics. In seconds.
_TOPICS_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class System:
    """One of the compared systems."""

    name: str
    start_namesrv: Callable[[Path], Server]
    start_broker: Callable[[Path, str, dict[str, object]], Server]
    #: Number of brokers that `start_broker` starts, each in its own process.
    processes: int = 1


JAVA = System(
    "Java",
    java_namesrv,
    lambda directory, namesrv, config: java_broker(
        directory, namesrv, options=_JAVA_BROKER_OPTIONS, **_STORE_CONFIG, **config
    ),
)


def gantry(name: str = "GantryMQ", python: str = sys.executable, processes: int = 1) -> System:
    """Returns this project as a system; `python` is the interpreter that has it."""
    return System(
        name,
        lambda directory: gantry_namesrv(directory, python=python),
        lambda directory, namesrv, config: gantry_broker(
            directory, namesrv, python=python, processes=processes, **_STORE_CONFIG, **config
        ),
        processes,
    )


GANTRY = gantry()


@dataclass(frozen=True)
class Cluster:
    """A NameServer and a broker of one system, or several brokers with a common parent process."""

    system: System
    namesrv: Server
    broker: Server

    def make_topics(self, names: Sequence[str], queues: int) -> None:
        """Creates the topics by one request to each broker, and waits for the route of the last one.

        Raises RuntimeError.
        """
        topics = [TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues) for name in names]
        body = encode_json({"topicConfigList": topics})
        addresses = self.broker.addresses(self.system.processes)
        for address in addresses:
            response = call(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body, timeout_s=_TOPICS_TIMEOUT_S)
            if response.code:
                raise RuntimeError(f"{self.system.name} doesn't make the topics: {response.remark}")
        deadline = time.monotonic() + _TOPICS_TIMEOUT_S
        while not self._has_route(names[-1], addresses):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.system.name}: no route of {names[-1]} after {_TOPICS_TIMEOUT_S} s")
            time.sleep(0.1)

    def _has_route(self, topic: str, addresses: Sequence[str]) -> bool:
        route = call(self.namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return all(address.encode() in route.body for address in addresses)

    def cpu_seconds(self) -> float:
        """Returns user and system time of the broker with all its threads, or of all brokers."""
        return cpu_seconds(self.broker.process.pid)

    def settled_cpu_seconds(self) -> float:
        """Returns the CPU time after the broker has finished deferred work. Raises RuntimeError after a timeout."""
        return settled_cpu_seconds(self.broker.process.pid, self.system.name)


@contextmanager
def cluster(system: System, directory: Path, **config: object) -> Iterator[Cluster]:
    """Starts a cluster, and kills it at the end. Several brokers are stopped, by their parent process.

    `config` has additional configuration keys of the broker.
    """
    with ExitStack() as stack:
        namesrv = system.start_namesrv(directory / f"{system.name}-namesrv")
        stack.callback(namesrv.kill)
        broker = system.start_broker(directory / f"{system.name}-broker", namesrv.address, config)
        stack.callback(broker.kill if system.processes == 1 else broker.stop)
        yield Cluster(system, namesrv, broker)


def cpu_seconds(pid: int) -> float:
    """Returns user and system time of a process with all its threads and its running child processes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    children = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    return own + sum(cpu_seconds(int(child)) for child in children.split())


def settled_cpu_seconds(pid: int, name: str) -> float:
    """Returns a broker's CPU time after it has finished deferred work.

    Raises RuntimeError with the `name` of its system.
    """
    deadline = time.monotonic() + _SETTLE_TIMEOUT_S
    before = cpu_seconds(pid)
    while time.monotonic() < deadline:
        time.sleep(_SETTLE_WINDOW_S)
        now = cpu_seconds(pid)
        if now - before < _SETTLED_SHARE * _SETTLE_WINDOW_S:
            return now
        before = now
    raise RuntimeError(f"{name}'s broker is still busy {_SETTLE_TIMEOUT_S} s after the load")


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has ended")
