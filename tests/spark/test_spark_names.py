"""Tests where Spark shows which topic a query reads: plans, descriptions of jobs, the names of streaming queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_support import send_numbers
from wait_until import wait_until

from gantrymq.testing.embedded import EmbeddedCluster

pytestmark = pytest.mark.spark


def job_descriptions(spark: SparkSession) -> list[str]:
    """Returns the descriptions of the session's jobs, as the page Jobs of Spark's UI shows them.

    Spark adds a job some time after its end, because a thread of its own processes the events.
    """
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    descriptions = [jobs.apply(index).description() for index in range(jobs.size())]
    return [description.get() for description in descriptions if description.isDefined()]


def test_a_view_names_the_topic_in_a_plan(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(1)
    rows = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic).load()
    # Spark shows neither the options of a Python source nor a name of its own.
    assert topic not in rows._jdf.queryExecution().toString()
    rows.createOrReplaceTempView("orders_of_today")
    plan = spark.table("orders_of_today")._jdf.queryExecution().toString()
    assert "SubqueryAlias orders_of_today" in plan
    assert "rocketmq" in plan


def test_the_description_of_a_job(spark: SparkSession, cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(10))
    rows = spark.read.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic).load()
    spark.sparkContext.setJobDescription(f"{topic} to the lake")
    try:
        assert len(rows.collect()) == 10
    finally:
        spark.sparkContext.setJobDescription(None)
    wait_until(lambda: f"{topic} to the lake" in job_descriptions(spark))


def test_the_name_of_a_streaming_query(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(1)
    send_numbers(cluster, topic, range(10))
    source = spark.readStream.format("rocketmq").options(nameServer=cluster.name_server, subscribe=topic)
    write = source.option("startingOffsets", "earliest").load().writeStream.format("noop").queryName(f"name_{topic}")
    query = write.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    wait_until(lambda: any(text.startswith(f"name_{topic}") for text in job_descriptions(spark)))
