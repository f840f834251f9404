"""Fixtures: one broker on a free port, and a peer in either header encoding."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from broker_support import Disk, Peer, config
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.send.batches import BatchSends
from gantrymq.broker.send.processor import SendProcessor
from gantrymq.protocol.command import SerializeType
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.json_config import JsonConfigFile


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(JsonConfigFile.write)
    monkeypatch.setattr(JsonConfigFile, "write", lambda file: disk.write(file))
    yield disk
    disk.may_go_on.set()


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


@pytest.fixture(params=[SerializeType.JSON, SerializeType.ROCKETMQ], ids=["json", "binary"])
async def peer(request: pytest.FixtureRequest, broker: Broker, remoting: RemotingClient) -> Peer:
    return Peer(await remoting.connection(f"127.0.0.1:{broker.port}"), request.param)


@pytest.fixture
def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> WrongClock:
    return WrongClock(monkeypatch)


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the opaque numbers of the sends that Python code handled.

    A batch with code 310 is in the list twice.
    """
    handled: list[int] = []

    def count(sending: type[SendProcessor] | type[BatchSends]) -> None:
        send = sending.send

        def counted(self, connection, request):  # type: ignore[no-untyped-def]
            handled.append(request.opaque)
            return send(self, connection, request)

        monkeypatch.setattr(sending, "send", counted)

    count(SendProcessor)
    count(BatchSends)
    return handled
