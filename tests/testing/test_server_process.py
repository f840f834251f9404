"""Tests restarts and the end of one server process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gantrymq.client.admin.client import AdminClient
from gantrymq.testing.processes import ProcessCluster

START_S = 60.0


async def test_a_restart_keeps_changes_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "broker-a.properties"
    with ProcessCluster(tmp_path) as cluster:
        [broker] = cluster.brokers
        address = broker.address
        async with AdminClient(cluster.namesrv_addr) as admin:
            await admin.update_broker_config([address], {"brokerPermission": "4"})
        path.write_text("# my comment\n" + path.read_text())
        broker.stop()
        broker.restart()
        broker.wait_until_ready(time.monotonic() + START_S)
        assert broker.address == address
        async with AdminClient(cluster.namesrv_addr) as admin:
            assert (await admin.broker_config(address))["brokerPermission"] == "4"
    lines = path.read_text().splitlines()
    assert lines[0] == "# my comment"
    assert "brokerPermission=4" in lines
    assert [line for line in lines if line.startswith("listenPort")] == [f"listenPort={address.rpartition(':')[2]}"]


def test_the_end_of_a_server_whose_log_was_deleted(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, brokers=0) as cluster:
        assert cluster.name_server is not None
        cluster.name_server.log_path.unlink()
        os.kill(cluster.name_server.pid, signal.SIGKILL)
        cluster.name_server.stop()
        assert cluster.name_server.ending().endswith("was ended by signal 9 (Killed); last log line: (no log)")
