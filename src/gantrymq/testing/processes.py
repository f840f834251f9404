"""ProcessCluster: a NameServer and brokers on this machine, each in its own process.

The servers stop when the process that started them ends, even if it is killed. Their standard input is a pipe from this
process. With `--stop-on-eof`, they stop when the pipe closes.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from gantrymq.config import changed_properties, format_properties, parse_properties, read_properties, replace_file
from gantrymq.errors import GantryError
from gantrymq.testing.cluster_ports import cluster_ports

HOST = "127.0.0.1"
#: Longest time for the start of all servers, s. A broker with a large store needs time for recovery.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
#: If a broker has several replicas, the number of replicas that must have a message before its send succeeds.
IN_SYNC_REPLICAS = 2
#: Maximum size of the end of the log that an error quotes, in bytes.
QUOTED_LOG_BYTES = 2000

_READY = re.compile(rb"ready at (\S+)\n")


class ServerProcess:
    """A process of `gantry namesrv`, `controller`, `broker` or `proxy`. Its files are in `directory`."""

    def __init__(
        self, command: str, name: str, directory: Path, properties: dict[str, str], pass_fds: Sequence[int]
    ) -> None:
        self.name = name
        self.address = ""
        self.log_path = directory / "logs" / f"{name}.log"
        self._command = command
        self._config = directory / "conf" / f"{name}.properties"
        self._pass_fds = pass_fds
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(format_properties(properties))
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        #: If true, the server has been ready since its last start.
        self.is_ready = False
        self._output = b""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            # Its own session, so that Ctrl-C in the terminal reaches only the parent, which stops the servers in order.
            return subprocess.Popen(
                [sys.executable, "-m", "gantrymq.cli", self._command, "-c", str(self._config), "--stop-on-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=self._pass_fds,
            )

    def restart(self) -> None:
        """Starts a stopped broker again, at the same port. Does not wait until it is ready.

        Keeps all other keys in the configuration file, because users and admin requests may have changed them. Raises
        ConfigError if the file is invalid, OSError if the process cannot be started.
        """
        text = read_properties(self._config)
        port = self.address.rpartition(":")[2]
        if parse_properties(text, source=str(self._config)).get("listenPort") != port:
            replace_file(self._config, changed_properties(text, {"listenPort": port}).encode())
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code as of the last `is_running` or `stop`, negative for a signal. None if the process runs."""
        return self._process.returncode

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, deadline: float) -> None:
        """Waits until the server is ready, at most until `deadline` (time.monotonic). Raises GantryError."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while not self.is_ready:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise GantryError(f"{self.name} is not ready in time; its log is {self.log_path}")
                if not self.read_output():
                    raise GantryError(f"{self.name} did not start: {self._reason()}")

    def fileno(self) -> int:
        """Returns the file descriptor of its output, for selectors. Read it with `read_output`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read_output(self) -> bytes:
        """Reads output, and sets `address` and `is_ready` when the server is ready. Returns b"" at the end."""
        data = os.read(self.fileno(), 4096)
        if not self.is_ready:
            self._output += data
            if match := _READY.search(self._output):
                self.is_ready = True
                self.address = match[1].decode()
        return data

    def begin_stop(self) -> None:
        """Sends the server a signal to stop."""
        if self.is_running:
            self._process.terminate()

    def kill(self) -> None:
        """Kills the server without waiting for its end."""
        self._process.kill()

    def stop(self) -> None:
        """Waits until the server has stopped. Kills it after STOP_TIMEOUT_S."""
        self.begin_stop()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def ending(self) -> str:
        """Returns how a stopped server ended, with the last line of its log."""
        code = self._process.returncode
        how = f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        last = self._log_end().rpartition("\n")[2]
        return f"{self.name} (pid {self.pid}) {how}; last log line: {last}"

    def _reason(self) -> str:
        """Returns the error of the server, or the end of its log."""
        end = self._log_end()
        last = end.rpartition("\n")[2]
        return last.removeprefix("gantry: ") if last.startswith("gantry: ") else f"{self.log_path} ends with:\n{end}"

    def _log_end(self) -> str:
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - QUOTED_LOG_BYTES))
                return log.read().decode(errors="replace").strip() or "(nothing)"
        except OSError:
            return "(no log)"


