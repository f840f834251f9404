"""Servers under test as processes: Apache's Java servers and this project's, with the same functions.

Each server uses free ports and its own directory. The functions wait for the start with a timeout, and end the
server by its process id.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gantrymq.cli.broker_processes import PORT_STEP
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader

HERE = Path(__file__).parent
#: Maven builds: our Java programs with Apache's newest version, those with the clients and servers of 5.4, those with
#: the clients of 4.9, those with the gRPC client and Apache's proxy, and Apache's integration tests.
BUILDS = {
    "5.5": HERE,
    "5.4": HERE / "rocketmq-5.4",
    "4.9": HERE / "client-4.9",
    "grpc": HERE / "client-grpc",
    "rocketmq-test": HERE / "rocketmq-test",
}
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

#: The broker accesses the JDK's direct buffers. Apache's runbroker.sh opens the same packages.
JAVA_OPENS = [
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
]


def missing_tools() -> str | None:
    """Returns the reason why the Java side cannot be built or run here, or None."""
    if shutil.which("mvn") is None:
        return "mvn is not installed"
    if shutil.which("java") is None:
        return "java is not installed"
    banner = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60).stderr
    version = banner.split('"')[1] if '"' in banner else "0"
    if int(version.split(".")[0]) < 17:
        return f"java is {version}: 17 or newer is needed"
    return None


def build() -> None:
    """Compiles our Java programs and copies Apache's jars to target/dependency. Fast if nothing changed."""
    for directory in BUILDS.values():
        result = subprocess.run(
            ["mvn", "-q", "-B", "package", "dependency:copy-dependencies"],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if result.returncode:
            raise RuntimeError(f"mvn failed:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")


def free_port(*offsets: int) -> int:
    """Returns a free port below the range of client ports. The ports at `offsets` from it are free, too."""
    for _ in range(200):
        port = random.randrange(12000, 32000)
        try:
            for wanted in (0, *offsets):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + wanted))
        except OSError:
            continue
        return port
    raise RuntimeError("no free port in 200 tries")


@dataclass
class Server:
    """A server process that has opened `port`."""

    process: subprocess.Popen[bytes]
    port: int
    directory: Path
    name: str
    start_s: float = field(default=0.0)
    "Seconds from the start of the process to the open port."

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def addresses(self, processes: int) -> list[str]:
        """Returns the addresses of the brokers of `gantry broker --processes`."""
        return [f"127.0.0.1:{self.port + n * PORT_STEP}" for n in range(processes)]

    def log(self) -> str:
        """Returns the end of the process's output."""
        return (self.directory / "console.log").read_text(errors="replace")[-4000:]

    def stop(self) -> None:
        """Ends the process in order (SIGTERM), so that its files are complete. A Java broker needs 15 s."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Ends the process at once (SIGKILL)."""
        self.process.kill()
        self.process.wait()


def start(
    command: list[str], name: str, port: int, directory: Path, environment: Mapping[str, str] | None = None
) -> Server:
    """Starts `command` and waits until `port` accepts connections. Raises RuntimeError with the end of its output.

    `environment` is added to this process's environment.
    """
    with (directory / "console.log").open("wb") as console:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=directory, stdout=console, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
    server = Server(process, port, directory, name)
    deadline = began + START_TIMEOUT_S
    try:
        while process.poll() is None and time.perf_counter() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                server.start_s = time.perf_counter() - began
                return server
            time.sleep(0.005)
    except BaseException:
        server.kill()
        raise
    server.stop()
    raise RuntimeError(f"{name} did not open port {port} in {START_TIMEOUT_S} s:\n{server.log()}")


def java_command(
    main_class: str, *args: str, home: Path, options: Sequence[str] = (), version: str = "5.5"
) -> list[str]:
    """Returns the command of a JVM with one of BUILDS that stores its logs and files below `home`."""
    properties = [f"-Duser.home={home}", f"-Drocketmq.home.dir={home}"]
    target = BUILDS[version] / "target"
    class_path = os.pathsep.join([str(target / "classes"), str(target / "dependency" / "*")])
    return ["java", *properties, *options, "-cp", class_path, main_class, *args]


def java_namesrv(
    directory: Path, *, options: Sequence[str] = ("-Xmx256m",), version: str = "5.5", **config: object
) -> Server:
    """Starts Apache's NameServer of a version. `config` are additional keys of its configuration file."""
    port, file = _namesrv_config(directory, config)
    command = java_command(
        "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(file), home=directory, options=options, version=version
    )
    return start(command, "Java NameServer", port, directory)


