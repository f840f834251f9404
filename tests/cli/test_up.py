"""`gantry up`: starts, stops, leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import wait_until

from gantrymq.cli.main import run

#: More than the 30 s after which a server that doesn't stop is killed.
STOP_S = 60.0


def start(*options: str) -> tuple[subprocess.Popen[str], list[str]]:
    """The process, and what it printed up to its ready line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "up", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith("ready:"):
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"no ready line: {lines}, {process.communicate()[1]}")
        lines.append(line)
    return process, lines


def server_pids(lines: list[str]) -> list[int]:
    return [int(match[1]) for line in lines if (match := re.search(r" pid (\d+) ", line))]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_stops_every_process(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process, lines = start("--brokers", "2", "--dir", str(tmp_path))
    pids = server_pids(lines)
    assert len(pids) == 3
    assert len(set(pids)) == 3
    addresses = [line.split()[1] for line in lines[:-1]]
    for address in addresses:
        host, port = address.split(":")
        socket.create_connection((host, int(port)), 5).close()
    assert addresses[0] in lines[-1]
    process.send_signal(number)
    _, err = process.communicate(timeout=STOP_S)
    assert (process.returncode, err) == (code, "")
    assert not [pid for pid in pids if is_running(pid)]
    assert {path.name for path in tmp_path.iterdir()} >= {"broker-a", "broker-b", "conf", "logs"}


def test_servers_end_with_a_killed_starter(tmp_path: Path) -> None:
    process, lines = start("--dir", str(tmp_path))
    process.kill()
    process.communicate()
    pids = server_pids(lines)
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_the_end_of_a_server_ends_all(tmp_path: Path) -> None:
    process, lines = start("--dir", str(tmp_path))
    namesrv, broker = server_pids(lines)
    os.kill(broker, signal.SIGKILL)
    _, err = process.communicate(timeout=STOP_S)
    assert process.returncode == 1
    assert f"broker-a (pid {broker}) has ended" in err
    assert not is_running(namesrv)


def test_without_a_directory_nothing_is_kept() -> None:
    process, lines = start()
    log = Path(lines[0].rpartition(" log ")[2].strip())
    assert log.exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=STOP_S)
    assert not log.parent.parent.exists()


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    # A file where the broker wants a directory.
    (tmp_path / "broker-a").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "up", "--port", "0", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=STOP_S,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("gantry: broker-a did not start: ")
    assert str(tmp_path / "broker-a") in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.parametrize("taken", [0, 1035, 1045])
def test_a_taken_port_is_named_before_anything_starts(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    port = next(port for port in range(20_000, 30_000) if all(is_free(port + more) for more in (0, 1035, 1045)))
    with socket.create_server(("127.0.0.1", port + taken)):
        assert run(["up", "--brokers", "2", "--port", str(port)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"gantry: port {port + taken}, for {'broker-' if taken else 'the NameServer'}")
    assert f"gantry topology -n 127.0.0.1:{port} shows it; --port 0 takes free ports" in err


def test_topics_are_there_before_anybody_sends(tmp_path: Path) -> None:
    process, lines = start("--brokers", "2", "--dir", str(tmp_path), "--topic", "orders:3", "--topic", "bills")
    try:
        assert "topic orders  3 queues on each broker\n" in lines
        name_server = lines[0].split()[1]
        route = subprocess.run(
            [sys.executable, "-m", "gantrymq.cli", "admin", "topicRoute", "-t", "orders", "-n", name_server, "--json"],
            capture_output=True,
            check=True,
            timeout=30,
        )
        queues = json.loads(route.stdout)["queueDatas"]
        assert sorted((data["brokerName"], data["writeQueueNums"]) for data in queues) == [
            ("broker-a", 3),
            ("broker-b", 3),
        ]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_S)


@pytest.mark.parametrize("topic", ["orders:0", "orders:", "orders:many", "or ders", ":3"])
def test_a_topic_that_cannot_be_is_2(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--topic", topic]) == 2
    assert "--topic" in capsys.readouterr().err


def test_a_controller_makes_another_master(tmp_path: Path) -> None:
    process, lines = start("--replicas", "2", "--controller", "--dir", str(tmp_path), "--topic", "orders")
    try:
        name_server = lines[0].split()[1]
        assert lines[1].startswith("controller ")

        def brokers() -> list[dict[str, object]]:
            command = [sys.executable, "-m", "gantrymq.cli", "topology", "-n", name_server, "--once", "--json"]
            answer = subprocess.run(command, capture_output=True, check=True, timeout=30)
            rows: list[dict[str, object]] = json.loads(answer.stdout)
            return rows

        wait_until(lambda: [row["inSync"] for row in brokers()] == [True, True])
        master = next(row["address"] for row in brokers() if row["brokerId"] == 0)
        other = next(row["address"] for row in brokers() if row["brokerId"] != 0)
        pid = next(int(line.split(" pid ")[1].split()[0]) for line in lines if f" {master} " in line)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: [row["address"] for row in brokers() if row["brokerId"] == 0] == [other])
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=STOP_S)
    assert (process.returncode, err) == (130, "")
