"""Tests the commands of docs/spark/operations.md on a standalone cluster, which PySpark's own jars provide."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cluster_support import (
    PROGRAM,
    ROOT,
    SPARK_HOME,
    documented_command,
    environment,
    gantry,
    install_environment,
    lake_ingest,
    make_environment,
    run,
    started,
)
from spark_support import send_numbers

from gantrymq.client.producing.producer import Producer
from gantrymq.pipeline.project import create_project
from gantrymq.protocol.message import Message
from gantrymq.spark.versions import HAS_PIPELINES
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]
RUN_S = 180
#: An administrator's configuration for small machines. Tables outlive a session.
DEFAULTS = """
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.executor.memory 512m
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -Dderby.stream.error.file={directory}/derby.log
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir file://{directory}/warehouse
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={directory}/names;create=true
"""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def variables(directory: Path) -> dict[str, str]:
    (directory / "conf").mkdir()
    (directory / "conf" / "spark-defaults.conf").write_text(DEFAULTS.format(directory=directory))
    return environment(SPARK_CONF_DIR=str(directory / "conf"))


@pytest.fixture(scope="module")
def master(directory: Path, variables: dict[str, str]) -> Iterator[str]:
    """Yields the master's URL."""
    spark_class = SPARK_HOME / "bin" / "spark-class"
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        command = [spark_class, "org.apache.spark.deploy.master.Master", *address]
        found = stack.enter_context(started(command, r"spark://127\.0\.0\.1:\d+", directory / "master.log", variables))
        size = ["--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work")]
        command = [spark_class, "org.apache.spark.deploy.worker.Worker", *address, *size, found.group()]
        stack.enter_context(started(command, "Successfully registered", directory / "worker.log", variables))
        yield found.group()


@pytest.mark.skipif(importlib.util.find_spec("venv_pack") is None, reason="venv-pack packs the environment")
def test_a_packed_environment(
    cluster: EmbeddedCluster,
    new_topic: NewTopic,
    master: str,
    variables: dict[str, str],
    directory: Path,
    tmp_path: Path,
) -> None:
    """Workers have only Spark. The archive contains the package and its dependencies."""
    topic = new_topic(2)
    send_numbers(cluster, topic, range(500))
    install_environment(tmp_path)
    pack = documented_command("Standalone", {}, "environment/bin/venv-pack").splitlines()[0]
    assert "--exclude" in pack
    pack = pack.replace("environment/bin/venv-pack", f"{sys.executable} -m venv_pack")
    run(["bash", "-ec", pack], tmp_path, variables, RUN_S)
    program = lake_ingest(cluster.name_server, topic, tmp_path)
    command = documented_command("Standalone", {"spark://spark1:7077": master, PROGRAM: program})
    run(["bash", "-ec", command], tmp_path, variables, RUN_S)
    bodies = pq.read_table(tmp_path / "table", columns=["body"]).column("body").to_pylist()
    assert sorted(map(int, bodies)) == list(range(500))
    # The package is only where the executor unpacked the archive.
    assert list(directory.glob("work/app-*/*/environment/lib/python*/site-packages/gantrymq/arrow/rows.py"))
    bare = make_environment(tmp_path / "bare") / "bin" / "python"
    alone = subprocess.run([bare, "-c", "import gantrymq"], cwd=tmp_path, env=variables, capture_output=True)
    assert b"ModuleNotFoundError" in alone.stderr


def test_py_files(
    cluster: EmbeddedCluster, new_topic: NewTopic, master: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """Workers have the dependencies of the package, but not the package."""
    topic = new_topic(2)
    send_numbers(cluster, topic, range(500))
    python = make_environment(tmp_path, sysconfig.get_path("purelib")) / "bin" / "python"
    alone = subprocess.run([python, "-c", "import gantrymq"], cwd=tmp_path, env=variables, capture_output=True)
    assert b"ModuleNotFoundError" in alone.stderr
    program = lake_ingest(cluster.name_server, topic, tmp_path)
    (tmp_path / "gantrymq.zip").symlink_to(shutil.make_archive(str(tmp_path / "package"), "zip", ROOT / "src"))
    command = documented_command("A package without an installation", {"spark://spark1:7077": master, PROGRAM: program})
    command = command.replace("/opt/needs/bin/python", str(python))
    run(["bash", "-ec", command], tmp_path, variables | {"PATH": f"{python.parent}:{variables['PATH']}"}, RUN_S)
    bodies = pq.read_table(tmp_path / "table", columns=["body"]).column("body").to_pylist()
    assert sorted(map(int, bodies)) == list(range(500))


LIMITED = """
import resource
import sys

import pyarrow as pa

from gantrymq.spark import register, session_builder

master, name_server, topic, limit = sys.argv[1:]
spark = (
    session_builder("limited")
    .master(master)
    .config("spark.executor.pyspark.memory", limit)
    # Without this option, each worker of a standalone cluster gets the whole limit.
    .config("spark.executor.cores", "2")
    .config("spark.python.worker.reuse", "false")
    .getOrCreate()
)
register(spark)
spark.sparkContext.setLogLevel("ERROR")
messages = spark.read.format("rocketmq").options(nameServer=name_server, subscribe=topic).load()


def limits(batches):
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": [rows], "limit": [resource.getrlimit(resource.RLIMIT_AS)[0]]})


found = messages.select("body").mapInArrow(limits, "rows long, limit long").collect()
print("rows", sum(row.rows for row in found), "limits", {row.limit for row in found})
"""


def test_workers_with_the_documented_memory_limit(
    cluster: EmbeddedCluster, new_topic: NewTopic, master: str, variables: dict[str, str], tmp_path: Path
) -> None:
    """docs/spark/operations.md: a worker that reads a topic fits into 1 GiB of address space for each core."""
    topic = new_topic(2)
    send_numbers(cluster, topic, range(20_000))
    (tmp_path / "limited.py").write_text(LIMITED)
    arguments = [master, cluster.name_server, topic]
    printed = run([sys.executable, tmp_path / "limited.py", *arguments, "2g"], tmp_path, variables, RUN_S)
    assert f"rows 20000 limits {{{1 << 30}}}" in printed


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="Spark's pipelines need grpcio")
@pytest.mark.skipif(not HAS_PIPELINES, reason="declarative pipelines begin with Spark 4.1")
def test_a_pipeline(
    cluster: EmbeddedCluster, master: str, variables: dict[str, str], directory: Path, tmp_path: Path
) -> None:
    project = create_project(tmp_path / "shop")
    command = gantry("pipeline", "run", "--name-server", cluster.name_server, "--master", master)
    for number, quantity in enumerate((1, 2, 1000)):
        send_order(cluster, f"order-{number}", quantity)
    assert "large-orders has 1 messages" in run(command, project, variables, RUN_S)
    assert pq.read_table(directory / "warehouse" / "silver_orders").num_rows == 3


def send_order(cluster: EmbeddedCluster, name: str, quantity: int) -> None:
    order = {"id": name, "customer": "c", "item": "tea", "quantity": quantity, "price_cents": 450}

    async def send() -> None:
        async with Producer(cluster.name_server, "orders") as producer:
            await producer.send(Message("orders", json.dumps(order).encode()))

    asyncio.run(send())
