"""Tests of haStatus, resetMasterFlushOffset, and the doctor's findings about masters that do not wait for a slave."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from wait_until import wait_until

from gantrymq.cli.main import run
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def replicas() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(replicas=2) as cluster:
        yield cluster


def output(capsys: pytest.CaptureFixture[str], cluster: EmbeddedCluster, *arguments: str) -> str:
    capsys.readouterr()
    assert run([*arguments, "-n", cluster.name_server]) == 0
    return capsys.readouterr().out


def test_the_master_tells_of_its_slave(replicas: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    [master], [slave] = replicas.brokers, replicas.slaves

    def status() -> dict[str, object]:
        text = output(capsys, replicas, "admin", "haStatus", "-c", "DefaultCluster", "--json")
        statuses: dict[str, dict[str, object]] = json.loads(text)
        return statuses[master]

    wait_until(lambda: status()["inSyncSlaveNums"] == 1)
    text = output(capsys, replicas, "admin", "haStatus", "-b", master)
    assert f"MasterAddr {master}" in text
    assert "InSyncSlaveNum 1" in text
    assert re.search(r"\bOK\b", text)
    assert "resetMasterFlushOffset" not in text
    reset = output(capsys, replicas, "admin", "resetMasterFlushOffset", "-b", slave, "-o", "7")
    assert "reset master flush offset to 7 success" in reset
    assert "MasterFlushOffset 7" in output(capsys, replicas, "admin", "haStatus", "-b", slave)


def doctor(capsys: pytest.CaptureFixture[str], cluster: EmbeddedCluster) -> str:
    capsys.readouterr()
    run(["doctor", "-n", cluster.name_server])
    return capsys.readouterr().out


def test_doctor_has_nothing_to_say_of_one_that_waits(
    replicas: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "waits for no slave" not in doctor(capsys, replicas)


def test_doctor_warns_of_a_sync_master_that_waits_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedCluster(replicas=2, in_sync_replicas=1) as cluster:
        text = " ".join(doctor(capsys, cluster).split())
    assert "is a SYNC_MASTER that waits for no slave" in text
    assert "inSyncReplicas=2" in text


def test_topology_shows_roles_and_how_far_a_slave_is_behind(
    replicas: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows() -> list[dict[str, object]]:
        brokers: list[dict[str, object]] = json.loads(output(capsys, replicas, "topology", "--once", "--json"))
        return brokers

    wait_until(lambda: [row["lagBytes"] for row in rows()] == [None, 0])
    text = output(capsys, replicas, "topology", "--once")
    assert "Behind" in text
    assert re.search(r"\bmaster\b", text)
    assert "slave 1" in text
