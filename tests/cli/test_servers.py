"""Tests of `gantry namesrv` and `gantry broker` as processes."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def server(command: str, config: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", command, "-c", str(config), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert " ready at " in line, (line, process.communicate()[1])
    host, port = line.strip().rpartition(" ")[2].split(":")
    return host, int(port)


@pytest.fixture
def namesrv_config(tmp_path: Path) -> Path:
    config = tmp_path / "namesrv.properties"
    config.write_text(
        f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kv.json\nconfigStorePath={tmp_path}/stored\n"
    )
    return config


@pytest.fixture
def broker_config(tmp_path: Path) -> Path:
    config = tmp_path / "broker.properties"
    config.write_text(
        "listenPort=0\nbrokerName=broker-x\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        f"storePathRootDir={tmp_path}/store\nmappedFileSizeCommitLog=1048576\n"
    )
    return config


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
@pytest.mark.parametrize("command", ["namesrv", "broker"])
def test_a_signal_stops_a_server(
    command: str, number: signal.Signals, code: int, request: pytest.FixtureRequest
) -> None:
    with server(command, request.getfixturevalue(f"{command}_config")) as process:
        address = address_of(process)
        socket.create_connection(address, 5).close()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code
        assert "Traceback" not in err
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 5)


@pytest.mark.parametrize("command", ["namesrv", "broker"])
def test_a_server_takes_as_many_descriptors_as_it_may_have(command: str, request: pytest.FixtureRequest) -> None:
    with server(command, request.getfixturevalue(f"{command}_config")) as process:
        address_of(process)
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard or soft >= 65_536


def test_closing_standard_input_stops_a_server_that_was_asked_to(namesrv_config: Path) -> None:
    with server("namesrv", namesrv_config, "--stop-on-eof") as process:
        address_of(process)
        process.communicate("not yet the end\n", timeout=60)
        assert process.returncode == 0


def test_a_taken_port_is_1_with_a_message(namesrv_config: Path) -> None:
    with server("namesrv", namesrv_config) as first:
        _, port = address_of(first)
        namesrv_config.write_text(namesrv_config.read_text().replace("listenPort=0", f"listenPort={port}"))
        with server("namesrv", namesrv_config) as second:
            out, err = second.communicate(timeout=60)
            assert second.returncode == 1
            assert out == ""
            assert f"gantry: can't listen on 127.0.0.1:{port}" in err
            assert "Traceback" not in err


def test_two_brokers_do_not_share_a_store(broker_config: Path) -> None:
    with server("broker", broker_config) as first:
        address_of(first)
        with server("broker", broker_config) as second:
            _, err = second.communicate(timeout=60)
            assert second.returncode == 1
            assert err.splitlines()[-1].startswith("gantry: ")


def test_a_store_that_is_not_supported_is_refused(broker_config: Path) -> None:
    broker_config.write_text(broker_config.read_text() + "storeType=defaultRocksDB\n")
    with server("broker", broker_config) as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "gantry: storeType=defaultRocksDB: stores in RocksDB are not supported: use the default store" in err
        assert "Traceback" not in err


def test_keys_that_are_not_used_are_named(namesrv_config: Path) -> None:
    namesrv_config.write_text(namesrv_config.read_text() + "listenPrt=1\n")
    with server("namesrv", namesrv_config) as process:
        address_of(process)
        process.terminate()
        assert "not used here: listenPrt" in process.communicate(timeout=60)[1]
