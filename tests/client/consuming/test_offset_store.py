"""What a group's brokers are told of its offsets, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from waiting import until

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming import offset_store
from gantrymq.client.consuming.offset_store import BrokerOffsetStore
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection

QUEUE = MessageQueue("topic", "broker", 0)


class Committing(ScriptedGroupBroker):
    """Keeps what is committed in `commits`; answers unless it is `silent`."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.silent = False
        super().__init__()

    def _update_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:  # type: ignore[override]
        self.commits.append(request.read_header(UpdateConsumerOffsetRequestHeader).commit_offset)
        return None if self.silent else RemotingCommand.response()


@pytest.fixture
async def broker() -> AsyncIterator[Committing]:
    broker = Committing()
    async with serving([broker]):
        yield broker


@pytest.fixture
async def store(broker: Committing) -> AsyncIterator[BrokerOffsetStore]:
    name_server = ScriptedNameServer({"topic": route_over({"broker": broker.address})})
    async with serving([name_server]):
        client = ClientInstance(name_server.address)
        await client.routes.get("topic")
        yield BrokerOffsetStore(client, "group")
        await client.close()


async def test_an_offset_that_stays_is_told_once_in_a_while(
    broker: Committing, store: BrokerOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was killed has forgotten the last seconds: the group seemed to be behind until the next message."""
    for offset in (10, 10, 11, 11):
        await store.commit({QUEUE: offset})
    assert broker.commits == [10, 11]
    monkeypatch.setattr(offset_store, "REPEAT_S", 0.0)
    await store.commit({QUEUE: 11})
    assert broker.commits == [10, 11, 11]


async def test_after_a_commit_without_an_answer_the_one_before_is_sent_again(
    broker: Committing, store: BrokerOffsetStore
) -> None:
    """It was taken for what the broker knew still: who had gone back lost the messages between."""
    await store.commit({QUEUE: 10})
    broker.silent = True
    given_up = asyncio.ensure_future(store.commit({QUEUE: 20}))
    await until(lambda: broker.commits == [10, 20])
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    broker.silent = False
    await store.commit({QUEUE: 10})
    assert broker.commits == [10, 20, 10]
