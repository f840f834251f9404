"""`gantry broker --processes`: several brokers of one configuration."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from wait_until import until

from gantrymq.cli.broker_processes import BrokerProcesses, merged
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.config import load_properties
from gantrymq.errors import ConfigError, GantryError
from gantrymq.protocol.message import Message
from gantrymq.testing.processes import ProcessCluster


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=0) as cluster:
        yield cluster.namesrv_addr


@pytest.fixture
def config(name_server: str, tmp_path: Path) -> Path:
    keys = {
        "brokerName": "shop",
        "namesrvAddr": name_server.replace(":", "\\:"),
        "listenPort": str(free_port(2)),
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "metricsPort": str(free_port()),
        "storePathRootDir": str(tmp_path / "store"),
        "storePathCommitLog": f"{tmp_path}/disk1,{tmp_path}/disk2",
        "readOnlyCommitLogStorePaths": f"{tmp_path}/old",
        "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    }
    file = tmp_path / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return file


async def test_they_are_a_cluster(config: Path, name_server: str, tmp_path: Path) -> None:
    processes = BrokerProcesses(lambda: load_properties(config), 2)
    await processes.start()
    try:
        async with AdminClient(name_server) as admin, Producer(name_server, "producers") as producer:
            info = await admin.cluster_info()
            assert sorted(info.broker_addr_table) == ["shop-0", "shop-1"]
            assert await admin.ensure_topic("orders", queues=1)
            names = {(await producer.send(Message("orders", b"x"))).queue.broker_name for _ in range(4)}
            assert names == {"shop-0", "shop-1"}
            address = info.broker_addr_table["shop-0"].master_address
            assert address is not None
            await admin.update_broker_config([address], {"maxMessageSize": "1000000"})
            metrics = await asyncio.to_thread(page, load_properties(config)["metricsPort"])
            for name in names:
                assert (
                    f'rocketmq_messages_in_total{{node_type="broker",cluster="DefaultCluster",node_id="{name}"'
                    in metrics
                )
            samples = [line.rpartition(" ")[0] for line in metrics.splitlines() if not line.startswith("#")]
            assert len(set(samples)) == len(samples)
            before = dict(processes.pids)
            os.kill(before[0], signal.SIGKILL)
            await until(lambda: processes.pids.get(0) not in (None, before[0]))

            async def has_new_value() -> bool:
                try:
                    return (await admin.broker_config(address))["maxMessageSize"] == "1000000"
                except GantryError:
                    return False

            await until(has_new_value, 30)
            assert "maxMessageSize" not in await asyncio.to_thread(config.read_text)
            other = info.broker_addr_table["shop-1"].master_address
            assert other is not None
            config_of_other = await admin.broker_config(other)
            assert config_of_other["maxMessageSize"] != "1000000"
            assert config_of_other["readOnlyCommitLogStorePaths"] == f"{tmp_path}/old/1"
            assert processes.pids[1] == before[1]
    finally:
        await processes.stop()
    assert not processes.pids
    for directory in ("store", "disk1", "disk2"):
        assert sorted(path.name for path in (tmp_path / directory).iterdir()) == ["0", "1"]


def page(port: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        return str(response.read().decode())


def test_one_signal_stops_them(config: Path) -> None:
    command = [sys.executable, "-m", "gantrymq.cli", "broker", "-c", str(config), "--processes", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(load_properties(config)["listenPort"])
        assert process.stdout.readline() == f"broker shop ready at 127.0.0.1:{port}, 127.0.0.1:{port + 10}\n"
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("more", "count", "problem"),
    [
        ({"proxyMode": "local"}, 2, "start 'gantry proxy' by itself"),
        ({"haMasterAddress": "127.0.0.1:1"}, 2, "each slave needs the address of its own master"),
        ({"listenPort": "0"}, 2, "--processes needs a listenPort"),
        ({}, 0, "--processes 0: at least 1"),
    ],
)
async def test_what_brokers_cannot_share_is_refused(
    config: Path, more: dict[str, str], count: int, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        BrokerProcesses(lambda: load_properties(config) | more, count)


async def test_javas_keys_of_the_metrics(config: Path) -> None:
    keys = load_properties(config)
    port = keys.pop("metricsPort")
    keys |= {"metricsExporterType": "PROM", "metricsPromExporterPort": port, "metricsPromExporterHost": "127.0.0.1"}
    # Only the page is restricted to this machine.
    keys["bindAddress"] = "0.0.0.0"
    processes = BrokerProcesses(lambda: keys, 2)
    await processes.start()
    try:
        metrics = await asyncio.to_thread(page, port)
        with socket.socket() as own:
            # Fails if the page of the process listens on all addresses.
            own.bind(("127.0.0.2", int(port) + 1))
    finally:
        await processes.stop()
    assert all(f'node_id="shop-{n}"' in metrics for n in range(2))


async def test_one_that_cannot_start(config: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "1").write_text("no directory")
    processes = BrokerProcesses(lambda: load_properties(config), 2)
    with pytest.raises(
        GantryError,
        match=r"process 1 of the broker can't start: .*(directory|exists)",
    ):
        await processes.start()
    assert not processes.pids


def test_pages_are_merged() -> None:
    first = '# HELP a Text.\n# TYPE a gauge\na{node="0"} 1\n# HELP b B.\n# TYPE b counter\nb 2\n'
    second = '# HELP b B.\n# TYPE b counter\nb{x="1"} 3\n# HELP a Another text.\n# TYPE a gauge\na{node="1"} 4\n'
    assert merged([first, second]).decode() == (
        '# HELP a Text.\n# TYPE a gauge\na{node="0"} 1\na{node="1"} 4\n# HELP b B.\n# TYPE b counter\nb 2\nb{x="1"} 3\n'
    )


def test_a_label_of_a_page_can_have_other_line_separators() -> None:
    page = '# HELP a Text.\n# TYPE a gauge\na{group="x\u2028# y\x85"} 1\n'
    assert merged([page]).decode() == page
