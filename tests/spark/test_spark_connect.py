"""Tests a Spark Connect server with clients without Java, with all of PySpark and with pyspark-client only."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_support import SPARK_HOME, environment, run, started
from spark_support import send_numbers

from gantrymq.testing.embedded import EmbeddedCluster

CLIENT = Path(__file__).parent / "connect_client.py"
#: Created by ./dev spark-matrix.
SMALL_CLIENT = Path(sys.prefix) / "client" / "bin" / "python"
RUN_S = 240

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("grpc_status") is None, reason="Spark Connect needs grpcio"),
]


@pytest.mark.parametrize(
    "python",
    [
        pytest.param(Path(sys.executable), id="pyspark"),
        pytest.param(
            SMALL_CLIENT,
            id="pyspark-client",
            marks=pytest.mark.skipif(
                not SMALL_CLIENT.exists(), reason="an environment with pyspark-client is made by ./dev spark-matrix"
            ),
        ),
    ],
)
def test_everything_from_afar(
    python: Path, cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(2)
    send_numbers(cluster, source, range(500))
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    # docs/spark/operations.md requires this of a server: its Python has the package.
    variables = environment(PYSPARK_PYTHON=sys.executable)
    server = [SPARK_HOME / "bin" / "spark-submit", "--master", "local[2]"]
    for name, value in settings.items():
        server += ["--conf", f"{name}={value}"]
    server += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with started(server, r"Spark Connect server started at: \S+?:(\d+)", tmp_path / "server.log", variables) as found:
        client = [python, CLIENT, f"sc://127.0.0.1:{found[1]}", cluster.name_server, source, target, tmp_path]
        without_java = {name: value for name, value in environment().items() if name != "JAVA_HOME"}
        printed = run(list(map(str, client)), tmp_path, without_java, RUN_S)
    got = json.loads(printed.splitlines()[-1])
    assert got == {
        "read": list(range(500)),
        "odd": 250,
        "udf": [2 * n for n in range(500)],
        "pandas_udf": [3 * n for n in range(500)],
        "mapInPandas": [4 * n for n in range(500)],
        "streamed": list(range(500)),
        "written": list(range(1000, 1010)),
    }
