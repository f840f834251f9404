"""Proxies and gRPC clients: Apache's proxy and clients, and this project's proxy."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import PROGRAM_TIMEOUT_S
from servers import HERE, JAVA_OPENS, Server, free_port, gantry_command, java_command, start

GRPC = "grpc"
_PACKAGE = "org.gantrymq.interop.grpc"
_NODE = HERE / "client-node"
_RUST = HERE / "client-rust"


def java_proxy(directory: Path, namesrv: str, port: int | None = None, **more: object) -> Server:
    """Starts Apache's proxy in cluster mode. `more` are additional configuration keys."""
    # The proxy also opens a port for the remoting protocol.
    port = port or free_port(1)
    file = _config(directory, namesrv, port, localServeAddr="127.0.0.1", remotingListenPort=port + 1, **more)
    command = java_command(
        *("org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(file), "-n", namesrv),
        home=directory,
        options=["-Xmx512m", "-XX:MaxDirectMemorySize=256m", *JAVA_OPENS],
        version=GRPC,
    )
    return start(command, "Java proxy", port, directory)


def gantry_proxy(
    directory: Path, namesrv: str, port: int | None = None, source: Path | None = None, **more: object
) -> Server:
    """Starts this project's proxy; `more` as for Apache's. `source` is the `src` directory of another version."""
    port = port or free_port(1)
    file = _config(directory, namesrv, port, bindAddress="127.0.0.1", remotingListenPort=port + 1, **more)
    environment = {"PYTHONPATH": str(source)} if source is not None else {}
    command = gantry_command("proxy", "-pc", str(file), "-n", namesrv)
    return start(command, "gantry proxy", port, directory, environment)


def remoting_address(proxy: Server) -> str:
    """Returns the address of a proxy for remoting clients."""
    host, _, port = proxy.address.rpartition(":")
    return f"{host}:{int(port) + 1}"


def _config(directory: Path, namesrv: str, port: int, **more: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "rmq-proxy.json"
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": namesrv,
        "grpcServerPort": port,
        "grpcClientConsumerMinLongPollingTimeoutMillis": 1000,
        **more,
    }
    file.write_text(json.dumps(settings))
    return file


@dataclass(frozen=True)
class Received:
    """A message as a client received it."""

    body: str
    attempt: int
    tag: str | None
    keys: tuple[str, ...]
    message_group: str | None
    properties: dict[str, str]
    message_id: str
    lite_topic: str | None = None

    @classmethod
    def of(cls, line: dict[str, Any]) -> Received:
        return cls(
            base64.b64decode(line["body"]).decode(),
            line["delivery_attempt"],
            line.get("tag"),
            tuple(sorted(line.get("keys") or ())),
            line.get("message_group"),
            # A broker adds ORIGIN_GROUP at a redelivery.
            {name: value for name, value in line["properties"].items() if name != "ORIGIN_GROUP"},
            line["message_id"],
            line.get("lite_topic"),
        )


def message(body: str, **more: object) -> dict[str, object]:
    """Returns a message to send. `more` are the other fields of a line for GrpcProduce."""
    return {"body": base64.b64encode(body.encode()).decode(), **more}


@dataclass(frozen=True)
class Client:
    """Programs with one of Apache's clients: its name, and the command that runs a program."""

    name: str
    command: Sequence[str]

    def produce(self, proxy: str, topic: str, messages: Iterable[dict[str, object]]) -> list[str]:
        """Sends messages. Returns their ids."""
        result = self._run("GrpcProduce", proxy, topic, stdin="".join(json.dumps(line) + "\n" for line in messages))
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
        return [line["message_id"] for line in _lines(result)]

    def consume(
        self,
        proxy: str,
        group: str,
        topic: str,
        count: int,
        *,
        mode: str = "simple",
        expression: str = "*",
        timeout_s: int = 60,
    ) -> list[Received]:
        """Returns the first `count` deliveries in order."""
        result = self._run("GrpcConsume", proxy, group, topic, expression, mode, str(count), str(timeout_s))
        if result.returncode and '"settings" is null' in result.stderr:
            # Every 5 s, it removes the settings of clients without a heartbeat (GrpcClientSettingsManager.onWaitEnd).
            pytest.skip("Apache's proxy has forgotten the settings of a client that had just come")
        received = [Received.of(line) for line in _lines(result)]
        assert result.returncode == 0, f"only {len(received)} of {count}: {received}\n{result.stderr[-4000:]}"
        return received

    def consume_lite(
        self,
        proxy: str,
        group: str,
        topic: str,
        lite_topics: Iterable[str],
        count: int,
        *,
        mode: str = "push",
        timeout_s: int = 60,
    ) -> list[Received]:
        """Returns the first `count` deliveries to a consumer of these lite topics, in order. For Java's client only."""
        names = ",".join(lite_topics)
        result = self._run("GrpcConsumeLite", proxy, group, topic, names, mode, str(count), str(timeout_s))
        received = [Received.of(line) for line in _lines(result)]
        assert result.returncode == 0, f"only {len(received)} of {count}: {received}\n{result.stderr[-4000:]}"
        return received

    def _run(self, program: str, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as home:
            command = [part.format(program=program, home=home) for part in self.command]
            return subprocess.run(
                [*command, *args], input=stdin, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, cwd=home
            )


def _lines(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def java_client(*, tls: bool = False) -> Client:
    """Returns rocketmq-client-java."""
    target = HERE / "client-grpc" / "target"
    jars = [target / "classes", *sorted((target / "dependency").glob("rocketmq-client-java-*.jar"))]
    jars += sorted((target / "dependency").glob("fastjson2-2*.jar"))
    options = ["-XX:TieredStopAtLevel=1", "-Xmx256m", "-Duser.home={home}", f"-Dgantry.ssl={str(tls).lower()}"]
    command = ["java", *options, "-cp", os.pathsep.join(map(str, jars)), _PACKAGE + ".{program}"]
    return Client("java-tls" if tls else "java", command)


def python_client() -> Client:
    """Returns rocketmq-python-client.

    GANTRY_GRPC_PYTHON names its interpreter, because it needs its own grpcio version.
    """
    python = os.environ.get("GANTRY_GRPC_PYTHON", sys.executable)
    return Client("python", [python, str(HERE / "client-grpc" / "grpc_client.py"), "{program}"])


def python_client_missing() -> str | None:
    """Returns the reason why Apache's Python client cannot run, or None."""
    python = os.environ.get("GANTRY_GRPC_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import rocketmq.v5"], capture_output=True, text=True, timeout=60)
    if found.returncode == 0:
        return None
    return "rocketmq-python-client isn't installed: pip install it, and name that Python in GANTRY_GRPC_PYTHON"


def node_client() -> Client:
    """Returns rocketmq-client-nodejs."""
    return Client("node", ["node", str(_NODE / "grpc_client.js"), "{program}"])


def node_client_missing() -> str | None:
    """Returns the reason why Apache's Node client cannot run, or None. Downloads the client the first time."""
    if shutil.which("npm") is None:
        return "npm is not installed"
    if not (_NODE / "node_modules").exists():
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
        found = subprocess.run(command, cwd=_NODE, capture_output=True, text=True, timeout=300)
        if found.returncode:
            return f"npm can't install rocketmq-client-nodejs: {found.stderr[-500:]}"
    return None


def rust_client() -> Client:
    """Returns the crate rocketmq, which has no push consumer."""
    return Client("rust", [str(_RUST / "target" / "debug" / "grpc-client"), "{program}"])


def rust_client_missing() -> str | None:
    """Returns the reason why Apache's Rust client cannot run, or None. Builds the client, which first takes minutes."""
    if shutil.which("cargo") is None:
        return "cargo is not installed"
    found = subprocess.run(["cargo", "build", "--quiet"], cwd=_RUST, capture_output=True, text=True, timeout=900)
    return f"cargo can't build it: {found.stderr[-500:]}" if found.returncode else None
