"""Tests `rocketmq` and `rocketmq-store` in SQL, in sessions in which nothing was registered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_support import SPARK_HOME, environment
from cluster_support import run as run_process
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession
from spark_support import WAIT_S, send_numbers

from gantrymq.cli.main import run
from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark
NewTopic = Callable[..., str]
Sql = Callable[[str], list[Row]]


@pytest.fixture(scope="module")
def sql(spark: SparkSession) -> Iterator[Sql]:
    session = spark.newSession()
    yield lambda statement: session.sql(statement).collect()
    for table in session.sql("SHOW TABLES").collect():
        if not table.isTemporary:
            session.sql(f"DROP TABLE {table.tableName}")


def count(sql: Sql, table: str) -> int:
    return int(sql(f"SELECT count(*) FROM {table}")[0][0])


def options(cluster: EmbeddedCluster, **more: str) -> str:
    """Returns the options of a view."""
    return ", ".join(f"{name} '{value}'" for name, value in ({"nameServer": cluster.name_server} | more).items())


def with_options(cluster: EmbeddedCluster, **more: str) -> str:
    """Returns the options of a query of a table."""
    return "WITH (" + ", ".join(f"{k} = '{v}'" for k, v in ({"nameServer": cluster.name_server} | more).items()) + ")"


def test_the_package_imports_no_spark() -> None:
    script = "import sys, gantrymq, gantrymq.cli.app; assert not {'pyspark', 'pyspark_rocketmq'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("module", ["pyspark_rocketmq", "pyspark_rocketmq_store"])
def test_a_missing_package_hides_no_other_source(module: str) -> None:
    """Spark registers no Python data source at all if one of these modules raises an error."""
    script = (
        f"import sys; sys.modules['pyarrow'] = None; import {module}; assert not hasattr({module}, 'DefaultSource')"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_queries_of_a_view(sql: Sql, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    send_numbers(cluster, topic, range(200))
    view = f"TEMPORARY VIEW read USING rocketmq OPTIONS ({options(cluster, subscribe=topic)})"
    sql(f"CREATE {view}")
    # Queries of one view don't affect each other, whatever their conditions are.
    assert sql("SELECT count(*) FROM read WHERE tags = 'Even'") == [Row(100)]
    assert count(sql, "read") == 200
    both = "SELECT (SELECT count(*) FROM read WHERE tags = 'Odd'), (SELECT count(*) FROM read)"
    assert sql(both) == [Row(100, 200)]
    send_numbers(cluster, topic, range(10))
    sql(f"CREATE OR REPLACE {view}")
    assert count(sql, "read") == 210


def test_options_in_the_query_of_a_table(sql: Sql, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    first, second = new_topic(), new_topic()
    send_numbers(cluster, first, range(20))
    sql("CREATE TABLE any_topic (topic STRING, body BINARY) USING rocketmq")
    assert count(sql, f"any_topic {with_options(cluster, subscribe=first)}") == 20
    assert count(sql, f"any_topic {with_options(cluster, subscribe=second)}") == 0
    send_numbers(cluster, second, range(10))
    assert count(sql, f"any_topic {with_options(cluster, subscribe=second)}") == 10


def test_inserts(sql: Sql, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    given = options(cluster, topic=topic)
    sql(f"CREATE TEMPORARY VIEW written (body BINARY, keys STRING) USING rocketmq OPTIONS ({given})")
    sql("INSERT INTO written VALUES (X'31', 'one'), (X'32', 'two')")
    sql("CREATE TABLE sent (body BINARY) USING rocketmq")
    sql(f"INSERT INTO sent {with_options(cluster, topic=topic)} SELECT X'33'")
    with pytest.raises(AnalysisException, match="can't be overwritten"):
        sql("INSERT OVERWRITE written VALUES (X'34', 'four')")
    sql(f"CREATE TEMPORARY VIEW back USING rocketmq OPTIONS ({options(cluster, subscribe=topic)})")
    rows = sql("SELECT CAST(body AS STRING) AS text, keys FROM back ORDER BY text")
    assert [tuple(row) for row in rows] == [("1", "one"), ("2", "two"), ("3", None)]


def test_what_spark_cannot_do_is_refused(sql: Sql, cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """Each statement fails with the remedy, and the topic stays empty."""
    topic = new_topic()
    read, write = options(cluster, subscribe=topic), options(cluster, topic=topic)
    sql(f"CREATE TABLE without (body BINARY) USING rocketmq OPTIONS ({write})")
    for statement in (
        f"CREATE TABLE lost USING rocketmq OPTIONS ({read})",
        f"CREATE TABLE lost USING rocketmq OPTIONS ({write})",
        f"CREATE TABLE lost USING rocketmq OPTIONS ({write}) AS SELECT X'31' AS body",
        "CREATE TABLE lost USING `rocketmq-store`",
        "SELECT * FROM without",
        "INSERT INTO without VALUES (X'31')",
    ):
        with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
            sql(statement)
    assert count(sql, f"without {with_options(cluster, subscribe=topic)}") == 0
    assert sql("SHOW TABLES LIKE 'lost'") == []


def test_writers_of_tables_without_options_are_refused(
    sql: Sql, spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The source gets neither an address nor a topic, so no row is written."""
    topic = new_topic()
    send_numbers(cluster, topic, range(1))
    df = spark.sql("SELECT X'31' AS body")
    for write in (
        lambda: df.write.format("rocketmq").saveAsTable("saved"),
        lambda: df.write.format("rocketmq").mode("append").saveAsTable("saved"),
        lambda: df.writeTo("saved").using("rocketmq").create(),
    ):
        with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
            write()
    assert sql("SHOW TABLES LIKE 'saved'") == []
    stream = spark.readStream.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic)
    writer = stream.option("startingOffsets", "earliest").load().select("body").writeStream.format("rocketmq")
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="use CREATE TEMPORARY VIEW"):
        writer.toTable("streamed").awaitTermination()


