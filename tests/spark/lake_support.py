"""The example that writes into a lake, killed at random, and a look at what the table has."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from cluster_support import ROOT, SPARK_HOME, environment
from waiting import wait_until

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.spark.versions import HAS_ADMISSION_CONTROL
from gantrymq.testing.processes import ProcessCluster

COUNT = 20_000
TOPIC = "lake"
SEND_AT_ONCE = 1000
#: Micro-batches of the whole.
BATCHES = 40
#: A Spark that starts on a busy machine takes a minute.
WAIT_S = 240.0
#: What the kills have left, however much: 40 micro-batches take ten minutes on a busy machine.
REST_S = 1200.0
EXAMPLE = ROOT / "examples" / "pipelines" / "lakehouse_ingest.py"
READER = Path(__file__).parent / "lake_reader.py"


def lake_jars(lake: str) -> list[Path]:
    """The jars of a lake's format in this environment, where ./dev spark-matrix puts them."""
    return sorted((Path(sys.prefix) / "lakes" / lake).glob("*.jar"))


def needs_lake(lake: str, why_not: Mapping[str, str]) -> pytest.MarkDecorator:
    """Skips where there are no jars; `why_not` has the reason for versions of Spark that none are made for."""
    version = ".".join(pyspark.__version__.split(".")[:2])
    reason = why_not.get(version, f"no jars of {lake} in this environment: ./dev spark-matrix puts them there")
    return pytest.mark.skipif(not lake_jars(lake), reason=reason)


def kill_and_count(
    lake: str, table: str, settings: Mapping[str, str], directory: Path, kills: int, name_server: str
) -> list[str]:
    """Writes the topic into `table` while the driver is killed `kills` times at random; what `lake_reader` prints."""
    submit = _submit(lake, settings)
    program = [*submit, str(EXAMPLE), "--name-server", name_server, "--topic", TOPIC, "--format", lake]
    program += ["--table", table, "--checkpoint", str(directory / "checkpoint"), "--limit", str(COUNT // BATCHES)]
    chance = random.Random()
    for _ in range(kills):
        before = _batches_begun(directory)
        if before >= BATCHES:
            # Slow machines come here late or never; the kills before were midway.
            break
        with _driver([*program, "--interval", "0 seconds"], directory) as process:

            def has_gone_on(process: subprocess.Popen[bytes] = process, before: int = before) -> bool:
                assert process.poll() is None, (directory / "driver.log").read_text()[-4000:]
                return _batches_begun(directory) > before

            wait_until(has_gone_on, WAIT_S)
            # Anywhere in a micro-batch: not a wait for a state, but where in it the kill hits.
            time.sleep(chance.uniform(0, 2))
            os.killpg(process.pid, signal.SIGKILL)
    # The first run of a Spark before 4.2 ends with the micro-batch that the last kill left unfinished.
    for _ in range(1 if HAS_ADMISSION_CONTROL else 2):
        with _driver([*program, "--once"], directory) as process:
            assert process.wait(REST_S) == 0, (directory / "driver.log").read_text()[-4000:]
    return run_with_lake(lake, settings, READER, [lake, table], directory).split()


def run_with_lake(
    lake: str, settings: Mapping[str, str], program: Path, arguments: Sequence[str], directory: Path
) -> str:
    """What a program prints in a session that has the lake."""
    printed = subprocess.run(
        [*_submit(lake, settings), str(program), *arguments],
        cwd=directory,
        env=environment(PYSPARK_PYTHON=sys.executable),
        capture_output=True,
        text=True,
        timeout=REST_S,
    )
    assert printed.returncode == 0, printed.stderr[-4000:]
    return printed.stdout


def send_all(cluster: ProcessCluster) -> None:
    async def send() -> None:
        async with Producer(cluster.namesrv_addr, "lake") as producer:
            for first in range(0, COUNT, SEND_AT_ONCE):
                numbers = range(first, first + SEND_AT_ONCE)
                await producer.send_batch([Message(TOPIC, b"%d" % n, keys=f"k{n}") for n in numbers], 10_000)

    asyncio.run(send())


def _submit(lake: str, settings: Mapping[str, str]) -> Sequence[str]:
    own = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    command += ["--jars", ",".join(map(str, lake_jars(lake)))]
    for name, value in {**own, **settings}.items():
        command += ["--conf", f"{name}={value}"]
    return command


@contextmanager
def _driver(command: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
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


def _batches_begun(directory: Path) -> int:
    offsets = directory / "checkpoint" / "offsets"
    return sum(path.name.isdecimal() for path in offsets.iterdir()) if offsets.is_dir() else 0
