"""Servers of a failover: a NameServer, one or three controllers, brokers of one name, and a proxy in front of each."""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from failover_links import Links
from failover_tools import Tools, fail_fsync, fsync_variables, mounted

from gantrymq.config import format_properties, replace_file
from gantrymq.testing.processes import HOST, START_TIMEOUT_S, ServerProcess

_ROOT = Path(__file__).parent.parent
for _directory in ("interop", "tests", "tests/controller"):
    sys.path.append(str(_ROOT / _directory))

NAME = "broker-a"
BROKERS = ("a", "b", "c")
#: Time without heartbeats after which a broker counts as dead, in milliseconds. Java's default is 10,000.
HEARTBEAT_TIMEOUT_MS = 3000
#: Interval at which Apache's controller looks for dead brokers, in milliseconds. Its default is 5,000.
SCAN_MS = 1000
CONTROLLERS = ("sqlite", "etcd", "java")


def address_of(number: int) -> str:
    """Returns the address at which the proxy of a server listens."""
    return f"127.0.2.{number}"


def free_ports(count: int) -> list[int]:
    """Returns ports that are free at all addresses and below the range of client ports."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(12000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


@contextmanager
def environment(changed: dict[str, str]) -> Iterator[None]:
    """Gives variables to processes that start in this context."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Servers:
    """All servers; a context manager.

    `kind` is one of CONTROLLERS. `broker` are further configuration keys of all brokers.

    `other_version` is a directory with another version of the package, for broker b. `tools` are those of the faults.
    """

    def __init__(
        self,
        directory: Path,
        kind: str,
        broker: dict[str, str] | None = None,
        *,
        other_version: Path | None = None,
        proxy: bool = False,
        tools: Tools | None = None,
    ) -> None:
        self.directory = directory
        self._kind = kind
        self._broker = broker or {}
        self._other_version = other_version
        self._tools = tools or Tools()
        self._stack = ExitStack()
        names = ["namesrv", *(f"controller{n}" for n in range(3 if kind == "etcd" else 1)), *BROKERS]
        if proxy:
            names.append("proxy")
        ports = free_ports(2 * len(names))
        #: Port of each server, and port for its slaves.
        self._ports = {name: (port, ports[-1 - n]) for n, (name, port) in enumerate(zip(names, ports, strict=False))}
        self._hosts = {name: address_of(n + 1) for n, name in enumerate(names)}
        self.controllers = [name for name in names if name.startswith("controller")]
        self.processes: dict[str, ServerProcess] = {}
        self.etcd_endpoints = ""

    def __enter__(self) -> Servers:
        try:
            self._start_all()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start_all(self) -> None:
        hosts, ports = self._hosts, self._ports
        if self._tools.small_disks:
            for name in BROKERS:
                self._stack.enter_context(mounted(self.directory / name))
        self.links = Links({name: [(hosts[name], port) for port in ports[name]] for name in hosts})
        self._stack.callback(self.links.stop)
        self.start("namesrv")
        if self._kind == "java":
            self._start_java_controller()
        else:
            if self._kind == "etcd":
                self._start_etcd()
            for name in self.controllers:
                self.start(name)
        for name in BROKERS:
            self.start(name)
        if "proxy" in self._hosts:
            self.start("proxy")

    def address(self, name: str) -> str:
        """Returns the public host:port of a server."""
        return f"{self._hosts[name]}:{self._ports[name][0]}"

    @property
    def names(self) -> str:
        return self.address("namesrv")

    @property
    def controller_addresses(self) -> str:
        return ";".join(map(self.address, self.controllers))

    def broker_at(self, address: str | None) -> str | None:
        """Returns the name of the broker with this public address."""
        return next((name for name in BROKERS if self.address(name) == address), None)

    def record_of(self, name: str) -> tuple[bytes, int]:
        """Returns the address of a broker in the form of the acknowledgements."""
        return socket.inet_aton(self._hosts[name]), self._ports[name][0]

    # -- faults -------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Starts a server with its existing files."""
        command = "broker" if name in BROKERS else name.rstrip("0123456789")
        properties = {"bindAddress": HOST} | self._properties(name)
        with environment(self.variables(name)):
            server = self.processes[name] = ServerProcess(command, name, self.directory, properties, ())
        self._stack.callback(server.stop)
        # The proxy needs the process before its first connection.
        self.links.process(name, server.pid)
        server.wait_until_ready(time.monotonic() + START_TIMEOUT_S)

    def set_clock(self, name: str, error_s: int) -> None:
        """Makes the clock of a broker wrong."""
        replace_file(self._clock_file(name), f"{error_s:+}\n".encode())

    def fail_fsync(self, name: str) -> None:
        """Makes every fsync of a broker fail until the broker is restarted."""
        fail_fsync(self._fsync_pipe(name), self.processes[name].pid)

    def kill(self, name: str) -> None:
        self.send_signal(name, signal.SIGKILL)
        self.processes[name].stop()

    def terminate(self, name: str) -> None:
        """Sends SIGTERM. Returns when the process has ended."""
        self.send_signal(name, signal.SIGTERM)
        self.processes[name].stop()

    def is_running(self, name: str) -> bool:
        return self.processes[name].is_running

    def send_signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.processes[name].pid, number)

    def stop_brokers(self) -> None:
        for name in BROKERS:
            self.processes[name].begin_stop()
        for name in BROKERS:
            self.processes[name].stop()

    def log(self, name: str) -> str:
        return self.processes[name].log_path.read_text(errors="replace")

    # -- configurations -----------------------------------------------------------------------------------------

    def _properties(self, name: str) -> dict[str, str]:
        port = {"listenPort": str(self._ports[name][0])}
        if name == "namesrv":
            return port | {"kvConfigPath": str(self.directory / "kvConfig.json")}
        if name == "proxy":
            return {
                "namesrvAddr": self.names,
                "remotingListenPort": str(self._ports[name][0]),
                "grpcServerPort": str(self._ports[name][1]),
                "remotingAccessAddr": self._hosts[name],
            }
        if name in self.controllers:
            return port | self._controller_properties(name)
        properties = {
            "brokerName": NAME,
            "brokerIP1": self._hosts[name],
            "haListenPort": str(self._ports[name][1]),
            "namesrvAddr": self.names,
            "storePathRootDir": str(self.directory / name),
            "enableControllerMode": "true",
            "controllerAddr": self.controller_addresses,
            "allAckInSyncStateSet": "true",
            "minInSyncReplicas": "2",
            "controllerHeartBeatTimeoutMills": str(HEARTBEAT_TIMEOUT_MS),
            # A commit can get lost with its master. These values let the broker check the transaction soon.
            "transactionTimeOut": "2000",
            "transactionCheckInterval": "1000",
            # A round writes about 10 MB.
            "mappedFileSizeCommitLog": str(64 << 20),
        }
        return port | properties | self._broker

    def _clock_file(self, name: str) -> Path:
        return self.directory / f"clock-{name}"

    def _fsync_pipe(self, name: str) -> Path:
        return self.directory / f"fsync-{name}"

    def variables(self, name: str) -> dict[str, str]:
        """Returns further environment variables of a server. With them, brokers load libfaketime and libfiu."""
        if name not in BROKERS:
            return {}
        variables = fsync_variables(self._fsync_pipe(name)) if self._tools.libfiu else {}
        if self._other_version is not None and name == BROKERS[1]:
            # The native code is of this version.
            variables |= {"PYTHONPATH": str(self._other_version), "GANTRYMQ_NATIVE": "0"}
        if self._tools.faketime is not None:
            self.set_clock(name, 0)
            variables |= {
                "LD_PRELOAD": ":".join(filter(None, (str(self._tools.faketime), variables.get("LD_PRELOAD")))),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock_file(name)),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return variables

    def _controller_properties(self, name: str) -> dict[str, str]:
        peers = ";".join(f"n{n}-{self.address(each)}" for n, each in enumerate(self.controllers))
        properties = {
            "controllerDLegerGroup": "failover",
            "controllerDLegerSelfId": f"n{self.controllers.index(name)}",
            "controllerDLegerPeers": peers,
            "controllerStorePath": str(self.directory / name),
            "configStorePath": str(self.directory / f"{name}.properties"),
        }
        if self.etcd_endpoints:
            properties["etcdEndpoints"] = self.etcd_endpoints
        return properties

    def _start_etcd(self) -> None:
        from etcd_support import etcd

        self.etcd = self._stack.enter_context(etcd(self.directory / "etcd", 3))
        self.etcd_endpoints = ";".join(member.url for member in self.etcd)

    def _start_java_controller(self) -> None:
        from servers import java_command, start

        [name] = self.controllers
        home = self.directory / name
        home.mkdir()
        properties = self._controller_properties(name) | {
            "bindAddress": HOST,
            "scanNotActiveBrokerInterval": str(SCAN_MS),
            "mappedFileSize": str(1 << 24),
        }
        file = home / "controller.conf"
        file.write_text(format_properties(properties))
        command = java_command(
            "org.apache.rocketmq.controller.ControllerStartup", "-c", str(file), home=home, options=("-Xmx256m",)
        )
        controller = start(command, "Java controller", self._ports[name][0], home)
        self._stack.callback(controller.kill)
        self.links.process(name, controller.process.pid)
