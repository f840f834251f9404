"""What Apache's producers send is stored by native code, but for the first messages of each kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from programs import SERIALIZE_TYPES, Sent, consume, produce, sample
from servers import free_port

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.send import Sending
from gantrymq.kernels import native
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.connection import Connection, Reply
from gantrymq.store.config import StoreConfig

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

COUNT = 100
QUEUES = 2


@pytest.mark.parametrize("serialize_type", SERIALIZE_TYPES)
@pytest.mark.parametrize("version", ["5.5", "4.9"])
async def test_most_pass_python_by(
    version: str, serialize_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_python: set[int] = set()
    send = Sending.send

    def counted(self: Sending, connection: Connection, request: RemotingCommand) -> Reply:
        by_python.add(request.opaque)
        return send(self, connection, request)

    monkeypatch.setattr(Sending, "send", counted)
    name_server = NameServer(
        NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kvConfig.json")
    )
    await name_server.start()
    address = name_server.address
    broker = Broker(
        BrokerConfig(
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=free_port(),
            namesrv_addr=[address],
            store=StoreConfig(store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=4 * 1024 * 1024),
        )
    )
    await broker.start()
    try:
        broker.topics.put(TopicConfig("orders", QUEUES, QUEUES))
        await broker.topics.written()
        sent = [Sent(one.body, one.tags, one.keys, 0, one.properties) for one in sample(COUNT)]
        lines = [one.line(queue_id=number % QUEUES) for number, one in enumerate(sent)]
        results = await asyncio.to_thread(
            produce, address, "orders", lines, serialize_type=serialize_type, version=version
        )
        assert len(results) == COUNT
        # The first that goes to a queue waits until the queue has a file; the second says what its header means.
        assert 0 < len(by_python) <= 2 * QUEUES
        received = await asyncio.to_thread(
            consume, address, "orders", COUNT, serialize_type=serialize_type, version=version
        )
        assert sorted(map(Sent.of, received)) == sorted(sent)
    finally:
        await broker.stop()
        await name_server.stop()
