"""Fixtures that run `gantry admin` in this process against an embedded cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

CLUSTER = "DefaultCluster"
TIMEOUT_S = 20.0

Admin = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> Admin:
    """Runs a command with -n and --json, and returns its JSON document.

    The command must succeed. With `until`, it is repeated until the document satisfies this condition.
    """

    def call(*arguments: str, until: Callable[[Any], object] | None = None) -> Any:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            capsys.readouterr()
            code = run(["admin", *arguments, "-n", cluster.name_server, "--json"])
            out, err = capsys.readouterr()
            document = json.loads(out) if code == 0 else None
            if code == 0 and (until is None or until(document)):
                assert err == ""
                return document
            if until is None or time.monotonic() > deadline or "not supported" in err:
                raise AssertionError(f"{arguments} ended with {code}: {err}{out}")
            time.sleep(0.02)

    return call


@pytest.fixture(scope="module")
def producer(cluster: EmbeddedCluster) -> Iterator[SyncProducer]:
    with SyncProducer(Producer(cluster.name_server, "producers")) as producer:
        yield producer


@pytest.fixture
def topic(admin: Admin, request: pytest.FixtureRequest) -> str:
    """Returns the name of a new topic with two queues."""
    name = f"{request.node.name}_{time.time_ns():x}"
    admin("updateTopic", "-c", CLUSTER, "-t", name, "-r", "2", "-w", "2")
    admin("topicRoute", "-t", name, until=lambda route: route["queueDatas"])
    return name
