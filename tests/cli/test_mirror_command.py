"""Tests of `gantry mirror`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from gantrymq.cli.main import run
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="east") as cluster:
        yield cluster


def send(cluster: EmbeddedCluster, topic: str, *bodies: bytes) -> None:
    async def all_of() -> None:
        async with Producer(cluster.name_server, "test") as producer:
            for body in bodies:
                await producer.send(Message(topic, body))

    asyncio.run(all_of())


def test_copies_once_with_json(source: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    send(source, "orders", b"one", b"two")
    with EmbeddedCluster(broker_cluster_name="west") as target:
        command = ["mirror", "--from", source.name_server, "--to", target.name_server, "--topics", "orders", "--once"]
        assert run([*command, "--json"]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (last["copied"], last["lag"], last["failed"]) == (2, 0, [])
        assert run(command) == 0
        assert capsys.readouterr().out.startswith("0 messages copied, lag 0, ")


def test_a_queue_that_fails_is_an_error(source: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    send(source, "large", b"x" * 2000)
    with EmbeddedCluster(broker_cluster_name="west", max_message_size=1000) as target:
        command = ["mirror", "--from", source.name_server, "--to", target.name_server, "--topics", "large", "--once"]
        assert run(command) == 1
    assert "topic large, queue " in capsys.readouterr().err


def test_both_sides_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mirror", "--from", "127.0.0.1:1", "--topics", "orders"]) == 2
    assert "--to-context" in capsys.readouterr().err
