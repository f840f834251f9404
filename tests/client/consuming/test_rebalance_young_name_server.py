"""A consumer group whose NameServer restarts and gets the registration of one broker earlier than of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from ports import free_port
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerUnavailable
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.store.config import StoreConfig

TOPIC = "orders"
NAMES = ("broker-a", "broker-b")


class Restarting:
    """Two brokers with two queues each, and a NameServer. Their ports are the same after a restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._ports = {name: free_port() for name in NAMES}
        self.brokers: dict[str, Broker] = {}
        self.name_server = self._new_name_server()

    def _new_name_server(self) -> NameServer:
        path = self._directory / "kvConfig.json"
        return NameServer(NamesrvConfig(listen_port=self._port, bind_address="127.0.0.1", kv_config_path=path))

    async def start(self) -> None:
        await self.name_server.start()
        for name in NAMES:
            await self.start_broker(name)

    async def start_broker(self, name: str) -> None:
        broker = self.brokers[name] = Broker(
            BrokerConfig(
                broker_name=name,
                bind_address="127.0.0.1",
                broker_ip1="127.0.0.1",
                listen_port=self._ports[name],
                namesrv_addr=[self.name_server.address],
                store=StoreConfig(self._directory / name, mapped_file_size_commit_log=1 << 20),
            )
        )
        await broker.start()
        broker.topics.create_if_absent(TOPIC, 2)

    async def restart_name_server(self, without: str) -> None:
        """Restarts the NameServer, and stops a broker meanwhile. The NameServer then awaits this broker."""
        await self.name_server.stop()
        await self.brokers[without].stop()
        self.name_server = self._new_name_server()
        await self.name_server.start()

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()
        await self.name_server.stop()

    def registered(self) -> set[str]:
        route = self.name_server.table.route(TOPIC)
        return set() if route is None else {queues.broker_name for queues in route.queue_datas}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Restarting]:
    cluster = Restarting(tmp_path)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def test_a_consumer_that_joins_takes_no_queue_that_another_one_has(
    cluster: Restarting, caplog: pytest.LogCaptureFixture
) -> None:
    """With different routes, both members would take the same queue and leave others without a consumer."""
    await until(lambda: cluster.registered() == set(NAMES))
    consumers = [LitePullConsumer(cluster.name_server.address, "readers") for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe(TOPIC)
    first, second = consumers
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(first)
        await until(lambda: len(first.assignment) == 4)
        await cluster.restart_name_server(without="broker-b")
        await until(lambda: cluster.registered() == {"broker-a"})
        caplog.clear()
        await stack.enter_async_context(second)
        await until(lambda: "broker-b, with queues of topic 'orders', has not registered" in caplog.text)
        assert second.assignment == set()
        with pytest.raises(BrokerUnavailable):
            await second.queues(TOPIC)
        async with Producer(cluster.name_server.address, "writers") as producer:
            with pytest.raises(BrokerUnavailable):
                await producer.queues(TOPIC)
        await cluster.start_broker("broker-b")
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        assert len(first.assignment | second.assignment) == 4
