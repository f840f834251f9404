"""Cluster for the client's tests: this project's own, or Java's if GANTRY_JAVA_LIB names a directory with its jars."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import java_cluster
import pytest
from constants import change_constant

from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.testing.embedded import EmbeddedCluster

#: Failed messages are redelivered after a second instead of ten seconds.
DELAY_LEVELS = " ".join(["1s"] * 18)

_number = itertools.count()


@pytest.fixture(autouse=True)
def _every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off the limit of repeated log lines, because tests read the log."""
    change_constant(monkeypatch, "logs.LINES", 1_000_000)


def _life_of_a_cluster(fixture_name: str, config: pytest.Config) -> Literal["module", "session"]:
    """Returns the scope of the cluster.

    Our own ends with its test file, because it shares the process with the tests.

    Java's cluster runs in its own processes and starts slowly, so all files share it.
    """
    return "session" if os.environ.get("GANTRY_JAVA_LIB") else "module"


@pytest.fixture(scope=_life_of_a_cluster)
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields host:port of the NameServer of a cluster with one broker."""
    if jars := os.environ.get("GANTRY_JAVA_LIB"):
        with java_cluster.running(Path(jars), tmp_path_factory.mktemp("cluster"), DELAY_LEVELS) as address:
            yield address
    else:
        with EmbeddedCluster(message_delay_level=DELAY_LEVELS) as cluster:
            yield cluster.name_server


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    """Returns a topic or group name that no other test uses."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", request.node.name)[:60] + f"_{time.time_ns():x}_{next(_number)}"


@pytest.fixture
async def producer(name_server: str) -> AsyncIterator[Producer]:
    async with Producer(name_server, "producers") as producer:
        yield producer


@pytest.fixture
async def topic(producer: Producer, unique: str) -> str:
    """Creates a topic with four queues. Returns its name."""
    (broker,) = (await _when_known(producer, "TBW102")).broker_datas
    assert broker.master_address
    await producer.client.api.create_topic(broker.master_address, TopicConfig(unique, 4, 4))
    await _when_known(producer, unique)
    return unique


async def _when_known(producer: Producer, topic: str) -> TopicRouteData:
    """Returns the topic's route as soon as the NameServer has it."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await producer.client.routes.get(topic)
            except NoRouteInfo:
                await asyncio.sleep(0.01)
