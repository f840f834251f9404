"""Tests how a transaction's half messages are ended on several brokers if one of them fails."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gantrymq.arrow.cluster_client import ClusterClient
from gantrymq.errors import BrokerError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.half_ranges import HalfRange
from gantrymq.protocol.headers.half_ranges import EndHalfMessagesResponseHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT
from gantrymq.spark.half_messages import HalfMessages, end_transaction


class Brokers:
    """Scripted brokers. Those in `refusing` fail at once. The others then need one more request to end the rest."""

    def __init__(self, refusing: str) -> None:
        self.refusing = refusing
        self.has_refused = asyncio.Event()
        self.ended: list[str] = []

    async def write_queues(self, topic: str) -> list[MessageQueue]:
        return []

    async def request_master(self, queue: MessageQueue, request: RemotingCommand) -> RemotingCommand:
        if queue.broker_name in self.refusing:
            self.has_refused.set()
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the disk of {queue.broker_name} has failed", "127.0.0.1:1")
        await self.has_refused.wait()
        await asyncio.sleep(0)
        self.ended.append(queue.broker_name)
        left = 2 - self.ended.count(queue.broker_name)
        return RemotingCommand.response(header=EndHalfMessagesResponseHeader(left=left))


async def test_a_broker_that_fails_leaves_nothing_half_ended_on_others(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers(refusing="ad")
    halves = [HalfMessages(MessageQueue("orders", name, 0), HalfRange(0, 0, 2)) for name in "abcd"]
    with pytest.raises(BrokerError, match="the disk of a has failed"):
        await end_transaction(cast(ClusterClient, brokers), halves, [], TRANSACTION_COMMIT)
    assert sorted(brokers.ended) == ["b", "b", "c", "c"]
    assert "failed on another broker, too: 127.0.0.1:1 answered code 1: the disk of d has failed" in caplog.text
