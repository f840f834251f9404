"""A NameServer, a master and its slaves, in this event loop."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker_support import Peer, config, name_server, run_again
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.remoting.client import RemotingClient
from gantrymq.replication.config import ReplicationConfig


async def copy_tables(slave: Broker) -> None:
    """Copies the tables of the master at once; a slave does so every 10 s."""
    await run_again(slave.jobs, "copy the master's timer checkpoint")
    await run_again(slave.jobs, "copy the master's tables")


class Replicas:
    """Async context manager that runs a master and its slaves.

    `replication`, `options`, `store_options`, `master_store_options` and `namesrv_options` are read in `start`.
    """

    def __init__(self, directory: Path, slaves: int = 1, *, role: BrokerRole = BrokerRole.SYNC_MASTER) -> None:
        self.directory = directory
        self.role = role
        self.replication: dict[str, Any] = {"in_sync_replicas": slaves + 1, "slave_timeout": 10_000}
        self.options: dict[str, Any] = {}
        self.store_options: dict[str, Any] = {}
        self.master_store_options: dict[str, Any] = {}
        self.namesrv_options: dict[str, Any] = {}
        self._slave_count = slaves
        self._stack = AsyncExitStack()
        self.brokers: dict[int, Broker] = {}
        self.remoting = RemotingClient()

    async def __aenter__(self) -> Self:
        self.name_server = name_server(self.directory, **self.namesrv_options)
        await self.name_server.start()
        self._stack.push_async_callback(self.name_server.stop)
        self._stack.push_async_callback(self.remoting.close)
        self._stack.push_async_callback(self._stop_all)
        for broker_id in range(self._slave_count + 1):
            await self.start(broker_id)
        await until(lambda: len(self.statuses()) == self._slave_count)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _stop_all(self) -> None:
        # The master stops first: its pending requests can depend on slaves.
        for broker_id in sorted(self.brokers):
            await self.stop(broker_id)

    async def start(self, broker_id: int) -> Broker:
        settings = config(
            self.directory / str(broker_id),
            broker_id=broker_id,
            broker_role=self.role if not broker_id else BrokerRole.SLAVE,
            namesrv_addr=[self.name_server.address],
            replication=ReplicationConfig(**self.replication),
            slave_read_enable=True,
            **self.options,
        )
        own_options = self.master_store_options if not broker_id else {}
        for name, value in (self.store_options | own_options).items():
            setattr(settings.store, name, value)
        broker = self.brokers[broker_id] = Broker(settings)
        await broker.start()
        return broker

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).stop()

    @property
    def master(self) -> Broker:
        return self.brokers[0]

    @property
    def slave(self) -> Broker:
        return self.brokers[1]

    def statuses(self) -> list[int]:
        """Returns the acknowledged offset of each slave."""
        return [slave.slave_ack_offset for slave in self.master.replication.status().connections]

    async def peer(self, broker_id: int = 0) -> Peer:
        return Peer(await self.remoting.connection(f"127.0.0.1:{self.brokers[broker_id].port}"))

    async def caught_up(self) -> None:
        """Waits until every slave has the whole log of the master."""
        end = self.master.store.max_physical_offset
        await until(lambda: [b.store.max_physical_offset for b in self.brokers.values()] == [end] * len(self.brokers))
