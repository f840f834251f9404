"""Spark on YARN in cluster mode: the command of docs/spark/operations.md, with Hadoop's resource manager."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from servers import HERE

from gantrymq.testing.embedded import EmbeddedCluster

sys.path.append(str(Path(__file__).parent.parent / "tests" / "spark"))

from cluster_support import (
    PROGRAM,
    SPARK_HOME,
    documented_command,
    environment,
    lake_ingest,
    pack_environment,
    run,
    started,
)
from spark_support import create_topic, send_numbers

pytestmark = pytest.mark.interop(feature="Spark", clients="gantry", servers="gantry")

BUILD = HERE / "yarn"
RUN_S = 400
#: An administrator's configuration. Spark's jars are installed already, and the node is small.
DEFAULTS = """
spark.ui.enabled false
spark.yarn.jars local:{home}/jars/*
spark.yarn.stagingDir {directory}/staging
spark.driver.memory 512m
spark.executor.memory 512m
spark.executor.instances 1
spark.yarn.report.interval 200ms
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1
"""


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yields the environment variables with the cluster's configuration for spark-submit."""
    command = ["mvn", "-q", "-B", "package", "dependency:copy-dependencies"]
    built = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS.format(home=SPARK_HOME, directory=tmp_path))
    variables = environment(SPARK_CONF_DIR=str(conf), YARN_CONF_DIR=str(conf))
    classes = f"{BUILD}/target/classes{os.pathsep}{BUILD}/target/dependency/*"
    cluster = ["java", "-Xmx256m", f"-Dtest.build.data={tmp_path}", "-cp", classes, "org.gantrymq.interop.YarnCluster"]
    with started([*cluster, conf], "(?m)^READY$", tmp_path / "yarn.log", variables):
        yield variables


@pytest.mark.timeout(900)
def test_the_documented_command(variables: dict[str, str], tmp_path: Path) -> None:
    with EmbeddedCluster(directory=tmp_path / "rocketmq") as cluster:
        create_topic(cluster, "orders", 2, [0])
        send_numbers(cluster, "orders", range(500))
        pack_environment(tmp_path)
        program = lake_ingest(cluster.name_server, "orders", tmp_path)
        run(["bash", "-ec", documented_command("YARN", {PROGRAM: program})], tmp_path, variables, RUN_S)
    bodies = pq.read_table(tmp_path / "table", columns=["body"]).column("body").to_pylist()
    assert sorted(map(int, bodies)) == list(range(500))
