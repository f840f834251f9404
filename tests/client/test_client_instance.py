"""Heartbeats of producers and consumers to brokers."""

from __future__ import annotations

import asyncio

import pytest
from ports import free_port
from scripted import serving
from scripted_producer import ProducerBroker, scripted_cluster
from wait_until import until

from gantrymq.client import client_instance
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.bodies.heartbeat import ProducerData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message


class BrokenHook:
    """A user's hook that fails for heartbeats while it is `broken`."""

    def __init__(self) -> None:
        self.broken = True

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if self.broken and request.code == RequestCode.HEART_BEAT:
            raise ValueError("as scripted")

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


async def test_whatever_fails_in_a_heartbeat_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the rebalance and the pulls, which also send heartbeats, would end."""
    broker, hook = ProducerBroker(), BrokenHook()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"), hooks=[hook])
        await client.routes.get("topic")
        await client.greet_new_brokers()
        assert "as scripted" in caplog.text
        hook.broken = False
        await client.heartbeat()
        assert broker.heartbeats == 1
        await client.close()


async def test_brokers_that_have_left_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise their addresses would accumulate, and the close would try to connect to each."""
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        client.routes.all_brokers()["gone"] = {0: "127.0.0.1:1"}
        await client.greet_new_brokers()
        client._greeted.add("127.0.0.1:1")
        del client.routes.all_brokers()["gone"]
        caplog.clear()
        await client.heartbeat()
        assert client._greeted == client._announced == {broker.address}
        await client.close()
        assert not caplog.records


async def test_a_broker_whose_connection_was_lost_is_told_again() -> None:
    """Without a new heartbeat, requests get no replies and transactions get no checks for 30 s."""
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        client.start()
        await client.routes.get("topic")
        await client.greet_new_brokers()
        assert broker.heartbeats == 1
        for count in (2, 3):
            assert broker.connection is not None
            broker.connection.abort()
            await until(lambda count=count: broker.heartbeats == count)
        await client.close()


async def test_who_needs_the_broker_at_once_tells_it_at_once() -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address, Producer(address, "group") as producer:
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.connection is not None
        broker.connection.abort()
        await until(lambda: not producer.client._greeted)
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.heartbeats == 2


async def test_who_stops_waiting_leaves_the_wait_to_the_next() -> None:
    """A cancelled caller must not count as a finished heartbeat. Otherwise the next request's reply is lost."""
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        cancelled = asyncio.ensure_future(client.greet_new_brokers())
        await asyncio.sleep(0)
        assert client._greeting
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await client.greet_new_brokers()
        assert broker.heartbeats == 1
        await client.close()


async def test_all_who_need_the_broker_wait_for_the_one_heartbeat() -> None:
    """A second caller must not continue before the heartbeat is complete."""
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")

        async def told() -> int:
            await client.greet_new_brokers()
            return broker.heartbeats

        assert await asyncio.gather(told(), told(), told()) == [1, 1, 1]
        await client.close()


async def test_who_has_no_time_leaves_the_wait_to_the_next() -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        await client.greet_new_brokers(0.0)
        assert client._greeting
        await client.greet_new_brokers()
        assert broker.heartbeats == 1
        await client.close()


async def test_nobody_waits_again_for_a_broker_that_hangs() -> None:
    broker = ProducerBroker()
    broker.hangs = True
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        waited = [asyncio.ensure_future(client.greet_new_brokers(0.2)) for _ in range(2)]
        await asyncio.gather(*waited)
        assert client._greeting
        async with asyncio.timeout(0.1):
            await client.greet_new_brokers()
        # If the broker responds again, it is used again.
        (await until(lambda: broker.connection)).abort()
        broker.hangs = False
        await until(lambda: not client._greeting)
        await client.greet_again(broker.address)
        assert client._greeted == {broker.address}
        assert not client._given_up
        await client.close()


async def test_a_broker_that_is_gone_is_tried_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_instance, "RECONNECT_S", 0.01)
    port = free_port()
    broker = ProducerBroker(port=port)
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        client.start()
        await client.routes.get("topic")
        await client.greet_new_brokers()
        await broker.server.stop()
        await until(lambda: client._reconnect_s > 0.1)
        back = ProducerBroker(port=port)
        async with serving([back]):
            await until(lambda: back.heartbeats == 1)
            # The client stops its attempts to reconnect.
            await until(lambda: not client._lost)
            await client.close()


async def test_every_new_connection_begins_with_a_heartbeat() -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address, Producer(address, "group") as producer:
        await producer.send(Message("topic", b"x"))
        await until(lambda: broker.heartbeats == 1)
