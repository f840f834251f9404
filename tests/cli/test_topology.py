"""Tests of `gantry topology` against real clusters: once, repeatedly, and on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import CLUSTER, name_server, register
from constants import change_constant
from ports import free_port

from gantrymq import Message, Producer
from gantrymq.cli.main import run
from gantrymq.client import topology as topology_module
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.topology import Topology
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.remoting.client import RemotingClient
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


async def test_what_is_seen(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AdminClient(cluster.name_server) as admin:
        topology = Topology(admin)
        brokers = await topology.look()
        assert [(b.cluster, b.broker_name, b.role, b.address, b.topics, b.queues, b.error) for b in brokers] == [
            (CLUSTER, name, "master", address, 0, 0, None)
            for name, address in zip(("broker-a", "broker-b"), cluster.brokers, strict=True)
        ]
        assert all(broker.version and broker.version.startswith("V5_") for broker in brokers)

        await admin.create_topic(TopicConfig("seen", 3, 5), cluster=CLUSTER)
        # The topics were requested a moment ago, and not every look requests them again.
        assert [broker.topics for broker in await topology.look()] == [0, 0]
        change_constant(monkeypatch, "topology.TOPICS_INTERVAL_S", 0.0)
        assert [(broker.topics, broker.queues) for broker in await topology.look()] == [(1, 5), (1, 5)]


async def test_rates(cluster: EmbeddedCluster) -> None:
    async with (
        Producer(cluster.name_server, "rates") as producer,
        AdminClient(cluster.name_server) as admin,
    ):
        topology = Topology(admin)
        deadline = time.monotonic() + 30
        while not sum(broker.in_tps or 0 for broker in await topology.look()):
            assert time.monotonic() < deadline
            await producer.send(Message("rated", b"x"))


async def test_a_broker_that_does_not_answer_is_named(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    async with name_server(tmp_path) as server, AdminClient(server.address) as admin:
        client = RemotingClient()
        await register(client, server, "broker-a", cluster.brokers[0])
        await register(client, server, "broker-a", f"127.0.0.1:{free_port()}", broker_id=1)
        master, slave = await Topology(admin).look()
        assert (master.role, master.error, master.topics is None) == ("master", None, False)
        assert (slave.role, slave.topics, slave.in_tps) == ("slave 1", None, None)
        assert slave.error is not None
        assert slave.error.startswith(f"can't connect to {slave.address}")
        assert await asyncio.to_thread(run, ["topology", "-n", server.address, "--once"]) == 0
        await client.close()


@pytest.mark.parametrize(
    ("rates", "latest"), [("1.5 2.5 3.5", 1.5), ("7", 7.0), ("", None), (None, None), ("NaN 1 1", None), ("x", None)]
)
def test_rates_as_brokers_tell_them(rates: str | None, latest: float | None) -> None:
    assert topology_module._latest(rates) == latest


def test_once(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "-n", cluster.name_server, "--once"]) == 0
    out = capsys.readouterr().out
    for text in ("Cluster", "Address", "broker-a", "broker-b", *cluster.brokers, CLUSTER, "masters 2   slaves 0"):
        assert text in out
    assert "…" not in out


def test_json(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "-n", cluster.name_server, "--once", "--json"]) == 0
    brokers = json.loads(capsys.readouterr().out)
    assert [broker["brokerName"] for broker in brokers] == ["broker-a", "broker-b"]
    assert brokers[0].keys() == {
        "cluster", "brokerName", "brokerId", "address", "version", "topics", "queues", "inTps", "outTps",
            "logEnd", "lagBytes", "lagSeconds", "refusal", "epoch", "inSync", "controllers", "error"
    }  # fmt: skip


def test_no_name_server_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("gantry: can't connect to 127.0.0.1:1")


def test_a_line_of_json_each_second_until_ctrl_c(cluster: EmbeddedCluster) -> None:
    command = [sys.executable, "-m", "gantrymq.cli", "topology", "-n", cluster.name_server, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert len(json.loads(process.stdout.readline())) == 2
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, "")


def test_a_live_table_on_a_terminal(cluster: EmbeddedCluster) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "gantrymq.cli", "topology", "-n", cluster.name_server]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    try:
        drawn = b""
        deadline = time.monotonic() + 20
        while len(set(re.findall(rb"\d\d:\d\d:\d\d", drawn))) < 2:
            assert select.select([leader], [], [], max(0.0, deadline - time.monotonic()))[0], drawn
            drawn += os.read(leader, 65536)
        assert b"broker-b" in drawn
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        while select.select([leader], [], [], 0)[0]:
            try:
                drawn += os.read(leader, 65536)
            except OSError:
                break
        # The cursor is visible again, and there is no traceback.
        assert drawn.rfind(b"\x1b[?25h") > drawn.rfind(b"\x1b[?25l")
        assert b"Traceback" not in drawn
    finally:
        process.kill()
        process.wait()
        os.close(leader)
