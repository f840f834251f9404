"""The demo's Spark: a session on this machine's cores, and its end with the JVM's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantrymq.spark import register, session_builder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_TIMEOUT_S = 30.0


def start_spark(scratch: Path, log: Path) -> SparkSession:
    """A session with the data source registered. `scratch` takes its temporary files, `log` what it would print."""
    scratch.mkdir(parents=True, exist_ok=True)
    with _stderr_in(log):
        spark = _session(scratch)
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def _session(scratch: Path) -> SparkSession:
    return (
        session_builder("gantry-demo")
        .master("local[*]")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        # In so short a life the JVM's second compiler costs more than it brings: 65 s of CPU for the year, 45 without.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # As many as there are cores to sort and count with, not Spark's 200.
        .config("spark.sql.shuffle.partitions", str(min(8, os.cpu_count() or 2)))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .getOrCreate()
    )


@contextlib.contextmanager
def _stderr_in(log: Path) -> Iterator[None]:
    """Standard error goes to `log`; a process that is started meanwhile keeps that."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def stop_spark(session: Future[SparkSession]) -> None:
    """Ends the session, also one that is still starting, and waits for the JVM to be gone."""
    # One that failed to start has nothing to stop.
    with contextlib.suppress(Exception):
        spark = session.result(STOP_TIMEOUT_S)
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        jvm: subprocess.Popen[bytes] = gateway.proc
        if jvm.stdin is not None:
            # The JVM ends when its standard input does.
            jvm.stdin.close()
        jvm.wait(STOP_TIMEOUT_S)
