"""Heartbeats of producers and consumers to brokers."""

from __future__ import annotations

import asyncio

import pytest
from constants import change_constant
from ports import free_port
from scripted import serving
from scripted_producer import ProducerBroker, scripted_cluster
from wait_until import until

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


async def test_an_exception_of_a_hook_is_logged_and_heartbeats_continue(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_close_unregisters_from_no_broker_that_left_the_routes(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise their addresses would accumulate, and the close would try to connect to each."""
    broker, gone = ProducerBroker(), ProducerBroker("gone")
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        async with serving([gone]):
            await client.routes.get("topic")
            client.routes.all_brokers()["gone"] = {0: gone.address}
            await client.greet_new_brokers()
            assert (broker.heartbeats, gone.heartbeats) == (1, 1)
            del client.routes.all_brokers()["gone"]
            caplog.clear()
            await client.heartbeat()
            await client.close()
        assert (broker.heartbeats, gone.heartbeats) == (2, 1)
        assert (broker.unregistered, gone.unregistered) == (1, 0)
        assert not caplog.records


async def test_a_lost_connection_causes_a_new_heartbeat() -> None:
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


async def test_greet_new_brokers_sends_a_heartbeat_after_a_lost_connection() -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address, Producer(address, "group") as producer:
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.connection is not None
        broker.connection.abort()
        await until(lambda: not producer.client.remoting.is_connected(broker.address))
        await producer.queues("topic")
        await producer.client.greet_new_brokers()
        assert broker.heartbeats == 2


async def test_the_next_caller_waits_for_the_heartbeat_of_a_cancelled_call() -> None:
    """A cancelled caller must not count as a finished heartbeat. Otherwise the next request's reply is lost."""
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        cancelled = asyncio.ensure_future(client.greet_new_brokers())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert broker.heartbeats == 0
        await client.greet_new_brokers()
        assert broker.heartbeats == 1
        await client.close()


async def test_concurrent_callers_wait_for_the_same_heartbeat() -> None:
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


async def test_the_next_caller_waits_for_the_heartbeat_of_a_call_without_time() -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        await client.greet_new_brokers(0.0)
        assert broker.heartbeats == 0
        await client.greet_new_brokers()
        assert broker.heartbeats == 1
        await client.close()


async def test_only_the_first_callers_wait_for_a_broker_that_hangs() -> None:
    broker = ProducerBroker()
    broker.hangs = True
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, group_data=ProducerData("group"))
        await client.routes.get("topic")
        waited = [asyncio.ensure_future(client.greet_new_brokers(0.2)) for _ in range(2)]
        await asyncio.gather(*waited)
        assert broker.heartbeats == 1
        async with asyncio.timeout(0.1):
            await client.greet_new_brokers()
        # If the broker responds again, it is used again.
        (await until(lambda: broker.connection)).abort()
        broker.hangs = False
        await until(lambda: not client.remoting.is_connected(broker.address))
        await client.greet_again(broker.address)
        assert broker.heartbeats == 2
        # The producer unregisters only from brokers that accepted its heartbeat.
        await client.close()
        assert broker.unregistered == 1


async def test_the_pause_between_reconnects_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "client_instance.RECONNECT_S", 0.01)
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


async def test_a_new_connection_starts_with_a_heartbeat() -> None:
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address, Producer(address, "group") as producer:
        await producer.send(Message("topic", b"x"))
        await until(lambda: broker.heartbeats == 1)
