"""The servers of a run: the package's own, with small files so that what needs a full file happens soon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gantrymq.broker.admin.broker_config import properties_of
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import from_properties, parse_properties, replace_file
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.remoting.tls import TlsMode
from gantrymq.store.config import ASYNC_FLUSH, SYNC_FLUSH, StoreConfig
from gantrymq.system import files
from sim.machine import Host, Process, State
from sim.plan import Plan
from sim.system import World

NAMESRV_PORT = 9876
BROKER_PORT = 10911
#: What administrators change is written to it.
_BROKER_FILE = Path("/broker/broker.properties")
#: Brokers tell the NameServers about themselves so often, ms: two of these are over soon.
REGISTER_MS = 10_000
#: So long a program takes from its start to its first line.
_START_S = 0.2

T = TypeVar("T")


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

    @property
    def is_alive(self) -> bool:
        return self.host.process is not None and self.host.process.state is not State.DEAD

    @property
    def is_ending(self) -> bool:
        """It was told to."""
        return self.ending is not None and self.ending.is_set()

    def look(self, work: Callable[[], T]) -> T:
        """What `work` finds in this host, as its process would."""
        assert self.host.process is not None
        return self.host.process.context.run(work)

    def start(self) -> None:
        if self.is_alive:
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
        #: SYNC_FLUSH.
        self.is_synced = plan.is_synced
        self.name_servers = [
            Program(world.host(f"ns-{n}", f"10.0.1.{n + 1}"), self._name_server) for n in range(plan.name_servers)
        ]
        self.brokers = [
            Program(world.host(f"broker-{n}", f"10.0.2.{n + 1}"), self._broker) for n in range(plan.brokers)
        ]
        self.addresses = ";".join(f"{program.host.address}:{NAMESRV_PORT}" for program in self.name_servers)
        #: What runs, or ran last, for those who look into it.
        self.running: dict[str, Broker] = {}
        self.running_name_servers: dict[str, NameServer] = {}
        self._lives: dict[str, Process | None] = {}

    @property
    def all(self) -> list[Program]:
        return self.name_servers + self.brokers

    def name_servers_looked_into(self) -> Iterator[tuple[Program, NameServer]]:
        """As `looked_into`."""
        for program in self.name_servers:
            if program.is_alive and self._lives.get(program.name) is program.host.process:
                yield program, self.running_name_servers[program.name]

    def looked_into(self) -> Iterator[tuple[Program, Broker]]:
        """The brokers that have started and are not dead."""
        for program in self.brokers:
            if program.is_alive and self._lives.get(program.name) is program.host.process:
                yield program, self.running[program.name]

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
        self.running_name_servers[program.name] = server
        self._lives[program.name] = program.host.process
        assert program.ending is not None
        await program.ending.wait()
        await server.stop()

    async def _broker(self, program: Program) -> None:
        broker = Broker(self._broker_config(program))
        await broker.start()
        self.running[program.name] = broker
        self._lives[program.name] = program.host.process
        assert program.ending is not None
        await program.ending.wait()
        await broker.stop()

    def _broker_config(self, program: Program) -> BrokerConfig:
        """The run's, with what administrators have changed."""
        config = BrokerConfig(
            broker_name=program.name,
            broker_ip1=program.host.address,
            bind_address=program.host.address,
            listen_port=BROKER_PORT,
            namesrv_addr=self.addresses.split(";"),
            tls_server_mode=TlsMode.DISABLED,
            default_topic_queue_nums=4,
            transaction_check_interval=5_000,
            recall_message_enable=True,
            register_name_server_period=REGISTER_MS,
            broker_config_path=_BROKER_FILE,
            store=store_config(self._plan),
        )
        if not files.exists(_BROKER_FILE):
            files.make_directory(_BROKER_FILE.parent)
            replace_file(_BROKER_FILE, b"")
        text = files.read_bytes(_BROKER_FILE).decode()
        properties = properties_of(config) | parse_properties(text, source=str(_BROKER_FILE))
        store = from_properties(StoreConfig, properties, source=str(_BROKER_FILE))
        return replace(from_properties(BrokerConfig, properties, source=str(_BROKER_FILE)), store=store)
