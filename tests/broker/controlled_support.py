"""Brokers in controller mode, which share one broker name, in this event loop.

A NameServer and a controller with a SQLite file run with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker_support import Peer, config, name_server
from ports import free_port
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.errors import RequestTimeout
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.replication.config import ReplicationConfig


class ControlledBrokers:
    """Async context manager that runs a NameServer, a controller and `count` brokers.

    `options` are fields of each broker's configuration. `controller_options` are fields of the controller's.
    """

    def __init__(self, directory: Path, count: int = 3, *, min_in_sync: int = 2, **options: Any) -> None:
        self.directory = directory
        self.count = count
        self.replication: dict[str, Any] = {
            "all_ack_in_sync_state_set": True,
            "min_in_sync_replicas": min_in_sync,
            "slave_timeout": 10_000,
            # Tests pause slaves for a while, and these slaves must stay in sync.
            "ha_max_time_slave_not_catchup": 15_000,
            "ha_send_heartbeat_interval": 100,
        }
        self.options: dict[str, Any] = {
            "sync_broker_metadata_period": 500,
            "check_sync_state_set_period": 200,
            "broker_heartbeat_interval": 100,
            "controller_heart_beat_timeout_mills": 5_000,
        } | options
        self.store_options: dict[str, Any] = {}
        self.namesrv_options: dict[str, Any] = {}
        self.controller_options: dict[str, Any] = {}
        self.brokers: dict[int, Broker] = {}
        self.remoting = RemotingClient()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.name_server = name_server(self.directory, **self.namesrv_options)
        await self.name_server.start()
        self._stack.push_async_callback(self.name_server.stop)
        self._stack.push_async_callback(self.remoting.close)
        self._port = free_port()
        await self.start_controller()
        self._stack.push_async_callback(self._stop_controller)
        self._stack.push_async_callback(self._stop_all)
        for number in range(1, self.count + 1):
            await self.start(number)
            # One broker at a time, so that broker ids are assigned in this order.
            await until(lambda: self.in_sync() == set(self.brokers))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def start_controller(self) -> None:
        self.controller = Controller(
            ControllerConfig(
                bind_address="127.0.0.1",
                listen_port=self._port,
                controller_store_path=self.directory / "controller",
                config_store_path=self.directory / "controller.properties",
                **self.controller_options,
            )
        )
        await self.controller.start()

    def controller_addresses(self) -> list[str]:
        """Returns the controller addresses that the brokers use."""
        return [self.controller.address]

    async def _stop_controller(self) -> None:
        await self.controller.stop()

    async def _stop_all(self) -> None:
        for number in list(self.brokers):
            await self.stop(number)

    async def start(self, number: int) -> Broker:
        settings = config(
            self.directory / str(number),
            enable_controller_mode=True,
            controller_addr=self.controller_addresses(),
            namesrv_addr=[self.name_server.address],
            replication=ReplicationConfig(**self.replication),
            **self.options,
        )
        for name, value in self.store_options.items():
            setattr(settings.store, name, value)
        broker = self.brokers[number] = Broker(settings)
        await broker.start()
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).stop()

    def masters(self) -> list[int]:
        return [
            number
            for number, broker in self.brokers.items()
            if broker.config.broker_role is not BrokerRole.SLAVE and broker.appender.refusal is None
        ]

    async def master(self, *, other_than: int = 0) -> int:
        """Waits until there is exactly one master, and returns its broker id."""

        def one() -> int | None:
            masters = [number for number in self.masters() if number != other_than]
            return masters[0] if len(masters) == 1 else None

        return await until(one)

    def in_sync(self) -> set[int]:
        """Returns the in-sync set in the controller's tables."""
        known = self.controller.replicas.get("broker-a")
        return set(known.sync_state_set) if known is not None else set()

    async def all_in_sync(self) -> None:
        """Waits until all running brokers are in sync, for the controller and for the master."""

        def same() -> bool:
            masters = self.masters()
            if len(masters) != 1 or self.in_sync() != set(self.brokers):
                return False
            replicas_manager = self.brokers[masters[0]].replicas_manager
            assert replicas_manager is not None
            in_sync = replicas_manager.sync_state_sets.in_sync
            return in_sync is not None and in_sync.members == set(self.brokers)

        await until(same)

    async def caught_up(self) -> None:
        """Waits until every running broker has the whole log of the master."""
        end = self.brokers[await self.master()].store.max_physical_offset
        await until(lambda: {broker.store.max_physical_offset for broker in self.brokers.values()} == {end})

    async def peer(self, number: int) -> Peer:
        return Peer(await self.remoting.connection(f"127.0.0.1:{self.brokers[number].port}"))


def controller_client(broker: Broker) -> RemotingClient:
    """Returns the client with which a broker calls its controllers."""
    assert broker.replicas_manager is not None
    return broker.replicas_manager._remoting


def keep_controller_connections(broker: Broker) -> Callable[[], Awaitable[None]]:
    """Keeps the connections to the controllers open when the broker stops, as after a power failure.

    Returns the function that closes them.
    """
    client = controller_client(broker)
    close = client.close

    async def keep() -> None:
        pass

    client.close = keep  # type: ignore[method-assign]
    return close


class Link:
    """Cuts the link of a broker to its controllers.

    Until `mend` is called, every request times out.
    """

    def __init__(self, broker: Broker) -> None:
        self._is_whole = asyncio.Event()
        remoting = controller_client(broker)
        invoke = remoting.invoke

        async def through(address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
            try:
                await asyncio.wait_for(self._is_whole.wait(), timeout_ms / 1000)
            except TimeoutError:
                raise RequestTimeout("the link is cut", address) from None
            return await invoke(address, request, timeout_ms)

        remoting.invoke = through  # type: ignore[method-assign]

    def mend(self) -> None:
        self._is_whole.set()


async def elect(replicas: ControlledBrokers, number: int) -> None:
    header = ElectMasterRequestHeader(
        cluster_name="DefaultCluster", broker_name="broker-a", broker_id=number, designate_elect=True
    )
    request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
    await replicas.remoting.call(replicas.controller.address, request)
