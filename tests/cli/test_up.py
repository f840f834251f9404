"""Tests that `gantry up` starts and stops all servers and leaves nothing behind."""

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
from shutil import rmtree

import pytest
from wait_until import wait_until

from gantrymq.cli.main import run
from gantrymq.cli.supervisor import STABLE_S, RestartLimit, Supervisor
from gantrymq.errors import GantryError
from gantrymq.testing.processes import ProcessCluster
from gantrymq.testing.signals import interruptible

#: In seconds. More than the 30 s after which a server that does not stop is killed.
STOP_S = 60.0


def start(*options: str, env: dict[str, str] | None = None) -> tuple[subprocess.Popen[str], list[str]]:
    """Returns the process, and its output up to the ready line. `env` has further environment variables."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "up", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
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


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Returns the next line of the output that contains `text`."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}; stderr: {process.communicate()[1]}")


def test_a_broker_that_ends_is_restarted(tmp_path: Path) -> None:
    process, lines = start("--dir", str(tmp_path))
    try:
        address = lines[1].split()[1]
        namesrv, broker = server_pids(lines)
        for _ in range(2):
            os.kill(broker, signal.SIGKILL)
            ended = read_until(process, f"(pid {broker})")
            assert "was ended by signal 9 (Killed); last log line: " in ended
            again = read_until(process, "is ready again")
            assert f" at {address}," in again
            broker = int(again.split(" pid ")[1])
            host, port = address.split(":")
            socket.create_connection((host, int(port)), 5).close()
        assert is_running(namesrv)
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=STOP_S)
    assert process.returncode == 130
    assert not is_running(broker)
    assert err == f"a server has ended during this run: the data and the logs are kept in {tmp_path}\n"


def test_the_end_of_the_name_server_ends_all(tmp_path: Path) -> None:
    process, lines = start("--dir", str(tmp_path))
    namesrv, broker = server_pids(lines)
    os.kill(namesrv, signal.SIGKILL)
    _, err = process.communicate(timeout=STOP_S)
    assert process.returncode == 1
    assert f"namesrv (pid {namesrv}) was ended by signal 9 (Killed)" in err
    assert f"the logs are in {tmp_path / 'logs'}" in err
    assert not is_running(broker)


def test_a_temporary_directory_survives_a_failure() -> None:
    process, lines = start()
    namesrv, broker = server_pids(lines)
    os.kill(namesrv, signal.SIGKILL)
    _, err = process.communicate(timeout=STOP_S)
    logs = Path(err.strip().rpartition("the logs are in ")[2])
    try:
        assert {path.name for path in logs.iterdir()} >= {"namesrv.log", "broker-a.log"}
    finally:
        rmtree(logs.parent)
    assert not is_running(broker)


def test_a_temporary_directory_survives_the_end_of_a_broker() -> None:
    process, lines = start()
    os.kill(server_pids(lines)[1], signal.SIGKILL)
    read_until(process, "is ready again")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=STOP_S)
    directory = Path(err.strip().rpartition(" kept in ")[2])
    try:
        assert (directory / "logs" / "broker-a.log").exists()
    finally:
        rmtree(directory)


def test_signals_after_an_error_do_not_interrupt_the_stop(tmp_path: Path) -> None:
    process, lines = start(env={"TMPDIR": str(tmp_path)})
    namesrv, broker = server_pids(lines)
    assert process.stderr is not None
    # The stop waits for this broker.
    os.kill(broker, signal.SIGSTOP)
    try:
        os.kill(namesrv, signal.SIGKILL)
        error = process.stderr.readline()
        assert error.startswith(f"gantry: namesrv (pid {namesrv}) was ended by signal 9 (Killed)")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    finally:
        os.kill(broker, signal.SIGCONT)
    _, err = process.communicate(timeout=STOP_S)
    assert (process.returncode, err) == (1, "")
    assert not is_running(broker)
    assert Path(error.strip().rpartition("the logs are in ")[2], "broker-a.log").exists()


def test_a_closed_output_leaves_no_directory(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gantrymq.cli", "up", "--port", "0"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=STOP_S,
            env=os.environ | {"TMPDIR": str(tmp_path)},
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
    assert not list(tmp_path.glob("gantry-*"))


def test_a_closed_output_keeps_the_directory_after_a_failure(tmp_path: Path) -> None:
    process, lines = start(env={"TMPDIR": str(tmp_path)})
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    os.kill(server_pids(lines)[1], signal.SIGKILL)
    err = process.stderr.read()
    assert process.wait(STOP_S) == 1
    [directory] = tmp_path.glob("gantry-*")
    assert err.endswith(f" kept in {directory}\n")
    assert (directory / "logs" / "broker-a.log").exists()


def watch_broken_brokers(cluster: ProcessCluster) -> str:
    """Kills all brokers, whose configuration is then invalid. Returns the error that ends the watch."""
    for broker in cluster.brokers:
        # A file has the name of the broker's directory.
        directory = broker.log_path.parent.parent / broker.name
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda broker=broker: not broker.is_running)
        rmtree(directory)
        directory.write_text("")
    with interruptible() as interruption, pytest.raises(GantryError) as raised:
        Supervisor(cluster, interruption, first_pause_s=0.01, max_restarts=2).run(None)
    return str(raised.value)


def test_a_broker_that_cannot_start_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProcessCluster(tmp_path, brokers=2) as cluster:
        error = watch_broken_brokers(cluster)
    out = capsys.readouterr().out
    assert "restarts in 0.01 s" in out
    assert "restarts in 0.02 s" in out
    assert "restarts in 0.04 s" not in out
    # The first of the two that is given up does not end the cluster.
    assert out.count("is not restarted any more, after 2 restarts") == 1
    assert "no other broker runs" in error
    assert "ended with exit code 1; last log line: gantry: " in error


def test_a_broker_that_is_not_ready_in_time_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProcessCluster(tmp_path) as cluster, interruptible() as interruption:
        os.kill(cluster.brokers[0].pid, signal.SIGKILL)
        supervisor = Supervisor(cluster, interruption, first_pause_s=0.01, max_restarts=1, start_timeout_s=0.0)
        with pytest.raises(GantryError, match=r"was ended by signal 9 .* not restarted any more, after 1 restarts"):
            supervisor.run(None)
    assert "broker-a is not ready 0 s after its restart: it is killed" in capsys.readouterr().out


def test_a_restart_without_its_configuration_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProcessCluster(tmp_path) as cluster, interruptible() as interruption:
        (tmp_path / "conf" / "broker-a.properties").unlink()
        os.kill(cluster.brokers[0].pid, signal.SIGKILL)
        with pytest.raises(GantryError, match="no other broker runs"):
            Supervisor(cluster, interruption, first_pause_s=0.01, max_restarts=2).run(None)
    assert "broker-a can't be started: " in capsys.readouterr().out


def test_restarts_are_limited_and_counted_anew_after_a_stable_time() -> None:
    limit = RestartLimit(first_pause_s=1.0, max_restarts=3)
    limit.ready(0.0)
    assert [limit.ended(float(now)) for now in range(4)] == [1.0, 2.0, 4.0, None]
    limit = RestartLimit(first_pause_s=1.0, max_restarts=3)
    assert [limit.ended(now) for now in (0.0, 1.0)] == [1.0, 2.0]
    limit.ready(2.0)
    assert limit.ended(2.0 + STABLE_S - 1) == 4.0
    limit.ready(100.0)
    assert limit.ended(100.0 + STABLE_S) == 1.0
    # It was not ready in between.
    assert limit.ended(1000.0) == 2.0


def test_without_a_directory_nothing_is_kept() -> None:
    process, lines = start()
    log = Path(lines[0].rpartition(" log ")[2].strip())
    assert log.exists()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=STOP_S)
    assert not log.parent.parent.exists()


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    # A file has the name of the directory that the broker needs.
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
    assert done.stderr.endswith(f"; the logs are in {tmp_path / 'logs'}\n")
    assert "Traceback" not in done.stderr


def is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


@pytest.mark.parametrize("taken", [0, 5, 15])
def test_a_taken_port_is_named_before_anything_starts(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    port = next(port for port in range(20_000, 30_000) if all(is_free(port + more) for more in (0, 5, 15)))
    with socket.create_server(("127.0.0.1", port + taken)):
        assert run(["up", "--brokers", "2", "--port", str(port)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"gantry: port {port + taken} of {'broker-' if taken else 'the NameServer'}")
    assert "'--port 0'" in err
    assert f"'gantry topology -n 127.0.0.1:{port}' shows it" in err


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
    assert process.returncode == 130
    assert err.endswith(f" kept in {tmp_path}\n")
