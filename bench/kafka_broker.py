"""Apache Kafka beside this project's broker, for `arrow.py` and `spark.py`: broker and controller in one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from servers import free_port, missing_tools, start

HERE = Path(__file__).parent / "kafka"
JARS = HERE / "target" / "dependency"
#: Heap size of Kafka's own start script.
_OPTIONS = ["-Xms1g", "-Xmx1g", "-XX:+UseG1GC"]
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"


def build() -> None:
    """Downloads Kafka's jars to JARS. Raises RuntimeError if Maven fails."""
    if missing := missing_tools():
        raise RuntimeError(missing)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies"]
    result = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=300)
    if result.returncode:
        raise RuntimeError(f"mvn failed: {result.stdout[-2000:]}{result.stderr[-2000:]}")


@contextmanager
def kafka_broker(directory: Path, partitions: int) -> Iterator[tuple[str, int]]:
    """Runs a broker and controller in one process.

    Yields (host:port, process id). New topics have this many partitions.
    """
    directory.mkdir()
    port = free_port(1)
    config = directory / "server.properties"
    config.write_text(
        "process.roles=broker,controller\n"
        "node.id=1\n"
        f"controller.quorum.voters=1@127.0.0.1:{port + 1}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}\n"
        "controller.listener.names=CONTROLLER\n"
        f"log.dirs={directory / 'log'}\n"
        f"num.partitions={partitions}\n"
        "offsets.topic.replication.factor=1\n"
    )
    java = ["java", *_OPTIONS, "-cp", str(JARS / "*")]
    formatting = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config)]
    subprocess.run(formatting, check=True, capture_output=True, timeout=60)
    server = start([*java, "kafka.Kafka", str(config)], "Kafka broker", port, directory)
    try:
        yield server.address, server.process.pid
    finally:
        server.stop()
