"""Runs a project of Spark Declarative Pipelines, on an existing cluster or on a cluster for this run.

In addition to `spark-pipelines run`, it
- finds Java and the Python for workers,
- keeps tables on this machine after the run, and
- starts a NameServer and a broker for the duration of the run, if the arguments have no NameServer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pyspark
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PySparkValueError
from pyspark.sql import SparkSession

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.contexts import Context, Contexts
from gantrymq.errors import ConfigError, GantryError, NoRouteInfo
from gantrymq.extras import need
from gantrymq.pipeline.project import PROGRAM, SAMPLE, SPEC, STATE, local_uri
from gantrymq.pipeline.spark_log import SparkLog, without_java_frames
from gantrymq.protocol.message import Message
from gantrymq.spark import session_builder
from gantrymq.spark.versions import HAS_PIPELINES
from gantrymq.testing.processes import ProcessCluster

log = logging.getLogger(__name__)

NAME_SERVER = "pipeline.nameServer"
CONTEXT = "pipeline.context"
TOPIC = "pipeline.topic"
RESULT_TOPIC = "pipeline.resultTopic"
LOCAL_MASTER = "local[*]"
SEND_AT_ONCE = 100
#: The settings of a server that Spark starts for a client on the same machine.
_CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.address": "localhost",
}
#: The last event of a successful run.
_COMPLETED = "Run is COMPLETED."
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


class RunFailed(GantryError):
    """Spark ended the run with an error."""


def run_project(
    directory: Path, name_server: str | None, context: str | None, master: str | None, report: Callable[[str], None]
) -> None:
    """Processes the messages since the last run.

    If there is neither a NameServer nor a context, a cluster runs for the duration of the run. If the topic of the
    project is empty, the sample messages are sent to the topic.

    Args:
        directory: The project.
        name_server: The NameServers of the cluster. It replaces the address of the context.
        context: A name of `gantry context list`.
        master: The Spark cluster. Default: the cores of this machine.
        report: Called with each line of the output.

    Raises:
        ConfigError: The project or an option is invalid.
        RunFailed: Spark ended the run with an error. The error has no stack trace of Java; the log of Spark does.
    """
    if not HAS_PIPELINES:
        raise ConfigError(f"declarative pipelines begin with Spark 4.1; this is pyspark {pyspark.__version__}")
    need("pipelines", "gantry pipeline")
    from pyspark.pipelines.cli import load_pipeline_spec

    directory = directory.absolute()
    path = directory / SPEC
    if (directory / PROGRAM).is_file():
        raise ConfigError(f"{directory} is a program, no declarative pipeline: python {PROGRAM} --help")
    if not path.is_file():
        raise ConfigError(f"{directory} has no {SPEC}: `gantry pipeline init NAME` makes a project")
    spec = load_pipeline_spec(path)
    settings = dict(spec.configuration)
    reached_by = None
    if context is not None:
        reached_by = Contexts()[context]
        # Spark displays the settings, so they contain no keys. Reads and writes get the keys from the context of this
        # name.
        settings[CONTEXT] = context
        name_server = name_server or reached_by.namesrv_addr
    with ExitStack() as stack:
        if name_server is None:
            cluster = stack.enter_context(ProcessCluster(directory / STATE / "cluster"))
            name_server = cluster.namesrv_addr
            report(f"NameServer at {name_server}")
            if (topic := settings.get(TOPIC)) and (directory / SAMPLE).is_file():
                lines = (directory / SAMPLE).read_text().splitlines()
                sent = asyncio.run(_send_sample(name_server, topic, lines))
                report(f"{sent} messages of {SAMPLE} sent to {topic}")
        settings[NAME_SERVER] = name_server
        on_this_machine = master is None or master.startswith("local")
        spark_log = SparkLog(directory / STATE)
        of_spark = (_local_settings(directory) if on_this_machine else {}) | settings
        of_spark[_JAVA_OPTIONS] = f"{spark_log.java_option} {of_spark.get(_JAVA_OPTIONS, '')}".rstrip()
        try:
            with _session(spec.name, master or LOCAL_MASTER, of_spark) as spark:
                _in_thread(lambda report: _run(spark, path, settings, report), report)
        except (PySparkException, Py4JError) as e:
            raise RunFailed(f"{without_java_frames(str(e))}\nthe log of Spark is {spark_log.path}") from e
        if topic := settings.get(RESULT_TOPIC):
            count = asyncio.run(message_count(name_server, topic, reached_by))
            report(f"{topic} has {count} messages")


def _local_settings(directory: Path) -> dict[str, str]:
    """Returns the locations of tables and their catalog for a run on this machine. A Spark cluster has its own."""
    state = directory / STATE
    return {
        "spark.sql.warehouse.dir": local_uri(state / "tables"),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={state / 'names'};create=true",
        _JAVA_OPTIONS: f"-Dderby.stream.error.file={state / 'derby.log'}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def _session(name: str, master: str, settings: dict[str, str]) -> Iterator[SparkSession]:
    """Starts a Spark Connect server, which pipelines require, and yields a client of it.

    `spark.api.mode=connect` would also start a server, but only one at a time, on port 15002 of all addresses.
    """
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    port = _free_port()
    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = secrets.token_hex(16)
    builder = session_builder(name).master(master)
    for key, value in (settings | _CONNECT_SERVER | {"spark.connect.grpc.binding.port": str(port)}).items():
        builder = builder.config(key, value)
    with _own_interrupt_handler():
        server = builder.getOrCreate()
    jvm: Any = server._jvm
    # While Spark stops, threads of its queries can fail. Write their errors to Spark's log, not to standard error.
    jvm.java.lang.Thread.setDefaultUncaughtExceptionHandler(
        jvm.org.apache.spark.util.SparkUncaughtExceptionHandler(False)
    )
    # The code in the files of a pipeline must use the client.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    print_thread_error = threading.excepthook
    try:
        client = ConnectSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
        try:
            yield cast(SparkSession, client)
        finally:
            # While Spark stops, threads of its client can fail, too.
            threading.excepthook = _log_thread_error
            client.stop()
    finally:
        server.stop()
        threading.excepthook = print_thread_error


def _log_thread_error(error: threading.ExceptHookArgs) -> None:
    """Logs the error instead of printing it to standard error."""
    log.debug("a thread of Spark's client failed", exc_info=error.exc_value)


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Restores the handler of SIGINT, which Spark replaces when it starts.

    Spark's handler raises KeyboardInterrupt each time, so that a second Ctrl-C would interrupt the shutdown.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _free_port() -> int:
    with socket.create_server(("localhost", 0)) as taken:
        return int(taken.getsockname()[1])


def _in_thread(run: Callable[[Callable[[str], None]], None], report: Callable[[str], None]) -> None:
    """Calls `run` in a thread, and `report` in this one with each line that `run` reports.

    If a signal handler raises an exception during a call of gRPC, gRPC can hang or abort the process. Handlers of
    signals run in the main thread, so `run` makes its calls in another one. If `report` raises an exception, or this
    function is interrupted, the thread continues until its calls fail, and does not keep the process alive.
    """
    lines: SimpleQueue[str | None] = SimpleQueue()
    outcome: Future[None] = Future()

    def run_and_end() -> None:
        try:
            run(lines.put)
        except BaseException as e:
            outcome.set_exception(e)
        else:
            outcome.set_result(None)
        finally:
            lines.put(None)

    threading.Thread(target=run_and_end, name="pipeline", daemon=True).start()
    for line in iter(lines.get, None):
        report(line)
    outcome.result()


def _run(spark: SparkSession, spec_path: Path, settings: dict[str, str], report: Callable[[str], None]) -> None:
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    spec = load_pipeline_spec(spec_path)
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, settings)
    register_definitions(spec_path, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
    _follow(start_run(spark, graph, [], False, [], False, spec.storage), report)


def _follow(results: Iterator[dict[str, Any]], report: Callable[[str], None]) -> None:
    last = ""
    try:
        for result in results:
            if "pipeline_event_result" in result:
                last = result["pipeline_event_result"].event.message
                report(without_java_frames(last))
    except PySparkValueError as e:
        # At the end of a run, Spark 4.3 sends counters of Python workers that its own client can't decode.
        if e.getCondition() != "UNKNOWN_RESPONSE" or last != _COMPLETED:
            raise


async def _send_sample(name_server: str, topic: str, lines: list[str]) -> int:
    """Sends the lines if the topic is empty, and returns their number."""
    if await message_count(name_server, topic):
        return 0
    messages = [Message(topic, line.encode()) for line in lines if line]
    async with Producer(name_server, "gantry-pipeline") as producer:
        for start in range(0, len(messages), SEND_AT_ONCE):
            await producer.send_batch(messages[start : start + SEND_AT_ONCE])
    return len(messages)


async def message_count(name_server: str, topic: str, context: Context | None = None) -> int:
    """Returns the number of messages in `topic`. `context` supplies keys and TLS settings."""
    context = context or Context(name_server)
    async with AdminClient(name_server, ssl_context=context.ssl_context, credentials=context.credentials) as admin:
        try:
            stats = await admin.topic_stats(topic)
        except NoRouteInfo:
            # The topic doesn't exist yet. The first message creates it.
            return 0
        return sum(queue.max_offset - queue.min_offset for queue in stats.offset_table.values())
