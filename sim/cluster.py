"""Servers of a run: the package's own NameServers, brokers and controllers, whose files are small and fill soon.

Each broker of a name is its own program: broker-0 starts as the master and broker-0.1 as its slave. In controller mode,
the controller elects the master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.admin.broker_config import properties_of
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.config import from_properties, parse_properties, replace_file
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.remoting.tls import TlsMode
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import ASYNC_FLUSH, SYNC_FLUSH, StoreConfig
from gantrymq.system import files
from sim import access_control, light_units
from sim.machine import Host, Process, State
from sim.plan import Plan, broker_name
from sim.replicas_plan import CONTROLLED, SYNC_MASTER
from sim.state_store import SimEtcd, SimStateStore
from sim.system import World

NAMESRV_PORT = 9876
BROKER_PORT = 10911
CONTROLLER_PORT = 9878
#: Third number of the addresses of brokers, of their replicas and of controllers.
_BROKERS, _REPLICAS, _CONTROLLERS = 2, 20, 19
#: No program runs at this address, but links to it can be cut.
ETCD_ADDRESS = "10.0.18.1"
#: In milliseconds: a controller considers a broker without heartbeats dead after this time, and a lagging one out of
#: sync.
_SILENT_MS, _LAGS_MS = 5_000, 1_500
#: File with the configuration changes of administrators.
_BROKER_FILE = Path("/broker/broker.properties")
#: Interval of broker registrations, in milliseconds. Runs are long enough for two of them.
REGISTER_MS = 10_000
#: Time for which compaction keeps tombstones, in seconds.
TOMBSTONES_S = 10.0
#: Time from the start of a process to the start of its work, in seconds.
_START_S = 0.2

T = TypeVar("T")


def store_config(plan: Plan) -> StoreConfig:
    config = StoreConfig(
        store_path_root_dir=Path("/store"),
        mapped_file_size_commit_log=64 * 1024,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
        # Otherwise a full disk removes delayed messages with the oldest files.
        clean_file_forcibly_enable=False,
        flush_disk_type=SYNC_FLUSH if plan.is_synced else ASYNC_FLUSH,
        enable_lmq="lite-topics" in plan.extras,
    )
    if "compaction" not in plan.extras:
        return config
    return replace(
        config,
        # Files of nine messages.
        compaction_mapped_file_size=4096,
        compaction_cq_mapped_file_size=460,
        compaction_schedule_internal=4_000,
        compaction_tombstone_retention_ms=int(TOMBSTONES_S * 1000),
    )


class Program:
    """A program of a host. It can be started again after it was killed."""

    def __init__(self, host: Host, main: Callable[[Program], Coroutine[Any, Any, None]]) -> None:
        self.host = host
        self.name = host.name
        self._main = main
        #: Set by SIGTERM: the program then ends by itself.
        self.ending: asyncio.Event | None = None
        self.failure: BaseException | None = None
        #: True if the machine of the program is absent, so that it cannot start.
        self.is_away = False

    @property
    def is_alive(self) -> bool:
        return self.host.process is not None and self.host.process.state is not State.DEAD

    @property
    def is_ending(self) -> bool:
        """Returns true if the program received SIGTERM."""
        return self.ending is not None and self.ending.is_set()

    def look(self, work: Callable[[], T]) -> T:
        """Runs `work` in the context of the program's process and returns its result."""
        assert self.host.process is not None
        return self.host.process.context.run(work)

    def start(self) -> None:
        if self.is_alive or self.is_away:
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
            # As the command does: an error ends the program. The run starts it again.
            self.failure = e
        process.kill()


