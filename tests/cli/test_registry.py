"""Tests of `--registry`: bodies with schemas from a registry, in `gantry produce`, `consume` and `schema infer`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from registry_server import Registry, running_registry
from wait_until import until, wait_until

from gantrymq import Message, MessageExt, Producer, SyncProducer
from gantrymq.cli.main import run
from gantrymq.cli.registry import TOKEN, USER_INFO, RegisteredBodies, settings
from gantrymq.codecs.registry import client as registry_module
from gantrymq.codecs.registry.settings import REQUEST_TIMEOUT_S
from gantrymq.codecs.registry.wire_format import prefix
from gantrymq.errors import ClientClosed
from gantrymq.protocol.record import Record
from gantrymq.testing.embedded import EmbeddedCluster

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "what", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
JSON_ORDER = {
    "type": "object",
    "properties": {"what": {"type": "string"}, "unit price": {"type": "number"}, "at": {"format": "date-time"}},
    "required": ["what"],
}
JSON_ORDER["properties"]["at"]["type"] = "string"  # type: ignore[index]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    # Each test has a registry of its own, whose port can be that of an earlier one.
    monkeypatch.setattr(registry_module, "_cache", {})
    for name in ("GANTRY_REGISTRY_USER_INFO", "GANTRY_REGISTRY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with running_registry() as running:
        yield running


def lines(directory: Path, *values: str) -> str:
    (path := directory / "orders.jsonl").write_text("".join(f"{value}\n" for value in values))
    return str(path)


def test_produce_and_consume(
    cluster: EmbeddedCluster, registry: Registry, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    registry.add("avro-orders-value", json.dumps(ORDER))
    at = ["-n", cluster.name_server, "--registry", registry.url]
    path = lines(tmp_path, '{"what": "apples", "count": 1, "tags": ["a"]}')
    assert run(["produce", "avro-orders", path, *at]) == 0
    assert run(["consume", "avro-orders", "-e", *at]) == 0
    assert capsysbinary.readouterr().out == b'{"what":"apples","count":1,"tags":["a"]}\n'
    assert run(["consume", "avro-orders", "-e", "--json", *at]) == 0
    line = json.loads(capsysbinary.readouterr().out)
    assert line["value"] == {"what": "apples", "count": 1, "tags": ["a"]}
    assert run(["consume", "avro-orders", "-e", "-n", cluster.name_server]) == 0
    assert capsysbinary.readouterr().out.startswith(prefix(1))


def test_errors_do_not_control_the_terminal(
    cluster: EmbeddedCluster, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add("escapes-value", json.dumps({"$ref": "\x1b[2J"}), "JSON")
    registry.add("escapes-value", json.dumps("\x1b[2J"))
    at = ["-n", cluster.name_server, "--registry", registry.url]
    # The last schema can't be used: the command ends with the error.
    assert run(["produce", "escapes", lines(tmp_path, "1"), *at]) == 1
    del registry.subjects["escapes-value"][1]
    # The line does not match the schema: the command prints its number.
    assert run(["produce", "escapes", lines(tmp_path, "1"), *at]) == 1
    with SyncProducer(Producer(cluster.name_server, "escapes")) as producer:
        producer.send(Message("escapes", prefix(2) + b"1"))
    assert run(["consume", "escapes", "-e", *at]) == 0
    assert run(["consume", "escapes\x1b[2J", "-e", *at]) == 1
    problems = capsys.readouterr().err
    assert "\x1b" not in problems
    assert problems.count("\\x1b[2J") == 4


def test_an_invalid_line_names_line_and_field(
    cluster: EmbeddedCluster, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add("orders", json.dumps(ORDER))
    at = ["-n", cluster.name_server, "--registry", registry.url]
    path = lines(tmp_path, '{"what": "a", "count": 1}', '{"what": "b", "count": "many"}', "{")
    command = ["produce", "checked-orders", path, *at, "--subject", "orders"]
    assert run(command) == 1
    error = capsys.readouterr().err
    assert f'{path}, line 2: field count is "many": write an integer of 32 bits' in error
    assert "1 of 1 messages acknowledged" in error
    assert run([*command, "--skip-bad"]) == 0
    assert "left out 2 bad" in capsys.readouterr().err


def test_other_bodies_are_shown_as_they_were_sent(
    cluster: EmbeddedCluster, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, *[f"plain {number}" for number in range(12)])
    assert run(["produce", "plain-orders", path, "-n", cluster.name_server]) == 0
    command = ["consume", "plain-orders", "-n", cluster.name_server, "-e", "--registry", registry.url]
    assert run(command) == 0
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == sorted(f"plain {number}" for number in range(12))
    notes = shown.err.splitlines()
    assert len(notes) == 11
    assert notes[0].startswith("gantry: shown as it was sent: message ")
    assert "it was sent without a schema registry" in notes[0]
    assert notes[10] == "gantry: further bodies that cannot be decoded have no note"
    assert run([*command, "--json", "-c", "1"]) == 0
    assert "value" not in json.loads(capsys.readouterr().out)


def test_a_registry_that_refuses(
    cluster: EmbeddedCluster,
    registry: Registry,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.add("orders-value", json.dumps(ORDER))
    registry.authorization = "Bearer secret"
    path = lines(tmp_path, '{"what": "a", "count": 1}')
    command = ["produce", "orders", path, "-n", cluster.name_server, "--registry", registry.url]
    assert run(command) == 1
    assert "refuses: 401 Unauthorized: set GANTRY_REGISTRY_USER_INFO" in capsys.readouterr().err
    monkeypatch.setenv("GANTRY_REGISTRY_TOKEN", "secret")
    assert run(command) == 0


def send(cluster: EmbeddedCluster, topic: str, *bodies: bytes) -> None:
    with SyncProducer(Producer(cluster.name_server, "shop")) as producer:
        queue = producer.queues(topic)[0]
        for body in bodies:
            producer.send(Message(topic, body), queue=queue)


def consuming(cluster: EmbeddedCluster, registry: Registry, topic: str, *more: str) -> subprocess.Popen[str]:
    command = ["consume", topic, "-n", cluster.name_server, "--registry", registry.url, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_registry_hangs(
    cluster: EmbeddedCluster, registry: Registry, number: signal.Signals
) -> None:
    """The command ends without the registry's timeout, and the group gets the messages again."""
    topic = f"hung-{number.name}"
    registry.add("orders", '"string"')
    send(cluster, topic, prefix(1) + b"\x02a", prefix(1) + b"\x02b")
    registry.endless = b"", 0.05
    with consuming(cluster, registry, topic, "-g", f"group-{number.name}") as process:
        wait_until(lambda: registry.requests)
        began = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - began
    assert (process.returncode, out) == (130 if number == signal.SIGINT else 0, ""), err
    assert seconds < REQUEST_TIMEOUT_S - 1
    registry.endless = None
    with consuming(cluster, registry, topic, "-g", f"group-{number.name}", "-c", "2") as process:
        out, err = process.communicate(timeout=60)
    assert out == '"a"\n"b"\n', err


