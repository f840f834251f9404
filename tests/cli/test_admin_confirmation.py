"""Tests of --dry-run, --yes and the confirmation of the `gantry admin` commands that delete or reset."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from admin_support import CLUSTER, Admin, admin, cluster, producer, topic
from wait_until import wait_until

from gantrymq.cli.main import run
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster", "producer", "topic"]

TIMEOUT_S = 60.0


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Yields the file descriptors of a terminal: the side of the user, and the side of a command."""
    files = pty.openpty()
    yield files
    for file in files:
        os.close(file)


def command_line(name_server: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "gantrymq.cli", "admin", *arguments, "-n", name_server]


def ask(terminal: tuple[int, int], cluster: EmbeddedCluster, typed: bytes, *arguments: str) -> tuple[int, str, str]:
    """Runs a command with a terminal as standard input. Returns its exit code, standard output and standard error."""
    user, standard_input = terminal
    with subprocess.Popen(
        command_line(cluster.name_server, *arguments),
        stdin=standard_input,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        os.write(user, typed)
        out, err = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, out.decode(), err.decode()


def test_a_terminal_is_asked(admin: Admin, cluster: EmbeddedCluster, topic: str, terminal: tuple[int, int]) -> None:
    delete = ["deleteTopic", "-c", CLUSTER, "-t", topic]
    code, out, err = ask(terminal, cluster, b"what\nn\n", *delete)
    assert (code, out) == (1, "")
    question = f"delete topic '{topic}' of cluster '{CLUSTER}' on {cluster.brokers[0]}, {cluster.name_server}? [y/N]: "
    assert err.startswith(f"{question}Error: invalid input\n{question}")
    assert "Aborted" in err
    assert topic in admin("topicList")
    code, out, err = ask(terminal, cluster, b"y\n", *delete)
    assert (code, err) == (0, question)
    assert out.startswith("delete topic")
    wait_until(lambda: topic not in admin("topicList"))


def test_the_end_of_the_input_is_a_no(cluster: EmbeddedCluster, terminal: tuple[int, int]) -> None:
    end_of_file = b"\x04"
    code, out, err = ask(terminal, cluster, end_of_file, "cleanExpiredCQ")
    assert (code, out) == (1, "")
    assert "Aborted" in err


def test_ctrl_c_at_the_question(cluster: EmbeddedCluster, terminal: tuple[int, int]) -> None:
    with subprocess.Popen(
        command_line(cluster.name_server, "cleanExpiredCQ"),
        stdin=terminal[1],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            byte = process.stderr.read(1)
            assert byte, asked
            asked += byte
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, err


async def test_a_connection_that_closes_before_the_answer(
    cluster: EmbeddedCluster, topic: str, terminal: tuple[int, int]
) -> None:
    user, standard_input = terminal
    connections: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            writer.write(chunk)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        upstream_reader, upstream_writer = await asyncio.open_connection(*cluster.name_server.rsplit(":", 1))
        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer), return_exceptions=True)

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        process = await asyncio.create_subprocess_exec(
            *command_line(f"{host}:{port}", "deleteTopic", "-c", CLUSTER, "-t", topic),
            stdin=standard_input,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await process.stderr.readuntil(b"[y/N]: ")
                (connection,) = connections
                connection.close()
                await connection.wait_closed()
                os.write(user, b"y\n")
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, err
    assert b"from NameServer success" in out


def test_yes_does_not_ask(admin: Admin, cluster: EmbeddedCluster, topic: str, terminal: tuple[int, int]) -> None:
    code, _, err = ask(terminal, cluster, b"", "deleteTopic", "-c", CLUSTER, "-t", topic, "--yes")
    assert (code, err) == (0, "")
    wait_until(lambda: topic not in admin("topicList"))


def test_without_standard_input_nothing_is_asked(cluster: EmbeddedCluster) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *command_line(cluster.name_server, "cleanExpiredCQ")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_is_not_asked(admin: Admin, topic: str) -> None:
    assert not sys.stdin.isatty()
    admin("deleteTopic", "-c", CLUSTER, "-t", topic)
    wait_until(lambda: topic not in admin("topicList"))


def test_a_dry_run_of_a_reset_has_the_offsets(admin: Admin, producer: SyncProducer, topic: str) -> None:
    for _ in range(3):
        producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 1))
    group = f"{topic}_group"
    admin("updateSubGroup", "-c", CLUSTER, "-g", group)
    skip = ["skipAccumulatedMessage", "-g", group, "-t", topic]
    reset = ["resetOffsetByTime", "-g", group, "-t", topic, "-s"]

    def planned(*arguments: str) -> list[tuple[int | None, int]]:
        plan = admin(*arguments, "--dry-run")
        assert plan["dryRun"]
        return [(row["committedOffset"], row["offset"]) for row in plan["queues"]]

    assert planned(*skip) == [(None, 0), (None, 3)]
    assert planned(*skip) == [(None, 0), (None, 3)]
    admin(*skip)
    assert planned(*reset, "0") == [(0, 0), (3, 0)]
    admin(*reset, "0")
    assert planned(*reset, "now", "-f", "false") == [(0, 0), (0, 0)]
    assert [row["offset"] for row in admin(*reset, "now", "-f", "false")] == [0, 0]