class ProcessCluster:
    """A NameServer and `brokers` masters with `replicas` - 1 slaves each. Use it as a context manager.

    Args:
        directory: Directory of all files.
        brokers: Number of masters. Default: 1.
        replicas: Number of replicas of each broker, including the master. With several, a send succeeds when two of
            them have the message. Default: 1.
        proxy: Starts a proxy.
        controller: Starts a controller. It elects the masters, so there may be none right after the start.
        port: Port of the NameServer. `cluster_ports` returns the ports of the other servers. 0 uses free ports.
        broker_properties: Further keys of every broker's configuration.
        proxy_properties: Further keys of the proxy's configuration.
        pass_fds: File descriptors that all servers inherit. A lock on one of them is released when the last server
            ends, even if the parent was killed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        replicas: int = 1,
        proxy: bool = False,
        controller: bool = False,
        port: int = 0,
        broker_properties: dict[str, str] | None = None,
        proxy_properties: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._directory = directory
        self._broker_count = brokers
        self._replicas = replicas
        self._with_proxy = proxy
        self._with_controller = controller
        self._ports = cluster_ports(port)
        self._broker_properties = broker_properties or {}
        self._more_proxy_properties = proxy_properties or {}
        self._pass_fds = pass_fds
        self.name_server: ServerProcess | None = None
        self.controller: ServerProcess | None = None
        #: Masters and slaves. Each master comes before its slaves.
        self.brokers: list[ServerProcess] = []
        self.proxy: ServerProcess | None = None

    @property
    def servers(self) -> list[ServerProcess]:
        """All processes, NameServer and controller first, the proxy last."""
        servers = [self.name_server, self.controller, *self.brokers, self.proxy]
        return [server for server in servers if server is not None]

    @property
    def namesrv_addr(self) -> str:
        """HOST:PORT of the NameServer. Raises GantryError before the start."""
        if self.name_server is None:
            raise GantryError("the cluster has not been started")
        return self.name_server.address

    def start(self) -> None:
        """Starts every server and waits until all have registered. After an error, call `stop`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        self.name_server = self._start("namesrv", "namesrv", self._namesrv_properties())
        self.name_server.wait_until_ready(deadline)
        if self._with_controller:
            self.controller = self._start("controller", "controller", self._controller_properties())
            self.controller.wait_until_ready(deadline)
        # A slave gets the address of its master when it registers, so masters start first.
        for replica in range(self._replicas):
            started = [self._start_broker(number, replica) for number in range(self._broker_count)]
            self.brokers += started
            for broker in started:
                broker.wait_until_ready(deadline)
        if self._with_proxy:
            self.proxy = self._start("proxy", "proxy", self._proxy_properties())
            self.proxy.wait_until_ready(deadline)

    def stop(self) -> None:
        """Stops proxy, brokers, controller, then the NameServer, and waits until their processes have ended."""
        if self.proxy is not None:
            self.proxy.stop()
        for broker in self.brokers:
            broker.begin_stop()
        for broker in self.brokers:
            broker.stop()
        if self.controller is not None:
            self.controller.stop()
        if self.name_server is not None:
            self.name_server.stop()

    def __enter__(self) -> ProcessCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _start_broker(self, number: int, replica: int) -> ServerProcess:
        return self._start("broker", replica_name(number, replica), self._properties_of_broker(number, replica))

    def _start(self, command: str, name: str, properties: dict[str, str]) -> ServerProcess:
        return ServerProcess(command, name, self._directory, properties, self._pass_fds)

    def _namesrv_properties(self) -> dict[str, str]:
        return {
            "bindAddress": HOST,
            "listenPort": str(self._ports.name_server),
            "kvConfigPath": str(self._directory / "namesrv" / "kvConfig.json"),
            "configStorePath": str(self._directory / "namesrv" / "namesrv.properties"),
        }

    def _controller_properties(self) -> dict[str, str]:
        return {
            "bindAddress": HOST,
            "listenPort": str(self._ports.controller),
            "controllerStorePath": str(self._directory / "controller"),
            "configStorePath": str(self._directory / "controller" / "controller.properties"),
        }

    def _proxy_properties(self) -> dict[str, str]:
        return {
            "bindAddress": HOST,
            "grpcServerPort": str(self._ports.proxy),
            "remotingListenPort": str(self._ports.proxy_remoting),
            "namesrvAddr": self.namesrv_addr,
        } | self._more_proxy_properties

    def _properties_of_broker(self, number: int, replica: int = 0) -> dict[str, str]:
        name = replica_name(number, replica)
        properties = {
            "brokerName": broker_name(number),
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(self._ports.broker(number, replica)),
            "namesrvAddr": self.namesrv_addr,
            "storePathRootDir": str(self._directory / name),
            "storePathCommitLog": str(self._directory / name / "commitlog"),
        }
        if self.controller is not None:
            properties |= {
                "enableControllerMode": "true",
                "controllerAddr": self.controller.address,
                "allAckInSyncStateSet": "true",
                "minInSyncReplicas": str(min(IN_SYNC_REPLICAS, self._replicas)),
                "slaveReadEnable": "true",
            }
        elif self._replicas > 1:
            properties |= {
                "brokerId": str(replica),
                "brokerRole": "SLAVE" if replica else "SYNC_MASTER",
                "inSyncReplicas": str(IN_SYNC_REPLICAS),
                "slaveReadEnable": "true",
            }
        return properties | self._broker_properties


def replica_name(number: int, replica: int) -> str:
    """Returns the name of a server: broker-a for a master, broker-a-1, broker-a-2 ... for its slaves."""
    return f"{broker_name(number)}-{replica}" if replica else broker_name(number)


def broker_name(number: int) -> str:
    """Returns broker-a to broker-z, then broker-26 and so on."""
    return f"broker-{chr(ord('a') + number) if number < 26 else number}"
