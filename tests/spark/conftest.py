"""One Spark session and one cluster of two brokers for all tests of this directory; each test has topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession
from spark_support import BULK_TRANSFER, WAIT_S, create_topic

from gantrymq.spark import register, session_builder
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        session_builder("gantrymq-tests")
        .master("local[2]")
        .config("spark.ui.enabled", "false")
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
    """Makes a topic, with so many queues on each broker."""

    def make(queues: int = 4) -> str:
        topic = f"spark-{next(_numbers)}"
        create_topic(cluster, topic, queues)
        return topic

    return make
