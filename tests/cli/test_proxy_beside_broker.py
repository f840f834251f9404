"""Tests of `gantry broker` with proxyMode=LOCAL: a proxy that starts and stops with its broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ports import free_port
from wait_until import wait_until

from gantrymq.system import network
from gantrymq.testing.processes import ServerProcess


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    server = ServerProcess("namesrv", "namesrv", tmp_path, {"bindAddress": "127.0.0.1", "listenPort": "0"}, ())
    server.wait_until_ready(deadline())
    yield server.address
    server.stop()


def deadline() -> float:
    import time

    return time.monotonic() + 60


def child_of(pid: int) -> int | None:
    """Returns the process id of the proxy, or None."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    proxies = [int(child) for child in children if b"proxy" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")]
    return proxies[0] if proxies else None


def listens(port: int) -> bool:
    try:
        with network.Socket() as sock:
            sock.connect(("127.0.0.1", port))
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["told", "killed"])
def test_a_proxy_lives_with_its_broker(
    tmp_path: Path, name_server: str, ports: tuple[int, int], end: signal.Signals
) -> None:
    config = tmp_path / "rmq-proxy.json"
    config.write_text(json.dumps({"grpcServerPort": ports[0], "remotingListenPort": ports[1]}))
    broker = ServerProcess(
        "broker",
        "broker",
        tmp_path,
        {
            "namesrvAddr": name_server,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(tmp_path / "store"),
            "proxyMode": "LOCAL",
            "proxyConfigPath": str(config),
        },
        (),
    )
    broker.wait_until_ready(deadline())
    assert all(map(listens, ports))
    first = child_of(broker.pid)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    # The broker starts another proxy.
    wait_until(lambda: child_of(broker.pid) not in (None, first))
    wait_until(lambda: all(map(listens, ports)))
    os.kill(broker.pid, end)
    broker.stop()
    wait_until(lambda: not any(map(listens, ports)))


def test_the_proxy_uses_the_address_server_of_its_broker(
    tmp_path: Path, name_server: str, ports: tuple[int, int]
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(name_server.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    config = tmp_path / "rmq-proxy.json"
    config.write_text(json.dumps({"grpcServerPort": ports[0], "remotingListenPort": ports[1]}))
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            broker = ServerProcess(
                "broker",
                "broker",
                tmp_path,
                {
                    "fetchNamesrvAddrByAddressServer": "true",
                    "rmqAddressServerDomain": f"127.0.0.1:{server.server_port}",
                    "bindAddress": "127.0.0.1",
                    "brokerIP1": "127.0.0.1",
                    "listenPort": "0",
                    "storePathRootDir": str(tmp_path / "store"),
                    "proxyMode": "LOCAL",
                    "proxyConfigPath": str(config),
                },
                (),
            )
            broker.wait_until_ready(deadline())
            assert all(map(listens, ports))
            broker.stop()
        finally:
            server.shutdown()


def test_another_mode_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("proxyMode=BOTH\n")
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "broker", "-c", config], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr == "gantry: proxyMode=BOTH: LOCAL or CLUSTER is expected\n"
