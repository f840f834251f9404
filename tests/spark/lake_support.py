"""Runs the example that writes into a lake, kills it at random times, and checks the table."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from cluster_support import ROOT, SPARK_HOME, environment
from kill_support import batches_begun, kill_in_a_batch

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL
from gantrymq.testing.processes import ProcessCluster

COUNT = 20_000
TOPIC = "lake"
SEND_AT_ONCE = 1000
#: Number of micro-batches of the whole topic.
BATCHES = 40
#: Timeout for the rest after the kills, in seconds. 40 micro-batches take ten minutes on a busy machine.
REST_S = 1200.0
EXAMPLE = ROOT / "examples" / "pipelines" / "lakehouse_ingest.py"
READER = Path(__file__).parent / "lake_reader.py"
#: Name of each lake format, and the Spark versions that it does not support.
_NONE_FOR = {"delta": ("Delta Lake", ("4.3",)), "iceberg": ("Apache Iceberg", ("4.2", "4.3"))}


def lake_jars(lake: str) -> list[Path]:
    """Returns the jars of a lake format in this environment, where ./dev spark-matrix puts them."""
    return sorted((Path(sys.prefix) / "lakes" / lake).glob("*.jar"))


def needs_lake(lake: str) -> pytest.MarkDecorator:
    """Skips a test if the jars are missing."""
    name, versions = _NONE_FOR[lake]
    version = ".".join(pyspark.__version__.split(".")[:2])
    reason = f"no jars of {lake} in this environment: ./dev spark-matrix puts them there"
    if version in versions:
        reason = f"there is no {name} for Spark {version}"
    return pytest.mark.skipif(not lake_jars(lake), reason=reason)


def settings_of(lake: str, directory: Path) -> Mapping[str, str]:
    """Returns the settings of a Spark session with the lake. Iceberg's tables are in `directory`."""
    if lake == "delta":
        return {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Partitions of the table's log state. The log is small here, and the default is 50 tasks for each read.
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(directory / "warehouse"),
    }


def table_of(lake: str, directory: Path) -> str:
    """Returns a table's name for the examples' option --table."""
    return str(directory / "table") if lake == "delta" else "lake.messages"


def kill_and_count(lake: str, directory: Path, kills: int, name_server: str) -> list[str]:
    """Writes the topic into a table, kills the driver `kills` times, and returns the output of `lake_reader`."""
    table = table_of(lake, directory)
    program = [*submit(lake, directory), str(EXAMPLE), "--name-server", name_server, "--topic", TOPIC, "--format", lake]
    program += ["--table", table, "--checkpoint", str(directory / "checkpoint"), "--limit", str(COUNT // BATCHES)]
    log, checkpoint = directory / "driver.log", directory / "checkpoint"
    killed = 0
    while killed < kills and (before := batches_begun(checkpoint)) < BATCHES:
        with lake_driver([*program, "--interval", "0 seconds"], directory) as process:
            kill_in_a_batch(process, log, checkpoint, before, 2)
        killed += 1
    # A fast machine finishes after fewer kills.
    assert killed > kills // 2, f"{killed} kills only, in {batches_begun(checkpoint)} micro-batches"
    run_to_the_end(program, directory)
    return run_with_lake(lake, READER, [lake, table], directory).split()


def run_to_the_end(program: Sequence[str], directory: Path) -> None:
    """Runs a program with --once until it has written everything."""
    # Before Spark 4.2, the first run ends after the micro-batch that the last kill interrupted.
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
        with lake_driver([*program, "--once"], directory) as process:
            assert process.wait(REST_S) == 0, (directory / "driver.log").read_text()[-4000:]


def run_with_lake(lake: str, program: Path, arguments: Sequence[str], directory: Path) -> str:
    """Runs a program in a session with the lake and returns its output."""
    printed = subprocess.run(
        [*submit(lake, directory), str(program), *arguments],
        cwd=directory,
        env=environment(PYSPARK_PYTHON=sys.executable),
        capture_output=True,
        text=True,
        timeout=REST_S,
    )
    # Errors of the program itself are in its output as well.
    assert printed.returncode == 0, printed.stdout[-4000:] + printed.stderr[-2000:]
    return printed.stdout


def send_all(cluster: ProcessCluster) -> None:
    async def send() -> None:
        async with Producer(cluster.namesrv_addr, "lake") as producer:
            for first in range(0, COUNT, SEND_AT_ONCE):
                numbers = range(first, first + SEND_AT_ONCE)
                await producer.send_batch([Message(TOPIC, b"%d" % n, keys=f"k{n}") for n in numbers], timeout=10)

    asyncio.run(send())


def submit(lake: str, directory: Path) -> Sequence[str]:
    """Returns the spark-submit command without the program."""
    own = {
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--jars", ",".join(map(str, lake_jars(lake)))]
    for name, value in {**own, **settings_of(lake, directory)}.items():
        command += ["--conf", f"{name}={value}"]
    return command


@contextmanager
def lake_driver(command: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the driver until the block ends, then kills its process group. Its log is `directory`/driver.log."""
    with (directory / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment(PYSPARK_PYTHON=sys.executable),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
