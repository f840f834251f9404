"""Native code stores the messages of Apache's producers, except for the first ones of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import SERIALIZE_TYPES, Sent, consume, produce, sample
from servers import free_port

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.send.batches import BatchSends
from gantrymq.broker.send.processor import SendProcessor
from gantrymq.kernels import native
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.store.config import StoreConfig

pytestmark = [
    pytest.mark.interop(feature="send and receive", clients="java", servers="gantry", version="{version}"),
    pytest.mark.skipif(native is None, reason="gantrymq-native isn't there"),
]

COUNT = 100
QUEUES = 2
#: As in Produce.
BATCH_SIZE = 10


@asynccontextmanager
async def server(directory: Path) -> AsyncIterator[str]:
    """Yields the address of a NameServer. Its broker runs in this process and has the topic `orders`."""
    name_server = NameServer(
        NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=directory / "kvConfig.json")
    )
    await name_server.start()
    broker = Broker(
        BrokerConfig(
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=free_port(),
            namesrv_addr=[name_server.address],
            store=StoreConfig(store_path_root_dir=directory / "store", mapped_file_size_commit_log=4 * 1024 * 1024),
        )
    )
    await broker.start()
    try:
        broker.topics.put(TopicConfig("orders", QUEUES, QUEUES))
        await broker.topics.written()
        yield name_server.address
    finally:
        await broker.stop()
        await name_server.stop()


def counted_in(kind: type[SendProcessor] | type[BatchSends], monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Returns the opaque numbers of the requests that Python handles."""
    by_python: set[int] = set()
    send = kind.send

    def counted(self: Any, connection: Connection, request: RemotingCommand) -> Reply:
        by_python.add(request.opaque)
        return send(self, connection, request)

    monkeypatch.setattr(kind, "send", counted)
    return by_python


async def received_all(address: str, sent: list[Sent], serialize_type: str, version: str) -> bool:
    received = await asyncio.to_thread(
        consume, address, "orders", len(sent), serialize_type=serialize_type, version=version
    )
    return sorted(map(Sent.of, received)) == sorted(sent)


@pytest.mark.parametrize("serialize_type", SERIALIZE_TYPES)
@pytest.mark.parametrize("version", ["5.5", "4.9"])
async def test_most_pass_python_by(
    version: str, serialize_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_python = counted_in(SendProcessor, monkeypatch)
    async with server(tmp_path) as address:
        sent = [Sent(one.body, one.tags, one.keys, 0, one.properties) for one in sample(COUNT)]
        lines = [one.line(queue_id=number % QUEUES) for number, one in enumerate(sent)]
        results = await asyncio.to_thread(
            produce, address, "orders", lines, serialize_type=serialize_type, version=version
        )
        assert len(results) == COUNT
        # The first message to a queue waits for the queue's file. The second one has a header format that is not cached
        # yet.
        assert 0 < len(by_python) <= 2 * QUEUES
        assert await received_all(address, sent, serialize_type, version)


@pytest.mark.interop(feature="batches")
@pytest.mark.parametrize("serialize_type", SERIALIZE_TYPES)
@pytest.mark.parametrize("version", ["5.5", "4.9"])
async def test_most_batches_pass_python_by(
    version: str, serialize_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_python = counted_in(BatchSends, monkeypatch)
    async with server(tmp_path) as address:
        sent = sample(COUNT * BATCH_SIZE)
        lines = [one.line() for one in sent]
        results = await asyncio.to_thread(
            produce, address, "orders", lines, mode="batches", serialize_type=serialize_type, version=version
        )
        assert len(results) == COUNT
        assert all(len(result["offset_msg_id"].split(",")) == BATCH_SIZE for result in results)
        # This also covers queues that need space in the log or another file.
        assert 0 < len(by_python) <= COUNT // 10
        assert await received_all(address, sent, serialize_type, version)