def java_broker(
    directory: Path,
    namesrv: str,
    *,
    options: Sequence[str] = ("-Xmx1g", "-XX:MaxDirectMemorySize=512m"),
    version: str = "5.5",
    **config: object,
) -> Server:
    """Starts Apache's broker of a version, and waits for its registration.

    `config` are additional keys of its configuration file.
    """
    port, file = _broker_config(directory, namesrv, config)
    command = java_command(
        "org.apache.rocketmq.broker.BrokerStartup",
        "-c",
        str(file),
        home=directory,
        options=[*options, *JAVA_OPENS],
        version=version,
    )
    return _registered(start(command, "Java broker", port, directory), namesrv)


#: Apache's servers of an earlier version.
java_namesrv_5_4 = partial(java_namesrv, version="5.4")
java_broker_5_4 = partial(java_broker, version="5.4")


def gantry_namesrv(directory: Path, *, python: str = sys.executable, **config: object) -> Server:
    """Starts this project's NameServer; `config` as for Java's. `python` is the interpreter that has the project."""
    port, file = _namesrv_config(directory, config)
    return start(gantry_command("namesrv", "-c", str(file), python=python), "gantry namesrv", port, directory)


def gantry_broker(
    directory: Path, namesrv: str, *, python: str = sys.executable, processes: int = 1, **config: object
) -> Server:
    """Starts this project's broker, and waits for its registration; `config` and `python` as for the NameServer.

    With several `processes`, each is a broker, and the server is the first of them.
    """
    port, file = _broker_config(directory, namesrv, config, processes)
    options = [] if processes == 1 else ["--processes", str(processes)]
    command = gantry_command("broker", "-c", str(file), *options, python=python)
    return _registered(start(command, "gantry broker", port, directory), namesrv, processes)


def gantry_command(*args: str, python: str = sys.executable) -> list[str]:
    """Returns a command of this project for the interpreter `python`."""
    return [python, "-m", "gantrymq.cli", *args]


def _namesrv_config(directory: Path, config: Mapping[str, object]) -> tuple[int, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "namesrv.conf"
    port = free_port()
    settings = {
        "listenPort": port,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": directory / "kvConfig.json",
        "configStorePath": directory / "namesrv.properties",
        **config,
    }
    _write_properties(file, settings)
    return port, file


def _broker_config(directory: Path, namesrv: str, config: Mapping[str, object], processes: int = 1) -> tuple[int, Path]:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "broker.conf"
    # A Java broker also opens listenPort - 2 (the "VIP" port).
    port = free_port(*(n * PORT_STEP + offset for n in range(processes) for offset in (-2, 0, 1)))
    settings = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "namesrvAddr": namesrv,
        "listenPort": port,
        "haListenPort": port + 1,
        "storePathRootDir": directory / "store",
        "storePathCommitLog": directory / "store" / "commitlog",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "brokerRole": "ASYNC_MASTER",
        "flushDiskType": "ASYNC_FLUSH",
        "autoCreateTopicEnable": "true",
        **config,
    }
    _write_properties(file, settings)
    return port, file


def _write_properties(file: Path, settings: Mapping[str, object]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def _registered(broker: Server, namesrv: str, processes: int = 1) -> Server:
    """Waits until each NameServer of `namesrv` has the address of each process. Raises RuntimeError after a timeout."""
    addresses = [address.encode() for address in broker.addresses(processes)]
    deadline = time.monotonic() + START_TIMEOUT_S
    missing = namesrv.split(";")
    try:
        while time.monotonic() < deadline and broker.process.poll() is None:
            body = call(missing[0], RequestCode.GET_BROKER_CLUSTER_INFO).body
            known = all(address in body for address in addresses)
            if known and len(missing) == 1:
                return broker
            if known:
                missing = missing[1:]
            else:
                time.sleep(0.02)
    except BaseException:
        broker.kill()
        raise
    broker.stop()
    raise RuntimeError(f"{broker.name} did not register with {namesrv} in {START_TIMEOUT_S} s:\n{broker.log()}")


def call(
    address: str, code: int, fields: dict[str, str] | None = None, timeout_s: float = 5.0, body: bytes = b""
) -> RemotingCommand:
    """Sends one request over a new connection. Returns the response."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.sendall(RemotingCommand.request(code, fields=fields, body=body).encode())
        reader = FrameReader()
        while True:
            data = connection.recv(65536)
            if not data:
                raise RuntimeError(f"{address} closed the connection on request {code}")
            for response in reader.feed(data):
                return response