def test_a_dry_run_changes_nothing(
    admin: Admin, cluster: EmbeddedCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (broker,) = cluster.brokers
    group = f"{topic}_group"
    admin("updateSubGroup", "-c", CLUSTER, "-g", group)
    admin("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    admin("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:2")
    for arguments, action in (
        (["deleteTopic", "-c", CLUSTER, "-t", topic], f"delete topic '{topic}' of cluster '{CLUSTER}' on {broker}"),
        (["deleteSubGroup", "-b", broker, "-g", group, "-r", "true"], f"delete consumer group '{group}' and its offs"),
        (["deleteSubGroup", "-c", CLUSTER, "-g", group], f"'{group}', its retry topic and its dead-letter queue on "),
        (["deleteKvConfig", "-s", "space", "-k", "key"], "delete key 'key' of namespace 'space' on "),
        (
            ["updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:9"],
            f"set the order configuration of topic '{topic}' to 'broker-a:9' on ",
        ),
        (["updateOrderConf", "-t", topic, "-m", "delete"], f"delete the order configuration of topic '{topic}' on "),
        (["cleanExpiredCQ"], f"delete expired files of consume queues on {broker}"),
        (["deleteExpiredCommitLog"], f"delete expired files of the commit log on {broker}"),
        (["cleanUnusedTopic", "-b", broker], f"delete the queues of topics that do not exist on {broker}"),
        (["resetMasterFlushOffset", "-b", broker, "-o", "0"], f"reset the master's flush offset to 0 on {broker}"),
        (["removeBroker", "-c", "c:1", "-b", "C:b:0"], "stop the broker C:b:0 on c:1"),
        (["deleteUser", "-u", "me", "-b", broker], f"delete user 'me' on {broker}"),
        (["deleteAcl", "-s", "User:me", "-b", broker], f"delete all permissions of 'User:me' on {broker}"),
        (["cleanBrokerMetadata", "-a", "c:1", "-bn", "b", "-c", "C"], "delete the metadata of all brokers of 'b' on c"),
        (["givenUpTransactions", "--drop", "--count", "2"], "drop the first 2 given-up transactions"),
        (
            ["cloneGroupOffset", "-s", "source", "-d", group, "-t", topic],
            f"replace the offsets of group '{group}' in topic '{topic}' by those of 'source' on {broker}",
        ),
        (
            ["resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "-b", broker, "-q", "1", "-o", "7"],
            f"reset the offset of group '{group}' in queue 1 of topic '{topic}' to 7 on {broker}",
        ),
        (["skipAccumulatedMessage", "-g", group, "-t", topic], f"skip the messages of topic '{topic}' that group"),
    ):
        assert run(["admin", *arguments, "--dry-run", "-n", cluster.name_server]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("would ")
        assert action in out
        assert err == ""
    assert topic in admin("topicList")
    assert admin("getConsumerConfig", "-g", group) != []
    assert admin("updateOrderConf", "-t", topic, "-m", "get")["orderConf"] == "broker-a:2"
    progress = admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0", "--dry-run")
    assert [row["committedOffset"] for row in progress["queues"]] == [None, None]