async def test_the_event_loop_runs_while_the_registry_hangs(registry: Registry) -> None:
    registry.endless = b"", 0.05
    record = Record(0, 3, 0, 17, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0, prefix(1), b"orders", b"UNIQ_KEY\x01ID1")
    bodies = RegisteredBodies(registry.url)
    task = asyncio.ensure_future(bodies.json(MessageExt(record, "broker-a")))
    # The request arrives after `json` has begun to wait, so the loop runs meanwhile.
    await until(lambda: registry.requests)
    assert not task.done()
    bodies.close()
    with pytest.raises(ClientClosed):
        await task


def test_a_registry_that_fails_later(cluster: EmbeddedCluster, registry: Registry) -> None:
    """Messages before the failure are written, and none is committed."""
    registry.add("orders", '"string"')
    registry.add("others", '"int"')
    send(cluster, "down", prefix(1) + b"\x02a", prefix(2) + b"\x02")
    cause = b'{"error_code": 40101, "message": "Unauthorized"}'
    registry.fails = [(200, b'{"schema": "\\"string\\""}'), (401, cause)]
    with consuming(cluster, registry, "down", "-g", "down-group") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, '"a"\n'), err
    assert "refuses: 401 Unauthorized: set GANTRY_REGISTRY_USER_INFO" in err
    with consuming(cluster, registry, "down", "-g", "down-group", "-c", "2") as process:
        out, err = process.communicate(timeout=60)
    assert out == '"a"\n1\n', err


def test_empty_credentials_count_as_unset(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (USER_INFO, TOKEN):
        monkeypatch.setenv(name, "")
    assert (settings(registry.url).user_info, settings(registry.url).token) == (None, None)
    monkeypatch.setenv(USER_INFO, "user:secret")
    assert settings(registry.url).user_info == "user:secret"


def test_a_subject_that_does_not_exist(
    cluster: EmbeddedCluster, registry: Registry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lines(tmp_path, "{}")
    assert run(["produce", "orders", path, "-n", cluster.name_server, "--registry", registry.url]) == 1
    assert "no schema of subject orders-value: register a schema, or name another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["produce", "t", "--registry", "http://r", "--json"], "does not go with --json"),
        (["produce", "t", "--subject", "s"], "needs --registry"),
        (["schema", "infer", "t", "--subject", "s"], "needs --registry"),
        (["consume", "t", "--registry", "http://r", "--decode", "json"], "only one of the two"),
    ],
)
def test_options_that_exclude_each_other(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_schema_infer(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="count", number=1, type=4, label=1, json_name="count")
    registry.add("a-value", json.dumps(ORDER))
    registry.add("j-value", json.dumps(JSON_ORDER), "JSON")
    registry.add_proto("p-value", file.SerializeToString())
    registry.add("text-value", '"string"')
    for topic, ddl in (
        ("a", "what STRING, count INT, tags ARRAY<STRING>"),
        ("j", "what STRING NOT NULL, `unit price` DOUBLE, at TIMESTAMP"),
        ("p", "count DECIMAL(20,0)"),
    ):
        assert run(["schema", "infer", topic, "--registry", registry.url]) == 0
        assert capsys.readouterr().out == f"{ddl}\n"
    assert run(["schema", "infer", "text", "--registry", registry.url]) == 1
    assert "the schema is no record but string" in capsys.readouterr().err


def test_without_the_option_nothing_of_it_is_imported(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    path = lines(tmp_path, "one")
    for arguments in (["produce", "light", path], ["consume", "light", "-e"]):
        script = (
            "import sys; from gantrymq.cli.main import run\n"
            f"assert run({[*arguments, '-n', cluster.name_server]!r}) == 0\n"
            "found = [name for name in sys.modules if 'registry' in name or name in ('httpx', 'fastavro')]\n"
            "assert not found, found\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
