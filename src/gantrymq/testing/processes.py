"""ProcessCluster: a NameServer and brokers, each in a process of its own, on this machine.

The servers end with the process that started them, however that ends: their standard input is a pipe from it, and
`--stop-on-eof` makes them stop when it closes.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from gantrymq.config import format_properties
from gantrymq.errors import GantryError

HOST = "127.0.0.1"
#: A broker that recovers a large store takes its time.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
#: With replicas, so many brokers have a message before its producer is told that it is stored.
IN_SYNC_REPLICAS = 2
#: What a server that failed to start is quoted with.
QUOTED_LOG_BYTES = 2000

_READY = re.compile(rb"ready at (\S+)\n")


class ServerProcess:
    """One `gantry namesrv`, `controller`, `broker` or `proxy`.

    Its configuration is in `directory`/conf, its log in /logs.
    """

    def __init__(
        self, command: str, name: str, directory: Path, properties: dict[str, str], pass_fds: Sequence[int]
    ) -> None:
        self.name = name
        self.address = ""
        self.log_path = directory / "logs" / f"{name}.log"
        self._config = directory / "conf" / f"{name}.properties"
        for path in (self.log_path, self._config):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(format_properties(properties))
        with self.log_path.open("ab") as log:
            # A session of its own: the terminal's Ctrl-C reaches the starter only, which stops the servers in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gantrymq.cli", command, "-c", str(self._config), "--stop-on-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=pass_fds,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self, deadline: float) -> None:
        """Waits until the server answers, at most until `deadline` (time.monotonic). Raises GantryError."""
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while not (match := _READY.search(output)):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise GantryError(f"{self.name} is not ready in time; its log is {self.log_path}")
                data = self.read_output()
                if not data:
                    raise GantryError(f"{self.name} did not start: {self._reason()}")
                output += data
        self.address = match[1].decode()

    def fileno(self) -> int:
        """Of its output, for selectors: what can be read is `read_output`'s."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read_output(self) -> bytes:
        """What it says after it was ready; b"" at its end."""
        return os.read(self.fileno(), 4096)

    def begin_stop(self) -> None:
        """Tells the server to stop."""
        if self.is_running:
            self._process.terminate()

    def stop(self) -> None:
        """Waits until the server has stopped; kills it when it takes too long."""
        self.begin_stop()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _reason(self) -> str:
        """What it says itself, or else the end of its log."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - QUOTED_LOG_BYTES))
            end = log.read().decode(errors="replace").strip() or "(nothing)"
        last = end.rpartition("\n")[2]
        return last.removeprefix("gantry: ") if last.startswith("gantry: ") else f"{self.log_path} ends with:\n{end}"


class ProcessCluster:
    """A NameServer and `brokers` masters with `replicas` - 1 slaves each, their files under `directory`.

    A context manager. `port` is the NameServer's, brokers take 1035 above it and each tenth after (9876, then 10911,
    10921 ...), their slaves the second, fourth ... port after theirs; 0 takes free ports. With `proxy` there is one,
    1795 below the NameServer (8081). With replicas a send is answered when two brokers have the message. With
    `controller` there is one, 2 above the NameServer (9878), which says who is master; at the start nobody may be yet.
    `broker_properties` are further keys of every broker's configuration, `proxy_properties` of the proxy's.
    `pass_fds` are file descriptors that stay open as long as a server lives: a lock on them ends with the last server,
    even when the starter was killed.
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
        self._port = port
        self._broker_properties = broker_properties or {}
        self._more_proxy_properties = proxy_properties or {}
        self._pass_fds = pass_fds
        self.name_server: ServerProcess | None = None
        self.controller: ServerProcess | None = None
        #: Masters and slaves; a master comes before its slaves.
        self.brokers: list[ServerProcess] = []
        self.proxy: ServerProcess | None = None

    @property
    def servers(self) -> list[ServerProcess]:
        """All processes, NameServer and controller first, the proxy last."""
        servers = [self.name_server, self.controller, *self.brokers, self.proxy]
        return [server for server in servers if server is not None]

    @property
    def namesrv_addr(self) -> str:
        """The NameServer's host:port."""
        if self.name_server is None:
            raise GantryError("the cluster has not been started")
        return self.name_server.address

    def start(self) -> None:
        """Starts every server and waits until each has registered. Raises GantryError; then none is left running."""
        deadline = time.monotonic() + START_TIMEOUT_S
        try:
            self.name_server = self._start("namesrv", "namesrv", self._namesrv_properties())
            self.name_server.wait_until_ready(deadline)
            if self._with_controller:
                self.controller = self._start("controller", "controller", self._controller_properties())
                self.controller.wait_until_ready(deadline)
            # A slave learns of its master when it registers.
            for replica in range(self._replicas):
                started = [self._start_broker(number, replica) for number in range(self._broker_count)]
                self.brokers += started
                for broker in started:
                    broker.wait_until_ready(deadline)
            if self._with_proxy:
                self.proxy = self._start("proxy", "proxy", self._proxy_properties())
                self.proxy.wait_until_ready(deadline)
        except BaseException:
            self.stop()
            raise

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
        self.start()
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
            "listenPort": str(self._port),
            "kvConfigPath": str(self._directory / "namesrv" / "kvConfig.json"),
            "configStorePath": str(self._directory / "namesrv" / "namesrv.properties"),
        }

    def _controller_properties(self) -> dict[str, str]:
        return {
            "bindAddress": HOST,
            "listenPort": str(controller_port(self._port)),
            "controllerStorePath": str(self._directory / "controller"),
            "configStorePath": str(self._directory / "controller" / "controller.properties"),
        }

    def _proxy_properties(self) -> dict[str, str]:
        return {
            "bindAddress": HOST,
            "grpcServerPort": str(proxy_port(self._port)),
            "remotingListenPort": str(proxy_remoting_port(self._port)),
            "namesrvAddr": self.namesrv_addr,
        } | self._more_proxy_properties

    def _properties_of_broker(self, number: int, replica: int = 0) -> dict[str, str]:
        name = replica_name(number, replica)
        properties = {
            "brokerName": broker_name(number),
            "brokerIP1": HOST,
            "bindAddress": HOST,
            "listenPort": str(broker_port(self._port, number, replica)),
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


def broker_port(port: int, number: int, replica: int = 0) -> int:
    """Of a broker, beside a NameServer at `port`; 0, any free one, where that is 0."""
    return port + 1035 + 10 * number + 2 * replica if port else 0


def controller_port(port: int) -> int:
    """Of a controller, beside a NameServer at `port`; 0, any free one, where that is 0."""
    return port + 2 if port else 0


def proxy_port(port: int) -> int:
    """Of a proxy, beside a NameServer at `port`; 0, any free one, where that is 0 or too low."""
    return max(port - 1795, 0)


def proxy_remoting_port(port: int) -> int:
    """The same for clients that don't speak gRPC."""
    return max(port - 1796, 0)


def replica_name(number: int, replica: int) -> str:
    """broker-a, whose slaves are broker-a-1, broker-a-2 ..."""
    return f"{broker_name(number)}-{replica}" if replica else broker_name(number)


def broker_name(number: int) -> str:
    """broker-a to broker-z, then broker-26 and so on."""
    return f"broker-{chr(ord('a') + number) if number < 26 else number}"