def test_a_saved_table_has_no_options(
    sql: Sql, spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Spark passes the options of `saveAsTable` and `toTable` to the write, as for `save` and `start`."""
    source, topic = new_topic(), new_topic()
    send_numbers(cluster, source, range(2))
    given = {"nameServer": cluster.name_server, "topic": topic}
    spark.sql("SELECT X'31' AS body").write.format("rocketmq").options(**given).saveAsTable("with_rows")
    stream = spark.readStream.format("rocketmq").options(nameServer=cluster.name_server, subscribe=source)
    writer = stream.option("startingOffsets", "earliest").load().select("body").writeStream.format("rocketmq")
    writer = writer.options(**given, checkpointLocation=str(tmp_path)).trigger(availableNow=True)
    assert writer.toTable("with_stream").awaitTermination(WAIT_S)
    for table in ("with_rows", "with_stream"):
        with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
            sql(f"SELECT * FROM {table}")
        assert count(sql, f"{table} {with_options(cluster, subscribe=topic)}") == 3


def test_views_for_all_topics(
    sql: Sql, cluster: EmbeddedCluster, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic()
    send_numbers(cluster, topic, range(5))
    assert run(["spark", "tables", "-n", cluster.name_server]) == 0
    statements = capsys.readouterr().out.splitlines()
    assert not [line for line in statements if "`TBW102`" in line or "`broker-a`" in line or "%" in line]
    (statement,) = [line for line in statements if f"VIEW `{topic}` " in line]
    sql(statement.rstrip(";"))
    assert sql(f"SELECT count(*), max(topic) FROM `{topic}` WHERE body IS NOT NULL") == [Row(5, topic)]


@pytest.mark.slow
@pytest.mark.timeout(2 * WAIT_S)
def test_the_command_spark_sql(cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic()
    send_numbers(cluster, topic, range(7))
    file = tmp_path / "statements.sql"
    file.write_text(
        f"CREATE TEMPORARY VIEW numbers USING rocketmq OPTIONS ({options(cluster, subscribe=topic)});\n"
        "SELECT concat('count ', count(*)) FROM numbers;\n"
    )
    variables = environment(PYSPARK_PYTHON=sys.executable, SPARK_HOME=str(SPARK_HOME))
    settings = [
        "--master",
        "local[1]",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.sql.catalogImplementation=in-memory",
    ]
    command = [os.path.join(SPARK_HOME, "bin", "spark-sql"), *settings, "-f", file]
    assert "count 7" in run_process(command, tmp_path, variables, WAIT_S)
