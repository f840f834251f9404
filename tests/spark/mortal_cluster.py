"""MortalCluster: two brokers and a NameServer in this process, which a test can stop and start individually."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ports import free_port
from wait_until import until

from gantrymq.background.loop_thread import LoopThread
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.config import StoreConfig

HOST = "127.0.0.1"
NAMES = ("broker-a", "broker-b")
QUEUES = 2


class MortalCluster:
    """Context manager that runs the cluster. `name_server` is host:port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = LoopThread("mortal cluster")
        self._name_server: NameServer | None = None
        self._port = free_port()
        self._brokers: dict[str, Broker] = {}

    @property
    def name_server(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def alive(self) -> set[str]:
        """Names of the running brokers."""
        return set(self._brokers)

    def __enter__(self) -> Self:
        self._loop.start()
        self.start_name_server()
        for name in NAMES:
            self.start_broker(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self._brokers):
            self.stop_broker(name)
        self.stop_name_server()
        self._loop.stop()

    def start_name_server(self, *, remembers: bool = False, wait_s: int = 0) -> None:
        """Starts a NameServer on the port of the previous one.

        If `remembers` is true, it keeps the previous one's data about brokers; otherwise it starts empty. It serves
        routes after `wait_s` seconds.
        """
        root = self._directory / "namesrv"
        config = NamesrvConfig(
            bind_address=HOST,
            listen_port=self._port,
            kv_config_path=root / "kvConfig.json",
            config_store_path=root / "namesrv.properties",
            need_wait_for_service=wait_s > 0,
            wait_seconds_for_service=wait_s,
        )

        if not remembers:
            config.known_brokers_path.unlink(missing_ok=True)

        async def start() -> NameServer:
            name_server = NameServer(config)
            await name_server.start()
            return name_server

        self._name_server = self._loop.submit(start()).result()

    def stop_name_server(self) -> None:
        if self._name_server is not None:
            self._loop.submit(self._name_server.stop()).result()
            self._name_server = None

    def start_broker(self, name: str) -> None:
        """Starts a broker and returns when it is registered."""
        config = BrokerConfig(
            broker_name=name,
            broker_ip1=HOST,
            bind_address=HOST,
            listen_port=0,
            namesrv_addr=[self.name_server],
            auto_create_topic_enable=False,
            transaction_time_out=1,
            store=StoreConfig(store_path_root_dir=self._directory / name, mapped_file_size_commit_log=1024 * 1024),
        )

        async def start() -> Broker:
            broker = Broker(config)
            await broker.start()
            return broker

        self._brokers[name] = self._loop.submit(start()).result()

    def stop_broker(self, name: str) -> None:
        """Stops a broker, which unregisters it from the NameServer at once."""
        self._loop.submit(self._brokers.pop(name).stop()).result()

    def clients(self) -> set[str]:
        """Returns host:port of all clients that are connected to a broker."""
        return {c.address for broker in self._brokers.values() for c in broker._server.connections}

    # -- topics ---------------------------------------------------------------------------------------------------

    def give_up(self, broker_name: str) -> None:
        """Deletes the NameServer's record of a broker that is down."""

        async def forget() -> None:
            async with AdminClient(self.name_server) as admin:
                await admin.kv_delete("LOST_BROKERS", broker_name)

        self._loop.submit(forget()).result()

    def create_topic(self, topic: str, queues: int = QUEUES) -> None:
        """Creates a topic on all running brokers and returns when the NameServer has its route for each of them."""

        async def create() -> None:
            remoting = RemotingClient()
            api = BrokerApi(remoting)
            for broker in self._brokers.values():
                await api.create_topic(
                    broker.address, TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
                )
            await remoting.close()

        asyncio.run(create())
        self.wait_for_route(topic)

    def wait_for_route(self, topic: str) -> None:
        """Waits until the NameServer has the topic's route for all running brokers."""

        async def wait() -> None:
            remoting = RemotingClient()
            api = BrokerApi(remoting)

            async def is_known() -> bool:
                with suppress(NoRouteInfo):
                    return len((await api.route(self.name_server, topic)).queue_datas) == len(self._brokers)
                return False

            await until(is_known)
            await remoting.close()

        asyncio.run(wait())

    def delete_topic(self, topic: str) -> None:
        async def delete() -> None:
            async with AdminClient(self.name_server) as admin:
                await admin.delete_topic(topic, "DefaultCluster")

        asyncio.run(delete())

    def send(self, topic: str, numbers: Sequence[int]) -> None:
        """Sends the numbers as bodies, one message to each queue of the running brokers in turn."""

        async def send() -> None:
            async with Producer(self.name_server, "numbers") as producer:
                for number in numbers:
                    await producer.send(Message(topic, b"%d" % number))

        asyncio.run(send())
