"""What a producer or consumer tells brokers of itself."""

from __future__ import annotations

import pytest
from scripted_producer import ProducerBroker, scripted_cluster

from gantrymq.client.client_instance import ClientInstance
from gantrymq.protocol.bodies.heartbeat import ProducerData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand


class BrokenHook:
    """A user's hook that fails on heartbeats, as long as it is `broken`."""

    def __init__(self) -> None:
        self.broken = True

    def before_request(self, address: str, request: RemotingCommand) -> None:
        if self.broken and request.code == RequestCode.HEART_BEAT:
            raise ValueError("as scripted")

    def after_response(self, address: str, request: RemotingCommand, response: RemotingCommand) -> None:
        pass


async def test_whatever_fails_in_a_heartbeat_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The rebalance and the pulls, which heartbeat too, would end for ever."""
    broker, hook = ProducerBroker(), BrokenHook()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, producer_data=ProducerData("group"), hooks=[hook])
        await client.routes.get("topic")
        await client.greet_new_brokers()
        assert "as scripted" in caplog.text
        hook.broken = False
        await client.heartbeat()
        assert broker.heartbeats == 1
        await client.close()


async def test_brokers_that_have_left_are_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    """Their addresses would gather, and the close would try to reach each."""
    broker = ProducerBroker()
    async with scripted_cluster(broker) as address:
        client = ClientInstance(address, producer_data=ProducerData("group"))
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
