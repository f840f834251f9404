"""EscapeBridge selects brokers of other names, without brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from broker_support import config

from gantrymq.broker.acting.escape_bridge import EscapeBridge
from gantrymq.errors import RefusalReason, StoreBusy
from gantrymq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.refusals import reason_fields
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.consume_queue import ConsumeQueue


class _Cluster:
    """Two brokers with two queues of each topic. `broker-b` refuses topic "limited". `stored` has (topic, address)."""

    def __init__(self) -> None:
        self.addresses = {"broker-b": "127.0.0.1:1", "broker-c": "127.0.0.1:2"}
        self.stored: list[tuple[str, str]] = []

    async def call(self, address: str, request: RemotingCommand) -> RemotingCommand:
        route = TopicRouteData(
            [QueueData(name, 2, 2, 6) for name in self.addresses],
            [BrokerData("cluster", name, {0: broker}) for name, broker in self.addresses.items()],
        )
        return RemotingCommand.response(body=encode_json(route))

    async def invoke(self, address: str, request: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        topic = request.read_header(SendMessageRequestHeaderV2).topic
        if topic == "limited" and address == self.addresses["broker-b"]:
            fields = reason_fields(RefusalReason.RATE_LIMITED, 1000)
            return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "limited", fields=fields)
        self.stored.append((topic, address))
        header = SendMessageResponseHeader(msg_id="0" * 32, queue_id=0, queue_offset=len(self.stored))
        return RemotingCommand.response(header=header)


async def _escape(bridge: EscapeBridge, topic: str, offset: int) -> None:
    """Sends a delayed message that is due."""
    fields = dict.fromkeys(Record._fields, 0) | {"topic": topic.encode(), "body": b"x", "properties": b""}
    record = Record(**fields | {"physical_offset": offset})  # type: ignore[arg-type]
    queue = cast(ConsumeQueue, type("Queue", (), {"topic": topic})())
    while True:
        try:
            bridge.append_again(record, queue, encode_properties({"KEYS": "k"}), 0)
            return
        except StoreBusy:
            await asyncio.sleep(0)


async def test_a_rate_limit_of_one_topic_does_not_make_it_avoid_the_broker(tmp_path: Path) -> None:
    cluster = _Cluster()
    settings = config(tmp_path, namesrv_addr=["127.0.0.1:9"])
    bridge = EscapeBridge(settings, cast(RemotingClient, cast(Any, cluster)), {})
    for offset in range(4):
        await _escape(bridge, "limited", offset)
    assert cluster.stored == [("limited", "127.0.0.1:2")] * 4
    for offset in range(4, 8):
        await _escape(bridge, "free", offset)
    assert {address for topic, address in cluster.stored if topic == "free"} == set(cluster.addresses.values())
