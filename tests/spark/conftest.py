"""Provides one Spark session and one cluster of two brokers for all Spark tests. Each test creates its own topics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession
from spark_support import BULK_TRANSFER, WAIT_S, create_topic

from gantrymq.spark import register, session_builder
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = (
        session_builder("gantrymq-tests")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.streaming.pollingDelay", "20ms")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, **BULK_TRANSFER) as running:
        yield running


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "many_kills: kills a driver 20 times; only run by -m many_kills")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("spark") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2.5 * WAIT_S))
    if "many_kills" in config.option.markexpr:
        return
    many = [item for item in items if item.get_closest_marker("many_kills") is not None]
    if many:
        config.hook.pytest_deselected(items=many)
        items[:] = [item for item in items if item not in many]


_numbers = itertools.count(1)


@pytest.fixture
def new_topic(cluster: EmbeddedCluster) -> Callable[..., str]:
    """Returns a function that creates a topic with a number of queues on each broker."""

    def make(queues: int = 4) -> str:
        topic = f"spark-{next(_numbers)}"
        create_topic(cluster, topic, queues)
        return topic

    return make
