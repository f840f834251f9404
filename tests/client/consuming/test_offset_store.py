"""Offset commits of a group to its brokers, and their frequency."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from constants import change_constant
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.consuming.offset_store import BrokerOffsetStore
from gantrymq.errors import ConnectFailed
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection

QUEUE = MessageQueue("topic", "broker", 0)


class Committing(ScriptedGroupBroker):
    """Records commits in `commits`. Responds unless it is `silent`."""

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
async def client(broker: Committing) -> AsyncIterator[ClientInstance]:
    async with serving([name_server := ScriptedNameServer({"topic": route_over({"broker": broker.address})})]):
        client = ClientInstance(name_server.address)
        await client.routes.get("topic")
        # The next route query returns another broker.
        name_server.routes["topic"] = route_over({"other": "127.0.0.1:1"})
        yield client
        await client.close()


@pytest.fixture
async def store(client: ClientInstance) -> BrokerOffsetStore:
    return BrokerOffsetStore(client, "group")


async def test_an_offset_that_stays_is_told_once_in_a_while(
    broker: Committing, store: BrokerOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed broker may have lost the last commits.

    Without repeated commits, the group would show lag until its next message.
    """
    for offset in (10, 10, 11, 11):
        await store.commit({QUEUE: offset})
    assert broker.commits == [10, 11]
    change_constant(monkeypatch, "offset_store.REPEAT_S", 0.0)
    await store.commit({QUEUE: 11})
    assert broker.commits == [10, 11, 11]


async def test_after_a_commit_without_an_answer_the_one_before_is_sent_again(
    broker: Committing, store: BrokerOffsetStore
) -> None:
    """After a failed commit, the broker's offset is unknown, so an earlier offset must be committed again."""
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


async def test_offsets_of_a_broker_that_has_left_the_route_are_committed(
    broker: Committing, client: ClientInstance, store: BrokerOffsetStore
) -> None:
    """A NameServer may have lost its connection to the broker.

    The consumer must commit before it releases the queue.
    """
    await store.commit({QUEUE: 10})
    await client.routes.refresh("topic")
    await store.commit({QUEUE: 20})
    assert broker.commits == [10, 20]


async def test_no_connection_is_made_with_a_broker_that_has_left_the_route(
    broker: Committing, client: ClientInstance, store: BrokerOffsetStore
) -> None:
    """The connect would block until its timeout if the machine is down, and delay a rebalance."""
    await client.routes.refresh("topic")
    with pytest.raises(ConnectFailed, match="no route names broker broker"):
        await store.commit({QUEUE: 20})
    assert broker.commits == []
