"""Tests of `gantry produce`: how it reads its input, and the messages that a cluster then stores."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from constants import change_constant
from wait_until import wait_until

from gantrymq import (
    LitePullConsumer,
    MessageExt,
    SyncLitePullConsumer,
)
from gantrymq.cli.json_message import decode
from gantrymq.cli.main import run
from gantrymq.cli.produce_delivery import _chunks
from gantrymq.cli.produce_input import MAX_LENGTH, MessageMaker, Splitter
from gantrymq.cli.values import unescape
from gantrymq.errors import BodyError, NoRouteInfo
from gantrymq.protocol.message import Message
from gantrymq.testing.embedded import EmbeddedCluster

COMMAND = [sys.executable, "-m", "gantrymq.cli", "produce"]
TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name.partition('[')[0]}_{time.time_ns():x}"


Received = Callable[[int], list[MessageExt]]


@pytest.fixture
def received(cluster: EmbeddedCluster, topic: str) -> Received:
    """Reads `count` messages of the topic and returns them by queue and offset."""

    def read(count: int) -> list[MessageExt]:
        pull = LitePullConsumer(cluster.name_server, topic, start_from="earliest")
        messages: list[MessageExt] = []
        deadline = time.monotonic() + TIMEOUT_S
        with SyncLitePullConsumer(pull) as consumer:
            assign_all(consumer, topic)
            while len(messages) < count:
                assert time.monotonic() < deadline, messages
                messages += consumer.poll(timeout=0.5)
            assert consumer.poll(timeout=0.05) == []
        return sorted(messages, key=lambda message: (message.queue_id, message.queue_offset))

    return read


def assign_all(consumer: SyncLitePullConsumer, topic: str) -> None:
    """Waits until the first message has created the topic, then assigns all its queues."""

    def is_assigned() -> bool:
        with suppress(NoRouteInfo):
            consumer.assign(consumer.queues(topic))
            return True
        return False

    wait_until(is_assigned)


def produce(cluster: EmbeddedCluster, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, "-n", cluster.name_server, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S)


# -- input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("data", "delimiter", "parts"),
    [
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"a\n\nb", b"\n", [b"a", b"", b"b"]),
        (b"", b"\n", []),
        (b"a--b-c--", b"--", [b"a", b"b-c"]),
        (b"a\0\xff\r\0", b"\0", [b"a", b"\xff\r"]),
        (b"a\nb\n", None, [b"a\nb\n"]),
    ],
)
def test_parts(data: bytes, delimiter: bytes | None, parts: list[bytes], step: int) -> None:
    splitter = Splitter(delimiter)
    found = [part for at in range(0, len(data), step) for part in splitter.feed(data[at : at + step])]
    assert found + splitter.finish() == parts
    assert splitter.finish() == []


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
@pytest.mark.parametrize("delimiter", [b"\n", b"--"])
def test_a_part_that_is_too_long_is_not_kept(delimiter: bytes, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "produce_input.MAX_LENGTH", 10)
    splitter = Splitter(delimiter)
    data = delimiter.join([b"one", b"x" * 11, b"two", b"y" * 500, b"three", b"z" * 10, b"w" * 40])
    fed = [part for n in range(0, len(data), step) for part in splitter.feed(data[n : n + step])]
    assert fed + splitter.finish() == [b"one", None, b"two", None, b"three", b"z" * 10, None]
    assert splitter.finish() == []


def test_a_file_that_is_too_long_is_not_kept() -> None:
    splitter = Splitter(None)
    assert splitter.feed(b"x" * MAX_LENGTH) + splitter.feed(b"x") + splitter.finish() == [None]
    maker = MessageMaker("t", Message("t", b""), json=False, key_separator=None)
    with pytest.raises(BodyError, match=r"longer than 4,194,304 bytes.*maxMessageSize"):
        maker.message(None)


@pytest.mark.parametrize(
    ("text", "value"), [(r"\n", b"\n"), (r"\x1e\t", b"\x1e\t"), ("→", "→".encode()), (r"a\\n", rb"a\n"), (r"\0", b"\0")]
)
def test_unescape(text: str, value: bytes) -> None:
    assert unescape(text) == value


def maker(*, json: bool = False, key_separator: bytes | None = None, **options: object) -> MessageMaker:
    return MessageMaker("t", Message("t", b"", **options), json=json, key_separator=key_separator)  # type: ignore[arg-type]


def test_keys_before_a_separator() -> None:
    make = maker(key_separator=b"=", keys="fixed", tags="x").message
    assert [(m.properties, m.body) for m in (make(b"k=v=w"), make(b"plain"), make(b"k="))] == [
        ({"KEYS": "k", "TAGS": "x"}, b"v=w"),
        ({"KEYS": "fixed", "TAGS": "x"}, b"plain"),
        ({"KEYS": "k", "TAGS": "x"}, b""),
    ]
    with pytest.raises(BodyError, match="UTF-8"):
        make(b"\xff=v")


def test_json() -> None:
    line = {
        "bodyBase64": "/wA=", "keys": ["a", "b"], "tags": "T", "shardingKey": "s", "delayMs": 5,
        "flag": 9, "properties": {"p": "1"}, "queueOffset": 17,
    }  # fmt: skip
    message = maker(json=True, tags="other", properties={"p": "0", "q": "2"}).message(json.dumps(line).encode())
    assert (message.body, message.flag) == (b"\xff\0", 9)
    assert message.properties == {
        "TAGS": "T", "KEYS": "a b", "__SHARDINGKEY": "s", "TIMER_DELAY_MS": "5",
        "p": "1", "q": "2",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [b"x", b"[]", b"{}", b'{"body": 1}', b'{"body": "", "bodyBase64": ""}', b'{"body": "a", "tag": "a"}',
     b'{"body": "a", "delayMs": 9223372036854775808}', b'{"body": "a", "delayMs": -1}',
     b'{"bodyBase64": "*"}', b'{"body": "a", "properties": {"a": 1}}', b'"\xff"', b'{"body": "\xff"}'],
)  # fmt: skip
def test_bad_json(line: bytes) -> None:
    with pytest.raises(BodyError):
        decode(line)


# -- a cluster ------------------------------------------------------------------------------------------------------


def test_lines(cluster: EmbeddedCluster, topic: str, received: Received) -> None:
    done = produce(
        cluster, topic, "--tags", "T", "-k", "k1", "-k", "k2", "--property", "a=b=c", stdin=b"one\n\ntwo\xff"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    messages = received(2)
    assert sorted(message.body for message in messages) == [b"one", b"two\xff"]
    for message in messages:
        assert (message.tags, message.keys, message.properties["a"]) == ("T", ["k1", "k2"], "b=c")


def test_files(cluster: EmbeddedCluster, topic: str, received: Received, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1;2")
    (tmp_path / "b").write_bytes(b"3;")
    done = produce(cluster, topic, "-D", ";", tmp_path / "a", "-", tmp_path / "b", stdin=b"4")
    assert done.returncode == 0, done.stderr
    assert sorted(message.body for message in received(4)) == [b"1", b"2", b"3", b"4"]


def test_whole_files(cluster: EmbeddedCluster, topic: str, received: Received, tmp_path: Path) -> None:
    binary = bytes(range(256)) * 1000
    (tmp_path / "a").write_bytes(binary)
    assert produce(cluster, topic, "--whole", tmp_path / "a").returncode == 0
    assert [message.body for message in received(1)] == [binary]


def test_many_lines_arrive_once(cluster: EmbeddedCluster, topic: str, received: Received, tmp_path: Path) -> None:
    lines = [b"%d" % number for number in range(20_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    assert produce(cluster, topic, tmp_path / "lines").returncode == 0
    assert sorted(int(message.body) for message in received(len(lines))) == list(range(20_000))


def test_ordered(cluster: EmbeddedCluster, topic: str, received: Received) -> None:
    assert produce(cluster, topic, stdin=b"makes the topic").returncode == 0
    lines = b"".join(b"key%d:%d\n" % (number % 7, number) for number in range(700))
    assert produce(cluster, topic, "-K", ":", "--ordered", stdin=lines).returncode == 0
    by_key: dict[str, list[MessageExt]] = {}
    for message in received(701):
        if message.keys:
            by_key.setdefault(message.keys[0], []).append(message)
    assert len(by_key) == 7
    for number in range(7):
        messages = by_key[f"key{number}"]
        assert len({message.queue_id for message in messages}) == 1
        assert [int(message.body) for message in messages] == list(range(number, 700, 7))


def test_delayed_messages_go_alone(cluster: EmbeddedCluster, topic: str, received: Received) -> None:
    assert produce(cluster, topic, stdin=b"makes the topic").returncode == 0
    began = time.time()
    assert produce(cluster, topic, "--delay-level", "1", stdin=b"later").returncode == 0
    later = next(message for message in received(2) if message.body == b"later")
    assert later.store_timestamp / 1000 - began > 0.9


def test_json_lines(cluster: EmbeddedCluster, topic: str, received: Received) -> None:
    lines = b'{"body": "a", "tags": "T"}\n{"bodyBase64": "/w==", "keys": "k"}\n'
    assert produce(cluster, topic, "--json", stdin=lines).returncode == 0
    messages = received(2)
    assert sorted((m.body, m.tags, m.keys) for m in messages) == [(b"a", "T", []), (b"\xff", None, ["k"])]


def test_a_bad_line_ends_it(cluster: EmbeddedCluster, topic: str, received: Received) -> None:
    done = produce(cluster, topic, "--json", stdin=b'{"body": "a"}\n\n{"bdy": "b"}\n{"body": "c"}\n')
    assert done.returncode == 1
    error, summary = done.stderr.decode().splitlines()
    assert error.startswith("gantry: standard input, line 3: ")
    assert "bdy" in error
    assert summary.startswith("1 of 1 messages acknowledged")
    assert [message.body for message in received(1)] == [b"a"]


@pytest.mark.parametrize(
    "before", [b'{"body": "a"}', b'{"body": "a", "delayMs": 1}', b'{"body": "a", "delayLevel": 1}']
)
def test_what_was_read_before_a_bad_line_is_sent(cluster: EmbeddedCluster, topic: str, before: bytes) -> None:
    done = produce(cluster, topic, "--json", stdin=before + b"\nnonsense\n")
    error, summary = done.stderr.decode().splitlines()
    assert error.startswith("gantry: standard input, line 2: JSON is malformed")
    assert summary.startswith("1 of 1 messages acknowledged")
    assert done.returncode == 1


def test_bad_lines_can_be_left_out(cluster: EmbeddedCluster, topic: str, received: Received, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(
        b'{"body": "a"}\nnonsense\n{"body": "b"}\n{"body": "c"}\n{"body": "' + b"x" * 5_000_000 + b'"}\n{"body": "d"}\n'
    )
    done = produce(cluster, topic, "--json", "--skip-bad", str(lines), stdin=b"")
    error, summary = done.stderr.decode().splitlines()
    assert error.startswith(f"gantry: left out 2 bad, the first is {lines}, line 2: JSON is malformed")
    assert summary.startswith("4 of 4 messages acknowledged")
    assert done.returncode == 0
    assert sorted(message.body for message in received(4)) == [b"a", b"b", b"c", b"d"]


def test_a_message_that_is_too_long_names_its_line(cluster: EmbeddedCluster, topic: str) -> None:
    done = produce(cluster, topic, stdin=b"good\n" + b"x" * 5_000_000 + b"\n")
    error, summary = done.stderr.decode().splitlines()
    assert error.startswith("gantry: standard input, line 2: longer than 4,194,304 bytes, which is more than brokers")
    assert summary.startswith("1 of 1 messages acknowledged")
    done = produce(cluster, topic, "--whole", stdin=b"x" * 5_000_000)
    assert done.stderr.startswith(b"gantry: standard input: longer than 4,194,304 bytes")


def test_refused_messages_are_1(cluster: EmbeddedCluster) -> None:
    done = produce(cluster, "TRANS_CHECK_MAX_TIME_TOPIC", stdin=b"x")
    assert done.returncode == 1
    assert b"0 of 1 messages acknowledged" in done.stderr
    assert b"Traceback" not in done.stderr


def test_nobody_there_is_1() -> None:
    done = subprocess.run(
        [*COMMAND, "-n", "127.0.0.1:1", "t"], input=b"x\n" * 1000, capture_output=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"gantry: can't connect to 127.0.0.1:1")


def test_a_missing_file_is_1(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    done = produce(cluster, topic, tmp_path / "none")
    assert done.returncode == 1
    assert b"none" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["--property", "x"], ["-D", ""], ["--json", "--whole"], ["--json", "-K", ":"], ["-D", r"\x1"],
     ["--delay-ms", "9" * 400], ["--deliver-at", "noon"], ["--delay-level", "19"]],
)  # fmt: skip
def test_impossible_options_are_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["produce", "t", *arguments]) == 2
    assert "Error" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_read_before_ctrl_c_is_acknowledged(
    cluster: EmbeddedCluster, topic: str, received: Received, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*COMMAND, "-n", cluster.name_server, topic], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"".join(b"%d\n" % i for i in range(1000)))
        process.stdin.flush()
        assert len(received(1000)) == 1000
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 128 + number
        assert process.stderr.read().startswith(b"1,000 of 1,000 messages acknowledged")


def test_ctrl_c_ends_an_endless_input(cluster: EmbeddedCluster, topic: str) -> None:
    read, write = os.pipe()
    with (
        subprocess.Popen(["yes"], stdout=write) as yes,
        subprocess.Popen([*COMMAND, "-n", cluster.name_server, topic], stdin=read, stderr=subprocess.PIPE) as process,
    ):
        os.close(read)
        os.close(write)
        assert process.stderr is not None
        try:
            with SyncLitePullConsumer(LitePullConsumer(cluster.name_server, topic)) as consumer:
                assign_all(consumer, topic)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 130
        finally:
            process.kill()
            yes.kill()
        acknowledged, of, sent, *_ = process.stderr.read().split()
        assert (acknowledged, of) == (sent, b"of")


def test_progress_on_a_terminal(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "-n", cluster.name_server, topic],
        stdin=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(follower)
    try:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        drawn = b""
        deadline = time.monotonic() + TIMEOUT_S
        while b"1 of 1 messages acknowledged" not in drawn:
            assert select.select([leader], [], [], max(0.0, deadline - time.monotonic()))[0], drawn
            drawn += os.read(leader, 65536)
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_input_after_the_end_of_the_command_gives_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    os.mkfifo(path := tmp_path / "input")

    async def interrupted() -> None:
        (event := asyncio.Event()).set()
        assert [chunk async for chunk in _chunks([path], event)] == []

    asyncio.run(interrupted())
    # The thread that reads the input has waited for this, after the end of the event loop.
    path.write_bytes(b"late")
    wait_until(lambda: not any(thread.name == "gantry-produce-input" for thread in threading.enumerate()))
    assert [str(warning.message) for warning in recwarn] == []
