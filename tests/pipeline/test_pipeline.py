"""Tests that a new project of `gantry pipeline` runs unchanged, twice, and into its own tables and topic."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from gantrymq.client.producing.producer import Producer
from gantrymq.contexts import Context, Contexts
from gantrymq.errors import ConfigError
from gantrymq.pipeline.project import PROGRAM, SAMPLE, SPEC, STATE, create_project, sample_orders, templates
from gantrymq.pipeline.spark_log import without_java_frames
from gantrymq.protocol.message import Message
from gantrymq.store.config import StoreConfig
from gantrymq.store.dump import MessageFilter, dump
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster

RUN_TIMEOUT_S = 600
LAKES = Path(__file__).parents[2] / "docs" / "spark" / "lakes.md"
needs_connect = pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None, reason="Spark's pipelines need grpcio: gantrymq[pipelines]"
)
HAS_SPARK = importlib.util.find_spec("pyspark") is not None
HAS_PIPELINES = HAS_SPARK and importlib.util.find_spec("pyspark.pipelines") is not None
needs_pipelines = pytest.mark.skipif(not HAS_PIPELINES, reason="declarative pipelines begin with Spark 4.1")


def start_gantry(
    directory: Path, *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "pipeline", *arguments],
        cwd=directory,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def gantry(
    directory: Path, *arguments: str | Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    process = start_gantry(directory, *arguments, environment=environment)
    return result_of(process, arguments)


def result_of(process: subprocess.Popen[str], arguments: Sequence[str | Path] = ()) -> subprocess.CompletedProcess[str]:
    try:
        output, errors = process.communicate(timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def expected_sales() -> Counter[tuple[str, str]]:
    """Returns the expected sales in cents by day and item."""
    sales: Counter[tuple[str, str]] = Counter()
    for order in orders().values():
        sales[order["time"][:10], order["item"]] += order["quantity"] * order["price_cents"]
    return sales


def orders() -> dict[str, dict[str, object]]:
    found = {}
    for line in sample_orders():
        if line.startswith("{"):
            order = json.loads(line)
            found[order["id"]] = order
    return found


def sales(project: Path) -> Counter[tuple[str, str]]:
    rows = pq.read_table(project / STATE / "tables" / "gold_sales").to_pylist()
    return Counter({(str(row["day"]), row["item"]): row["cents"] for row in rows})


def test_a_new_project(tmp_path: Path) -> None:
    done = gantry(tmp_path, "init", "shop")
    assert done.returncode == 0, done.stderr
    assert "cd shop" in done.stdout
    project = tmp_path / "shop"
    assert {path.name for path in project.iterdir()} == {".gitignore", "README.md", SPEC, "sample", "transformations"}
    spec = (project / SPEC).read_text()
    assert 'name: "shop"\n' in spec
    assert "{{" not in spec + (project / "README.md").read_text()
    assert (project / SAMPLE).read_text().splitlines() == sample_orders()
    compile((project / "transformations" / "orders.py").read_text(), "orders.py", "exec")


@pytest.mark.parametrize("name", ["123", "null", "~", "магазин", "订单"])
def test_names_that_yaml_or_a_uri_takes_for_something_else(name: str, tmp_path: Path) -> None:
    project = create_project(tmp_path / name)
    spec = msgspec.yaml.decode((project / SPEC).read_text())
    assert spec["name"] == name
    # Spark does not decode escapes: tables would be in a directory beside the project.
    assert spec["storage"] == f"file://{project / STATE / 'storage'}"
    assert (project / "README.md").read_text().startswith(f"# {name}\n")


@pytest.mark.parametrize("name", ["my shop", "shop#1", "50%", "a;b", "what?", 'tea"s', "[shop]"])
def test_names_that_spark_has_no_directories_of(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes no spaces"):
        create_project(tmp_path / name)
    assert not (tmp_path / name).exists()
    # A plain program uses only the paths that it is given, so any name is valid.
    create_project(tmp_path / name, "sessions")


def test_programs(tmp_path: Path) -> None:
    done = gantry(tmp_path, "init", "planes", "--template", "change-capture")
    assert done.returncode == 0, done.stderr
    assert "cd planes\n    python pipeline.py --help" in done.stdout
    examples = Path(__file__).parent.parent.parent / "examples" / "pipelines"
    assert {name.replace("-", "_") + ".py" for name in templates()} == {path.name for path in examples.glob("*.py")}
    for name, example in templates().items():
        project = create_project(tmp_path / name, name)
        text = (project / PROGRAM).read_text()
        assert text.replace(PROGRAM, example.name) == example.read_text()
        readme = (project / "README.md").read_text()
        assert readme.startswith(f"# {name}\n\n")
        assert f"{PROGRAM} " in readme
        assert example.name not in readme
    assert (tmp_path / "planes" / PROGRAM).read_text() == (tmp_path / "change-capture" / PROGRAM).read_text()


def test_a_template_that_there_is_none_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no template 'cdc'; there are orders, backfill-then-live, change-capture, "):
        create_project(tmp_path / "shop", "cdc")
    assert not (tmp_path / "shop").exists()


@needs_connect
@needs_pipelines
def test_a_program_is_no_declarative_pipeline(tmp_path: Path) -> None:
    create_project(tmp_path / "planes", "change-capture")
    done = gantry(tmp_path, "run", "planes")
    assert done.returncode == 1
    assert "is a program, no declarative pipeline: python pipeline.py --help" in done.stderr


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    create_project(tmp_path / "shop")
    with pytest.raises(ConfigError, match="is there already"):
        create_project(tmp_path / "shop")


@needs_connect
@needs_pipelines
def test_a_directory_that_is_no_project(tmp_path: Path) -> None:
    done = gantry(tmp_path, "run")
    assert done.returncode == 1
    assert f"{tmp_path} has no {SPEC}" in done.stderr


@needs_connect
@needs_pipelines
def test_a_context_that_is_not_there(tmp_path: Path) -> None:
    project = create_project(tmp_path / "shop")
    environment = contexts(tmp_path, "127.0.0.1:1")
    for arguments, more in ((["--context", "lost"], {}), ([], {"GANTRY_CONTEXT": "lost"})):
        done = gantry(project, "run", *arguments, environment=environment | more)
        assert done.returncode == 1
        assert "there is no context 'lost'; known: prod" in done.stderr


def contexts(directory: Path, name_servers: str) -> dict[str, str]:
    """Returns environment variables with the context `prod`."""
    home = directory / "config"
    Contexts(home / "gantrymq" / "contexts.json").add("prod", Context(name_servers))
    return {"XDG_CONFIG_HOME": str(home)}


@pytest.mark.skipif(not HAS_SPARK or HAS_PIPELINES, reason="this Spark has declarative pipelines, or there is none")
def test_a_spark_without_pipelines_is_named(tmp_path: Path) -> None:
    done = gantry(tmp_path, "run")
    assert done.returncode == 1
    assert "declarative pipelines begin with Spark 4.1; this is pyspark 4.0" in done.stderr


@pytest.mark.skipif(not HAS_SPARK, reason="needs gantrymq[spark]")
async def test_a_topic_that_no_message_has_made_has_none() -> None:
    from gantrymq.pipeline.run import message_count

    with EmbeddedCluster() as cluster:
        assert await message_count(cluster.name_server, "large-orders") == 0


@needs_connect
@needs_pipelines
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_TIMEOUT_S + 20)
@pytest.mark.nightly
def test_two_projects_run_at_a_time_and_one_again(tmp_path: Path) -> None:
    projects = [create_project(tmp_path / name) for name in ("market", "shop")]
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda project: gantry(project, "run"), projects):
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Run is COMPLETED" in done.stdout
    project = projects[-1]
    large = {order["id"] for order in orders().values() if order["quantity"] * order["price_cents"] >= 10_000}
    copies = [line for line in sample_orders() if line.startswith("{")]
    assert len(copies) == len(orders()) + 1
    assert "502 messages of sample/orders.jsonl sent to orders" in done.stdout
    assert f"large-orders has {len(large)} messages" in done.stdout
    assert sales(project) == expected_sales()

    store = StoreConfig(project / STATE / "cluster" / "broker-a")
    bodies = [json.loads(message.body) for message in dump(store, MessageFilter(topic="large-orders"))]
    assert {body["id"] for body in bodies} == large

    # A run against an existing cluster, with one new order.
    with ProcessCluster(project / STATE / "cluster") as cluster:
        send(cluster.namesrv_addr, {"id": "new", "item": "tea", "quantity": 1000, "price_cents": 450})
        # The context provides keys and TLS (none here) also if `--name-server` overrides its address.
        done = gantry(
            tmp_path, "run", "shop", "--name-server", cluster.namesrv_addr, "--context", "prod", "--master", "local[2]",
            environment=contexts(tmp_path, "127.0.0.1:1"),
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sample" not in done.stdout
    assert f"large-orders has {len(large) + 1} messages" in done.stdout
    assert sales(project) == expected_sales() + Counter({("None", "tea"): 450_000})


@needs_connect
@needs_pipelines
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(RUN_TIMEOUT_S + 20)
def test_the_tables_of_the_docs_in_sql(tmp_path: Path) -> None:
    project = create_project(tmp_path / "shop")
    [statements] = re.findall(r"^```sql\n(.*?)^```$", LAKES.read_text(), re.DOTALL | re.MULTILINE)
    (project / "transformations" / "sales.sql").write_text(statements)
    program = project / "transformations" / "orders.py"
    before, silver, rest = program.read_text().partition('@dp.table(comment="The orders among them.")')
    sink = rest.index("dp.create_sink(")
    assert silver
    program.write_text(before + rest[sink:])
    done = gantry(project, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sales(project) == expected_sales()


#: The beginning of a line in a stack trace of Java.
FRAME = "\tat "


@needs_connect
@needs_pipelines
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(RUN_TIMEOUT_S + 20)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)], ids=lambda number: number.name
)
def test_an_interrupted_run(number: signal.Signals, tmp_path: Path) -> None:
    project = create_project(tmp_path / "shop")
    process = start_gantry(project, "run")
    assert process.stdout is not None
    for line in process.stdout:
        if "bronze_orders is RUNNING" in line:
            break
    # A terminal sends SIGINT to every process of the group.
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    done = result_of(process)
    assert done.returncode == 128 + number, done.stderr
    assert "interrupted: the next run continues where this one ended" in done.stderr
    assert FRAME not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert (project / STATE / "spark.log").exists()


@needs_connect
@needs_pipelines
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(RUN_TIMEOUT_S + 20)
def test_a_run_that_fails(tmp_path: Path) -> None:
    project = create_project(tmp_path / "shop")
    path = project / "transformations" / "orders.py"
    failing = 'F.coalesce(F.raise_error(F.lit("no such order")).cast("long"), total).alias'
    path.write_text(path.read_text().replace("total.alias", failing))
    spec = project / SPEC
    spec.write_text(spec.read_text() + '  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n')
    done = gantry(project, "run")
    assert done.returncode == 1
    assert "no such order" in done.stdout + done.stderr
    log = project / STATE / "spark.log"
    assert done.stderr.rstrip().endswith(f"the log of Spark is {log}")
    assert FRAME not in done.stdout + done.stderr
    assert FRAME in log.read_text()


def test_an_error_text_without_java_frames() -> None:
    text = (
        "[STREAM_FAILED] Query terminated: Job aborted\n\tat org.apache.spark.Task.run(Task.scala:147)\n"
        "\tat java.base/java.lang.Thread.run(Thread.java:840)\n\t... 4 more\n"
        "Caused by: no such order at the shop (Leeds)\n\nDriver stacktrace:"
    )
    assert without_java_frames(text) == (
        "[STREAM_FAILED] Query terminated: Job aborted\nCaused by: no such order at the shop (Leeds)"
    )


def send(name_server: str, order: dict[str, object]) -> None:
    with SyncProducer(Producer(name_server, "test")) as producer:
        producer.send(Message("orders", json.dumps(order).encode()))
