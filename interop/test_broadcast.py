"""Apache's broadcasting consumers: each receives every message once, even a failed one, and continues at its offset."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import ONE_KIND, Cluster
from programs import PROGRAM_TIMEOUT_S, Sent, command_line, produce, sample

pytestmark = pytest.mark.interop(feature="broadcasting", clients="java", servers="{cluster}")

TIMEOUT_S = 60

Broadcast = Callable[[str, str, int, str], dict[str, list[Sent]]]


@pytest.fixture
def broadcast(tmp_path: Path) -> Broadcast:
    """Returns a function that runs both consumers.

    It returns the received messages as soon as each consumer has `count` messages. Their offsets stay in `tmp_path`.
    """

    def run(namesrv: str, topic: str, count: int, refused: str) -> dict[str, list[Sent]]:
        command = command_line(
            "org.gantrymq.interop.Broadcast",
            *(namesrv, f"{topic}_group", topic, str(count), str(TIMEOUT_S), refused),
            home=tmp_path,
            options=["-XX:TieredStopAtLevel=1", "-Xmx256m", f"-Drocketmq.client.localOffsetStoreDir={tmp_path}"],
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S)
        received: dict[str, list[Sent]] = {"first": [], "second": []}
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                message = json.loads(line)
                received[message["consumer"]].append(Sent.of(message))
        assert done.returncode == 0, f"{received}: {done.stderr[-4000:]}"
        return received

    return run


@ONE_KIND
def test_each_consumer_gets_every_message(cluster: Cluster, topic: str, broadcast: Broadcast) -> None:
    sent = [*sample(20), Sent(b"refused")]
    produce(cluster.address, topic, [message.line() for message in sent])

    received = broadcast(cluster.address, topic, len(sent), "refused")

    assert sorted(received["first"]) == sorted(received["second"]) == sorted(sent)

    later = sample(10, first=20)
    produce(cluster.address, topic, [message.line() for message in later])

    received = broadcast(cluster.address, topic, len(later), "refused")

    assert sorted(received["first"]) == sorted(received["second"]) == sorted(later)