class Servers:
    """NameServers, brokers and controllers."""

    def __init__(self, world: World, plan: Plan) -> None:
        # Not when the module is imported: tests import it into processes that have real stores.
        light_units.install()
        self._plan = plan
        #: True for SYNC_FLUSH.
        self.is_synced = plan.is_synced
        self.name_servers = [
            Program(world.host(f"ns-{n}", f"10.0.1.{n + 1}"), self._name_server) for n in range(plan.name_servers)
        ]
        self.brokers = [Program(world.host(name, _broker_address(name)), self._broker) for name in plan.broker_programs]
        self.controllers = [
            Program(world.host(f"controller-{n}", f"10.0.{_CONTROLLERS}.{n + 1}"), self._controller)
            for n in range(plan.controllers)
        ]
        self._world = world
        #: State of the controllers. Each store has the share of its requests that fail.
        self.etcd = SimEtcd(world.loop.time)
        self.stores: dict[str, SimStateStore] = {}
        #: Callbacks for created and for started brokers. `running` has the previous broker during the calls.
        self.made: Callable[[Program, Broker], None] = lambda program, broker: None
        self.started: Callable[[Program, Broker], None] = lambda program, broker: None
        #: Time at which a broker of a name last became master, in seconds.
        self.became_master: dict[str, float] = {}
        self.addresses = ";".join(f"{program.host.address}:{NAMESRV_PORT}" for program in self.name_servers)
        #: The running or last server of each program, for checks.
        self.running: dict[str, Broker] = {}
        self.running_name_servers: dict[str, NameServer] = {}
        self._lives: dict[str, Process | None] = {}

    @property
    def all(self) -> list[Program]:
        return self.name_servers + self.brokers + self.controllers

    def replicas(self) -> dict[str, list[Program]]:
        """Returns the brokers of each name, initial masters first."""
        found: dict[str, list[Program]] = {}
        for program in self.brokers:
            found.setdefault(broker_name(program.name), []).append(program)
        return found

    def address_of(self, program: Program) -> str:
        """Returns the address of a broker as host:port."""
        return f"{program.host.address}:{BROKER_PORT}"

    def looked_into_by_name(self) -> Iterator[tuple[str, Broker]]:
        """Yields the same as `looked_into`, with names in place of programs."""
        return ((program.name, broker) for program, broker in self.looked_into())

    def masters(self) -> dict[str, Broker]:
        """Returns the broker of each name whose own role is master. Others may consider this broker dead."""
        return {
            broker.config.broker_name: broker
            for program, broker in self.looked_into()
            if broker.config.broker_role is not BrokerRole.SLAVE
        }

    def have_topic(self, topic: str) -> bool:
        """Returns true if each name has a master with this topic."""
        masters = self.masters()
        return len(masters) == self._plan.brokers and all(
            broker.topics.get(topic) is not None for broker in masters.values()
        )

    def name_servers_looked_into(self) -> Iterator[tuple[Program, NameServer]]:
        """Yields the NameServers that have started and are alive."""
        for program in self.name_servers:
            if program.is_alive and self._lives.get(program.name) is program.host.process:
                yield program, self.running_name_servers[program.name]

    def looked_into(self) -> Iterator[tuple[Program, Broker]]:
        """Yields the brokers that have started and are alive."""
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
                support_acting_master=self._plan.acting,
                notify_min_broker_id_changed=self._plan.acting,
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
        self.made(program, broker)
        if broker.replicas_manager is not None:

            def role_changed() -> None:
                if not broker.context.is_slave:
                    self.became_master[broker.config.broker_name] = self._world.loop.time()

            broker.context.events.role_changed.subscribe(role_changed)
        await broker.start()
        self.started(program, broker)
        self.running[program.name] = broker
        self._lives[program.name] = program.host.process
        assert program.ending is not None
        await program.ending.wait()
        await broker.stop()

    async def _controller(self, program: Program) -> None:
        loop, own = self._world.loop, program.host.address
        there, back = loop.network.link(own, ETCD_ADDRESS), loop.network.link(ETCD_ADDRESS, own)
        chance = Random(f"{self._plan.seed} {program.name} {loop.time()}")
        before = self.stores.get(program.name)
        store = SimStateStore(self.etcd, chance, lambda: there.is_cut or back.is_cut)
        store.trouble = before.trouble if before is not None else 0.0
        self.stores[program.name] = store
        controller = Controller(
            ControllerConfig(
                bind_address=own,
                listen_port=CONTROLLER_PORT,
                tls_server_mode=TlsMode.DISABLED,
                self_id=program.name,
                config_store_path=Path("/controller/controller.properties"),
                scan_not_active_broker_interval=1_000,
            ),
            store=store,
        )
        await controller.start()
        assert program.ending is not None
        await program.ending.wait()
        await controller.stop()

    def _broker_config(self, program: Program) -> BrokerConfig:
        """Returns the configuration of the run, with the changes of administrators."""
        config = BrokerConfig(
            broker_name=broker_name(program.name),
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
            auth=access_control.config_of_brokers() if self._plan.acl else AuthConfig(),
        )
        if self._plan.mode:
            config = self._replicated(config, program)
        if not files.exists(_BROKER_FILE):
            files.make_directory(_BROKER_FILE.parent)
            replace_file(_BROKER_FILE, b"")
        text = files.read_bytes(_BROKER_FILE).decode()
        properties = properties_of(config) | parse_properties(text, source=str(_BROKER_FILE))
        store = from_properties(StoreConfig, properties, source=str(_BROKER_FILE))
        replication = from_properties(ReplicationConfig, properties, source=str(_BROKER_FILE))
        read = from_properties(BrokerConfig, properties, source=str(_BROKER_FILE))
        return replace(read, store=store, replication=replication, auth=config.auth)

    def _replicated(self, config: BrokerConfig, program: Program) -> BrokerConfig:
        plan = self._plan
        replication = ReplicationConfig(
            ha_send_heartbeat_interval=1_000,
            ha_housekeeping_interval=5_000,
            ha_max_time_slave_not_catchup=_LAGS_MS,
            slave_timeout=1_000,
        )
        config = replace(config, slave_read_enable=True, replication=replication)
        if plan.mode == CONTROLLED:
            replication.all_ack_in_sync_state_set, replication.min_in_sync_replicas = True, plan.in_sync
            addresses = [f"{controller.host.address}:{CONTROLLER_PORT}" for controller in self.controllers]
            return replace(
                config,
                enable_controller_mode=True,
                controller_addr=addresses,
                controller_heart_beat_timeout_mills=_SILENT_MS,
            )
        replication.in_sync_replicas = plan.in_sync
        number = int(program.name.partition(".")[2] or 0)
        master = BrokerRole.SYNC_MASTER if plan.mode == SYNC_MASTER else BrokerRole.ASYNC_MASTER
        return replace(
            config,
            broker_id=number,
            broker_role=BrokerRole.SLAVE if number else master,
            enable_slave_acting_master=plan.acting,
            enable_remote_escape=plan.acting,
        )


def _broker_address(name: str) -> str:
    number, _, replica = name.partition("-")[2].partition(".")
    return f"10.0.{_REPLICAS + int(replica) if replica else _BROKERS}.{int(number) + 1}"
