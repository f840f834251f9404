"""Tests that each of a million messages in 8 queues of 2 broker processes is read exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from million_support import (
    assert_each_number_once,
    driver,
    fill,
    read_in_batch,
    stream_with_killed_drivers,
)
from pyspark.sql import SparkSession
from spark_support import WAIT_S

from gantrymq.testing.processes import ProcessCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ProcessCluster(tmp_path_factory.mktemp("million"), brokers=2) as cluster:
        asyncio.run(fill(cluster.namesrv_addr, [broker.address for broker in cluster.brokers]))
        yield cluster.namesrv_addr


def test_in_batch(spark: SparkSession, name_server: str) -> None:
    assert_each_number_once(read_in_batch(spark, name_server))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_driver_that_is_killed_twice(spark: SparkSession, name_server: str, tmp_path: Path) -> None:
    stream_with_killed_drivers(name_server, tmp_path)
    assert_each_number_once(spark.read.schema("number long").parquet(str(tmp_path / "out")))


@pytest.mark.slow
@pytest.mark.nightly
def test_executors_that_are_processes_of_their_own(spark: SparkSession, name_server: str, tmp_path: Path) -> None:
    with driver("local-cluster[2,1,1024]", name_server, tmp_path, batches=4) as process:
        assert process.wait(WAIT_S) == 0
    assert_each_number_once(spark.read.schema("number long").parquet(str(tmp_path / "out")))
