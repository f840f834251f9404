"""Runs our Java programs (src/main/java) and Apache's mqadmin to their end.

Input and output messages are dictionaries.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import HERE, java_command

PROGRAM_TIMEOUT_S = 100.0
#: Values of `-Drocketmq.serialize.type` for the two header formats.
SERIALIZE_TYPES = ("JSON", "ROCKETMQ")


#: User properties of `sample`. Additional properties of clients and brokers are not compared.
PROPERTY_NAMES = ("colour", "число")


@dataclass(frozen=True, order=True)
class Sent:
    """The fields of a sent message that a received one must equal."""

    body: bytes
    tags: str = ""
    keys: str = ""
    flag: int = 0
    properties: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, line: dict[str, Any]) -> Sent:
        """Returns the fields of a line from Consume."""
        body = base64.b64decode(line["body"])
        return cls.of_parts(body, line.get("tags"), line.get("keys"), line["flag"], line["properties"])

    @classmethod
    def of_parts(
        cls, body: bytes, tags: str | None, keys: str | None, flag: int, properties: Mapping[str, str]
    ) -> Sent:
        """Returns the fields of a received message."""
        mine = tuple((name, properties[name]) for name in PROPERTY_NAMES if name in properties)
        return cls(body, tags or "", keys or "", flag, mine)

    def line(self, **more: object) -> str:
        """Returns the input line for Produce."""
        fields: dict[str, Any] = {"body": base64.b64encode(self.body).decode(), "flag": self.flag, **more}
        if self.tags:
            fields["tags"] = self.tags
        if self.keys:
            fields["keys"] = self.keys
        if self.properties:
            fields["properties"] = dict(self.properties)
        return json.dumps(fields)


def sample(count: int, *, first: int = 0) -> list[Sent]:
    """Returns messages that use all fields, numbered from `first`."""
    return [
        Sent(
            f"body {i} \u2713 ".encode() + bytes(range(i % 7)),
            tags=f"tag{i % 3}",
            keys=f"key{i} second{i}",
            flag=i,
            properties=(("colour", f"c{i}"), ("число", "пять")),
        )
        for i in range(first, first + count)
    ]


def command_line(
    main_class: str,
    *args: str,
    home: Path,
    serialize_type: str = "JSON",
    options: Sequence[str] = (),
    version: str = "5.5",
) -> list[str]:
    """Returns the command that runs one of our programs with the clients of a version. It only prints problems."""
    properties = [
        f"-Drmq.logback.configurationFile={HERE / 'quiet.xml'}",
        f"-Drocketmq.serialize.type={serialize_type}",
        "-Drocketmq.client.rebalance.waitInterval=2000",
    ]
    return java_command(main_class, *args, home=home, options=[*properties, *options], version=version)


def _run(
    main_class: str, *args: str, stdin: str = "", serialize_type: str = "JSON", version: str = "5.5"
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as home:
        # Uses only the fast compiler, because the programs run for about a second.
        options = ["-XX:TieredStopAtLevel=1", "-Xmx256m"]
        command = command_line(
            main_class, *args, home=Path(home), serialize_type=serialize_type, options=options, version=version
        )
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S)


def _lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def produce(
    namesrv: str,
    topic: str,
    lines: Iterable[str],
    *,
    mode: str = "sync",
    group: str = "interop_producer",
    serialize_type: str = "JSON",
    version: str = "5.5",
) -> list[dict[str, Any]]:
    """Sends by Apache's Java producer.

    Returns the results; none for oneway sends. Raises AssertionError if a send fails.
    """
    result = _run(
        "org.gantrymq.interop.Produce",
        namesrv,
        group,
        topic,
        mode,
        stdin="\n".join(lines),
        serialize_type=serialize_type,
        version=version,
    )
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]
    return _lines(result)


def consume(
    namesrv: str,
    topic: str,
    count: int,
    *,
    expression: str = "*",
    mode: str = "concurrently",
    group: str = "interop_consumer",
    serialize_type: str = "JSON",
    timeout_s: int = 75,
    version: str = "5.5",
) -> list[dict[str, Any]]:
    """Receives `count` messages by Apache's Java consumer. Raises AssertionError if they do not arrive in time."""
    result = _run(
        "org.gantrymq.interop.Consume",
        *(namesrv, group, topic, expression, mode, str(count), str(timeout_s)),
        serialize_type=serialize_type,
        version=version,
    )
    lines = _lines(result)
    assert result.returncode == 0, f"{len(lines)} of {count} messages came: {result.stderr[-4000:]}"
    return lines


@contextmanager
def replier(namesrv: str, topic: str, *, version: str = "5.5") -> Iterator[None]:
    """Runs Apache's consumer. It replies to requests in a topic with "re: " and the request's body."""
    with tempfile.TemporaryDirectory() as home:
        command = command_line(
            "org.gantrymq.interop.RequestReply", namesrv, topic, "replier", home=Path(home), version=version
        )
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            try:
                yield
            finally:
                process.kill()


def ask(namesrv: str, topic: str, count: int, *, version: str = "5.5") -> list[str]:
    """Returns the replies to `count` requests of Apache's producer. Half of the requests use a RequestCallback."""
    result = _run("org.gantrymq.interop.RequestReply", namesrv, topic, "asker", str(count), version=version)
    assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]
    return [line["answer"] for line in _lines(result)]


def mqadmin(namesrv: str, command: str, *args: str) -> str:
    """Returns the output of Apache's mqadmin. Its exit status is 0 even if it fails, so check the output."""
    result = _run("org.apache.rocketmq.tools.command.MQAdminStartup", command, "-n", namesrv, *args)
    return result.stdout + result.stderr
