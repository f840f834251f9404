"""Java's NameServer and broker as processes, for tests against the reference."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0
_JAVA = [
    "java",
    "-Xmx700m",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
]


@contextmanager
def running(jars: Path, directory: Path, delay_levels: str) -> Iterator[str]:
    """Yields host:port of a NameServer with one registered broker."""
    (directory / "home" / "conf").mkdir(parents=True)
    name_server_port, broker_port = _free_port(), _free_port()
    (directory / "namesrv.conf").write_text(f"listenPort={name_server_port}\n")
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": broker_port,
        "haListenPort": _free_port(),
        "namesrvAddr": f"127.0.0.1:{name_server_port}",
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "autoCreateTopicEnable": "true",
        "enablePropertyFilter": "true",
        "messageDelayLevel": delay_levels,
    }
    (directory / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with ExitStack() as stack:
        for start_class, configuration, port in (
            ("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv.conf", name_server_port),
            ("org.apache.rocketmq.broker.BrokerStartup", "broker.conf", broker_port),
        ):
            process = stack.enter_context(_process(jars, directory, start_class, configuration))
            _wait_for_port(port, process)
        yield f"127.0.0.1:{name_server_port}"


@contextmanager
def _process(jars: Path, directory: Path, start_class: str, configuration: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*_JAVA, f"-Duser.home={directory}", "-cp", f"{jars}/*", start_class, "-c", configuration]
    with (directory / f"{configuration}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=log,
            stderr=log,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "ROCKETMQ_HOME": str(directory / "home")},
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"Java's server on port {port} did not start: {process.args!r}")


def _free_port() -> int:
    """Returns a port for which the second one below it is free, too. Java's broker also uses it."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port
