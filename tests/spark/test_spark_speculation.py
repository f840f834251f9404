"""Tests that speculative copies of a slow task, on a cluster of two workers, store each row once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from cluster_support import ROOT, SPARK_HOME, environment, run, started
from exactly_once_support import numbers
from speculation_driver import PARTITIONS, ROWS

from gantrymq.testing.embedded import EmbeddedCluster

RUN_S = 400
DRIVER = Path(__file__).parent / "speculation_driver.py"
DEFAULTS = """
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.executor.cores 1
spark.executor.memory 512m
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_copies_of_a_slow_task(cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path) -> None:
    once, transactional = new_topic(2), new_topic(2)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    variables = environment(SPARK_CONF_DIR=str(tmp_path / "conf"), PYTHONPATH=f"{ROOT / 'src'}:{DRIVER.parent}")
    with ExitStack() as stack:
        spark_class = SPARK_HOME / "bin" / "spark-class"
        command = [spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        log = tmp_path / "master.log"
        master = stack.enter_context(
            started([*command, "--webui-port", "0"], r"spark://127\.0\.0\.1:\d+", log, variables)
        ).group()
        # Spark never runs a copy on the host of the first attempt.
        for host in ("127.0.0.1", "127.0.0.2"):
            command = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host, "--port", "0"]
            command += ["--webui-port", "0", "--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / host)]
            log = tmp_path / f"worker-{host}.log"
            stack.enter_context(started([*command, master], "Successfully registered", log, variables))
        (tmp_path / "attempts").mkdir()
        arguments = [master, cluster.name_server, once, transactional, str(tmp_path / "attempts")]
        run([sys.executable, DRIVER, *arguments], tmp_path, variables, RUN_S)
    for directory in (tmp_path / "attempts", tmp_path / "attempts" / "second"):
        attempts = {path.name for path in directory.iterdir() if path.is_file()}
        assert attempts >= {"0-1", *(f"{partition}-0" for partition in range(PARTITIONS))}
    for topic in (once, transactional):
        assert Counter(numbers(cluster.name_server, topic)) == Counter(range(ROWS))
