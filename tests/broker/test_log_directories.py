"""A broker whose commit log is in several directories: what it reports, and what an administrator can change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from broker_support import Peer, config
from ports import free_port
from test_broker_metrics import NODE, scrape

from gantrymq.broker.broker import Broker
from gantrymq.client.doctor.disk_checks import check_log_directories
from gantrymq.client.doctor.finding import Severity
from gantrymq.client.doctor.observation import BrokerSeen, Observation
from gantrymq.protocol.bodies.route import KVTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.remoting.client import RemotingClient


async def test_the_state_of_each_directory(tmp_path: Path, remoting: RemotingClient) -> None:
    """Runtime info, metrics and `gantry doctor` report it. No send fails."""
    a, b, c = log = [tmp_path / name for name in "abc"]
    settings = config(tmp_path / "store", metrics_port=free_port())
    store = replace(
        settings.store,
        store_path_commit_log=log,
        mapped_file_size_commit_log=64 * 1024,
        # Otherwise the directories are "full" on a machine whose disk is 85 % full.
        disk_space_clean_forcibly_ratio=100,
    )
    broker = Broker(replace(settings, store=store))
    await broker.start()
    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        change = f"readOnlyCommitLogStorePaths={c}\n".encode()
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=change)).code == ResponseCode.SUCCESS
        # A real failure: no file can be created in `b`, because it is not a directory.
        b.rmdir()
        b.touch()
        for _ in range(30):
            assert (await peer.send("orders", bytes(20_000))).code == ResponseCode.SUCCESS
        assert len(list(a.iterdir())) > 5

        metrics = await scrape(broker)
        for state, count in {"writable": 1, "read-only": 1, "failed": 1, "full": 0}.items():
            labels = frozenset((NODE | {"state": state}).items())
            assert metrics.samples["gantry_commit_log_directories", labels] == count
        for path in log:
            labels = frozenset((NODE | {"files": f"commitLog_{path}"}).items())
            assert 0 <= metrics.samples["gantry_disk_used_ratio", labels] < 1

        info = decode_json((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KVTable).table
        assert {f"commitLogDiskRatio_{path}" for path in log} <= info.keys()
        assert info[f"commitLogDirState_{a}"] == "writable"
        assert info[f"commitLogDirState_{c}"] == "read-only"
        error = info[f"commitLogDirState_{b}"]
        assert error.startswith(f"failed: can't open {b}/")
        assert error.endswith("Not a directory; this directory has no log file")

        full = info | {f"commitLogDirState_{c}": "full"}
        seen = Observation(None, [], [BrokerSeen("DefaultCluster", "broker-a", 0, "10.0.0.1:10911", runtime=full)])
        problem, warning = check_log_directories(seen)
        assert (problem.severity, warning.severity) == (Severity.PROBLEM, Severity.WARNING)
        assert f"the log directory {b} failed: can't open" in problem.what
        assert warning.what.endswith(f"the log directory {c} is full")
    finally:
        await broker.stop()
