"""The servers of a run: the package's own, with small files so that what needs a full file happens soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.remoting.tls import TlsMode
from gantrymq.store.config import ASYNC_FLUSH, SYNC_FLUSH, StoreConfig
from sim.machine import Host, State
from sim.plan import Plan
from sim.system import World

NAMESRV_PORT = 9876
BROKER_PORT = 10911
#: So long a program takes from its start to its first line.
_START_S = 0.2


def store_config(plan: Plan) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=Path("/store"),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
        # Or a full disk takes delayed messages with the oldest files.
        clean_file_forcibly_enable=False,
        flush_disk_type=SYNC_FLUSH if plan.is_synced else ASYNC_FLUSH,
    )


class Program:
    """What a host runs, and runs again after it was killed."""

    def __init__(self, host: Host, main: Callable[[Program], Coroutine[Any, Any, None]]) -> None:
        self.host = host
        self.name = host.name
        self._main = main
        #: SIGTERM: the program ends by itself.
        self.ending: asyncio.Event | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        if self.host.process is not None and self.host.process.state is not State.DEAD:
            return
        self.ending = asyncio.Event()
        self.host.start(self._run)

    async def _run(self) -> None:
        await asyncio.sleep(_START_S)
        process = self.host.process
        assert process is not None
        try:
            await self._main(self)
        except Exception as e:
            # As the command does: it says so and ends; whoever looks after it starts it again.
            self.failure = e
        process.kill()


class Servers:
    """NameServers and brokers."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._plan = plan
        self.name_servers = [
            Program(world.host(f"ns-{n}", f"10.0.1.{n + 1}"), self._name_server) for n in range(plan.name_servers)
        ]
        self.brokers = [
            Program(world.host(f"broker-{n}", f"10.0.2.{n + 1}"), self._broker) for n in range(plan.brokers)
        ]
        self.addresses = ";".join(f"{program.host.address}:{NAMESRV_PORT}" for program in self.name_servers)
        #: The brokers that run, for those who look into them.
        self.running: dict[str, Broker] = {}

    @property
    def all(self) -> list[Program]:
        return self.name_servers + self.brokers

    async def _name_server(self, program: Program) -> None:
        server = NameServer(
            NamesrvConfig(
                bind_address=program.host.address,
                listen_port=NAMESRV_PORT,
                tls_server_mode=TlsMode.DISABLED,
                kv_config_path=Path("/namesrv/kvConfig.json"),
                config_store_path=Path("/namesrv/namesrv.properties"),
            )
        )
        await server.start()
        assert program.ending is not None
        await program.ending.wait()
        await server.stop()

    async def _broker(self, program: Program) -> None:
        broker = Broker(
            BrokerConfig(
                broker_name=program.name,
                broker_ip1=program.host.address,
                bind_address=program.host.address,
                listen_port=BROKER_PORT,
                namesrv_addr=self.addresses.split(";"),
                tls_server_mode=TlsMode.DISABLED,
                default_topic_queue_nums=4,
                transaction_check_interval=5_000,
                store=store_config(self._plan),
            )
        )
        await broker.start()
        self.running[program.name] = broker
        assert program.ending is not None
        await program.ending.wait()
        await broker.stop()
