"""Our brokers in controller mode with both controllers, alone and together with Java's brokers of the same name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from controllers import CONTROLLERS, NAME, in_sync, replicated_broker, sync_state
from programs import Sent, consume, produce, sample
from servers import HERE, Server, gantry_broker, gantry_namesrv

sys.path.append(str(HERE.parent / "tests"))
from wait_until import wait_until

pytestmark = pytest.mark.interop(feature="controller", clients="java", servers="{replicas} {first} {second}")

#: Longest failover in seconds with Java's default times: heartbeat timeout 10 s, its check each 5 s, requests of
#: brokers each 5 s.
FAILOVER_S = 60.0

Start = Callable[[Path, str, str], Server]


def our_broker(directory: Path, namesrv: str, controller: str) -> Server:
    """Starts our broker in controller mode, and waits for its registration.

    It acknowledges messages that all in-sync brokers have.
    """
    return gantry_broker(
        directory,
        namesrv,
        brokerName=NAME,
        brokerId=-1,
        brokerRole="SLAVE",
        enableControllerMode="true",
        controllerAddr=controller,
        allAckInSyncStateSet="true",
        # Java's slaves request topics at this port.
        fastListenEnable="true",
    )


KINDS: dict[str, Start] = {"java": replicated_broker, "gantry": our_broker}


class Replicas:
    """A NameServer, a controller, and brokers of one name by their directories."""

    def __init__(self, directory: Path, controller: str, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.namesrv = gantry_namesrv(directory / "namesrv")
        stack.callback(self.namesrv.kill)
        self.controller = CONTROLLERS[controller](directory / "controller")
        stack.callback(self.controller.kill)
        self.brokers: dict[str, Server] = {}

    def start(self, name: str, kind: str) -> None:
        """Starts a broker in the directory `name`, possibly with existing files."""
        broker = KINDS[kind](self._directory / name, self.namesrv.address, self.controller.address)
        self._stack.callback(broker.kill)
        self.brokers[name] = broker

    def kill(self, name: str) -> None:
        self.brokers.pop(name).kill()

    def wait_in_sync(self) -> None:
        """Waits until all running brokers are in sync."""

        def same() -> bool:
            addresses = {broker.address for broker in self.brokers.values()}
            return set(in_sync(self.controller.address).values()) == addresses

        wait_until(same, FAILOVER_S)

    def master(self) -> str:
        """Waits until the master runs. Returns its directory."""

        def found() -> str | None:
            state = sync_state(self.controller.address)
            names = [n for n, b in self.brokers.items() if state is not None and b.address == state.master_address]
            return names[0] if names else None

        return wait_until(found, FAILOVER_S)


@pytest.fixture
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(tmp_path, request.param, stack)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("replicas", "first", "second"),
    [
        ("java", "gantry", "gantry"),
        ("gantry", "java", "gantry"),
        ("gantry", "gantry", "java"),
        ("java", "java", "gantry"),
        ("java", "gantry", "java"),
    ],
    indirect=["replicas"],
    ids=["java_controller-ours", "java_then_ours", "ours_then_java", "all_java_then_ours", "java_controller-then_java"],
)
def test_a_killed_master_is_replaced_and_comes_back(replicas: Replicas, first: str, second: str, topic: str) -> None:
    replicas.start("a", first)
    replicas.wait_in_sync()
    replicas.start("b", second)
    replicas.wait_in_sync()
    assert replicas.master() == "a"
    sent = sample(30)
    produce(replicas.namesrv.address, topic, [message.line() for message in sent[:10]])

    replicas.kill("a")
    assert replicas.master() == "b"
    produce(replicas.namesrv.address, topic, [message.line() for message in sent[10:20]])

    replicas.start("a", first)
    replicas.wait_in_sync()
    assert replicas.master() == "b"
    replicas.kill("b")
    assert replicas.master() == "a"
    produce(replicas.namesrv.address, topic, [message.line() for message in sent[20:]])
    assert sorted(map(Sent.of, consume(replicas.namesrv.address, topic, 30))) == sorted(sent)
