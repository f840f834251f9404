"""Starts a Spark session on the cores of this machine, and stops it together with its JVM."""

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
    """Returns a session with the data source. Temporary files are in `scratch`, Spark's output in the file `log`."""
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
        # The run is too short for the JVM's second compiler. The demo takes 65 s of CPU time with it, 45 s without.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # One partition per core, at most 8, instead of Spark's 200.
        .config("spark.sql.shuffle.partitions", str(min(8, os.cpu_count() or 2)))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .getOrCreate()
    )


@contextlib.contextmanager
def _stderr_in(log: Path) -> Iterator[None]:
    """Redirects standard error to `log`. Processes that are started in this block inherit it, and keep it."""
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
    """Stops the session, even if it is still starting, and waits until the JVM has exited."""
    # A session that failed to start needs no stop.
    with contextlib.suppress(Exception):
        spark = session.result(STOP_TIMEOUT_S)
        gateway: Any = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        jvm: subprocess.Popen[bytes] = gateway.proc
        if jvm.stdin is not None:
            # The JVM exits when its standard input is closed.
            jvm.stdin.close()
        jvm.wait(STOP_TIMEOUT_S)
