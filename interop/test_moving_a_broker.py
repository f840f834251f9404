"""Moves a broker name from Apache's broker to this project's and back with all messages, as the docs describe."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Sent, consume, mqadmin, produce, sample
from servers import Server, call, gantry_broker, gantry_namesrv, java_broker

from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.codes import RequestCode

pytestmark = pytest.mark.interop(feature="store files", clients="java", servers="java gantry")

#: A Java slave requests the tables after ten seconds, and again a minute later.
TABLES_S = 90.0
READERS = "interop_moved_readers"


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Name:
    """The broker name. Its master is replaced by its own slave."""

    def __init__(self, directory: Path, namesrv: Server, topic: str) -> None:
        self._directory = directory
        self._namesrv = namesrv
        self._topic = topic
        self._stores = 0
        self._master: Server | None = None
        self.everything: list[Sent] = []

    def start(self, start_broker: Callable[..., Server], store: Path, **keys: object) -> Server:
        self._stores += 1
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        # A Java slave requests topics at the master's VIP port.
        return start_broker(
            self._directory / f"broker{self._stores}",
            self._namesrv.address,
            **paths,
            **keys,
            fastListenEnable="true",
            autoCreateTopicEnable="false",
        )

    def begin(self, start_broker: Callable[..., Server]) -> None:
        self._master = self.start(start_broker, self._directory / "first")
        mqadmin(self._namesrv.address, "updateTopic", "-c", "DefaultCluster", "-t", self._topic, "-r", "3", "-w", "3")

    def moves_to(self, start_broker: Callable[..., Server], store: Path) -> None:
        master = self._master
        assert master is not None
        slave = self.start(start_broker, store, brokerRole="SLAVE", brokerId=1)
        try:
            wait_for(lambda: _has_all(master))
            wait_for(lambda: self._offsets(slave) == self._offsets(master), TABLES_S)
            self.end()
        finally:
            slave.stop()
        self._master = self.start(start_broker, store)

    def end(self) -> None:
        if self._master is not None:
            self._master.stop()
            self._master = None

    def use(self, first: int) -> None:
        """Checks that the broker accepts messages and that groups receive them.

        An existing group continues at its offset, and a new group gets everything.
        """
        new = sample(20, first=first)
        results = produce(self._namesrv.address, self._topic, [message.line() for message in new])
        assert {result["status"] for result in results} == {"SEND_OK"}
        self.everything += new
        went_on = consume(self._namesrv.address, self._topic, len(new), group=READERS)
        assert sorted(map(Sent.of, went_on)) == sorted(new)
        received = consume(self._namesrv.address, self._topic, len(self.everything), group=f"interop_moved_{first}")
        assert sorted(map(Sent.of, received)) == sorted(self.everything)

    def _offsets(self, broker: Server) -> list[str | None]:
        """Returns the group's offsets."""
        asked = [{"consumerGroup": READERS, "topic": self._topic, "queueId": str(queue)} for queue in range(3)]
        answers = [call(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, fields) for fields in asked]
        return [answer.ext_fields.get("offset") for answer in answers]


def _has_all(master: Server) -> bool:
    """Returns true if the slave has the whole log."""
    connections = HaStatus.decode(call(master.address, RequestCode.GET_BROKER_HA_STATUS).body).connections
    return [each.diff for each in connections] == [0]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_from_java_and_back(tmp_path: Path, topic: str) -> None:
    namesrv = gantry_namesrv(tmp_path / "namesrv")
    name = Name(tmp_path, namesrv, topic)
    try:
        name.begin(java_broker)
        name.use(0)
        name.moves_to(gantry_broker, tmp_path / "second")
        name.use(1000)
        name.moves_to(java_broker, tmp_path / "third")
        name.use(2000)
    finally:
        name.end()
        namesrv.kill()
