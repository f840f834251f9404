"""Tests the OpenLineage events of queries, with OpenLineage's client and a file."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from spark_support import send_numbers
from wait_until import wait_until

from gantrymq.spark.metrics import watch_queries
from gantrymq.testing.embedded import EmbeddedCluster

pytest.importorskip("openlineage.client", reason="needs gantrymq[openlineage]")

from openlineage.client import OpenLineageClient

from gantrymq.spark.lineage import QueryLineage


def client_of(path: Path) -> OpenLineageClient:
    return OpenLineageClient(config={"transport": {"type": "file", "log_file_path": str(path), "append": True}})


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def datasets(found: list[dict[str, str]]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in found]


@pytest.mark.spark
def test_a_query_and_one_that_fails(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, result = new_topic(1), new_topic(1)
    send_numbers(cluster, topic, range(10))
    path = tmp_path / "events"
    lineage = QueryLineage(
        cluster.name_server, outputs={"copied": result}, job_namespace="shop", client=client_of(path)
    )
    options = {"nameServer": cluster.name_server}
    rows = spark.readStream.format("rocketmq").options(**options, subscribe=topic, startingOffsets="earliest").load()
    with watch_queries(spark, lineage=lineage):
        copy = rows.select("body").writeStream.format("rocketmq").options(**options, topic=result).queryName("copied")
        copied = copy.option("checkpointLocation", str(tmp_path / "copied")).trigger(availableNow=True).start()
        assert copied.awaitTermination(240)
        failing = rows.selectExpr("raise_error('no such order')").writeStream.format("noop").queryName("failing")
        failed = failing.option("checkpointLocation", str(tmp_path / "failing")).trigger(availableNow=True).start()
        with pytest.raises(Exception, match="no such order"):
            failed.awaitTermination(240)
        wait_until(lambda: any(event["eventType"] == "FAIL" for event in events_in(path)))
    events = events_in(path)
    of_copied = [event for event in events if event["run"]["runId"] == str(copied.runId)]
    kinds = [event["eventType"] for event in of_copied]
    assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == ("START", {"RUNNING"}, "COMPLETE")
    namespace = f"rocketmq://{cluster.name_server}"
    assert datasets(of_copied[0]["inputs"]) == []
    for event in of_copied[1:]:
        assert datasets(event["inputs"]) == [(namespace, topic)]
    for event in of_copied:
        assert datasets(event["outputs"]) == [(namespace, result)]
        assert (event["job"]["namespace"], event["job"]["name"]) == ("shop", "copied")
        assert event["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
        assert event["run"]["facets"]["processing_engine"]["name"] == "spark"
    of_failed = [event for event in events if event["run"]["runId"] == str(failed.runId)]
    assert (of_failed[0]["eventType"], of_failed[-1]["eventType"]) == ("START", "FAIL")
    assert "no such order" in of_failed[-1]["run"]["facets"]["errorMessage"]["message"]
    assert of_failed[-1]["outputs"] == []


def test_the_first_name_server_is_the_namespace(tmp_path: Path) -> None:
    path, run = tmp_path / "events", str(uuid4())
    lineage = QueryLineage("mq1:9876;mq2:9876", client=client_of(path))
    # The query was running before `watch_queries`, and has no name. Its second source is not a topic.
    ours = {"endOffset": json.dumps({"orders": {"broker-a:0": 5}, "returns": {"broker-a:0": 1}})}
    lineage.progressed({"id": "1-2", "runId": run, "sources": [ours, {"endOffset": {"kafka": {"0": 5}}}]})
    lineage.ended("1-2", run, None)
    running, complete = events_in(path)
    assert datasets(running["inputs"]) == [("rocketmq://mq1:9876", "orders"), ("rocketmq://mq1:9876", "returns")]
    assert (running["job"]["namespace"], running["job"]["name"]) == ("default", "1-2")
    assert (complete["eventType"], complete["job"], complete["inputs"]) == (
        "COMPLETE", running["job"], running["inputs"],
    )  # fmt: skip


def test_an_event_that_cannot_be_sent_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lineage = QueryLineage("mq1:9876", client=client_of(tmp_path / "no" / "directory"))
    with caplog.at_level(logging.WARNING):
        lineage.started("1-2", str(uuid4()), "orders")
    assert "can't emit the lineage of query orders" in caplog.text
