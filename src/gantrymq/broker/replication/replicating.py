"""Replication as one part of the broker: a master sends its log to slaves, a slave follows its master.

Asked about it with EXCHANGE_BROKER_HA_INFO, GET_BROKER_HA_STATUS and RESET_MASTER_FLUSH_OFFSET (906 to 908).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.long_polling import LongPolling
from gantrymq.broker.part import Part
from gantrymq.broker.replication.following import Following
from gantrymq.broker.replication.ha_access import HaAccess
from gantrymq.broker.replication.promises import ALL_IN_SYNC_STATE_SET
from gantrymq.broker.topics import BrokerTopics
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.ha import (
    ExchangeHaInfoRequestHeader,
    ExchangeHaInfoResponseHeader,
    ResetMasterFlushOffsetHeader,
)
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.tls import client_context
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.link import LinkState
from gantrymq.replication.master import HaMaster
from gantrymq.replication.sending import AutoSwitchSending
from gantrymq.replication.slave import HaSlave
from gantrymq.replication.slaves import Slave
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore

log = peer_log(__name__)

#: A slave that isn't connected with a master has the NameServers asked for one after so many seconds, the double ...
_FIRST_LOOK_S = 1.0
_LONGEST_LOOK_S = 30.0
#: So long a master that stops waits for its slaves to have all.
_STOP_S = 3.0
#: What EXCHANGE_BROKER_HA_INFO says of a master comes from no NameServer.
_FROM_MASTER = "EXCHANGE_BROKER_HA_INFO"
#: In controller mode all comes from there.
_FROM_CONTROLLER = "controller"


class Replicating(Part):
    """The replication of one broker at `address`.

    `acknowledged` is called when a slave has more of the log, `copy_tables` when a slave follows another master or gets
    messages of a topic that it doesn't know, `look_again` to have the NameServers asked for a master.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        port: int,
        store: MessageStore,
        topics: BrokerTopics,
        polling: LongPolling,
        jobs: Jobs,
        access: HaAccess,
    ) -> None:
        self._config = config
        self._access = access
        self._address = address
        self._port = port
        self._store = store
        self._topics = topics
        self._polling = polling
        self._jobs = jobs
        self.following = Following(address, config.replication.ha_master_address)
        self.acknowledged: Callable[[], None] = lambda: None
        self.copy_tables: Callable[[], None] = lambda: None
        #: With acting masters: ends standing in.
        self.stand_back: Callable[[], Awaitable[None]]
        self.look_again: Callable[[], None] = lambda: None
        #: In controller mode: the log's epochs, what is to be done before this broker's log is a master's, and up to
        #: where all in sync have it.
        self.epoch_file: EpochFile | None = None
        self.begins: Callable[[], None] = lambda: None
        self.confirm_offset: Callable[[], int] = lambda: 0
        self._newer_epoch_listeners: list[Callable[[int], None]] = []
        #: While the broker stops: set when all slaves have all.
        self._all_have: asyncio.Event | None = None
        #: How often the broker has become master or slave.
        self.role_changes = 0
        self._master: HaMaster | None = None
        self._slave: HaSlave | None = None
        self._looking = jobs.repeating("look for the master", self._look)
        self._pause_s = _FIRST_LOOK_S
        #: Where the log ended when this broker became master; at a slave, what RESET_MASTER_FLUSH_OFFSET said.
        self._flush_offset = 0

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.exchange,
            RequestCode.GET_BROKER_HA_STATUS: self.get_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_flush_offset,
        }

    def config_changed(self) -> None:
        """The master has a copy, with the port that it listens at."""
        if self._master is not None:
            for field in fields(self._config.replication):
                if field.name != "ha_listen_port":
                    setattr(self._master.config, field.name, getattr(self._config.replication, field.name))

    # -- roles --------------------------------------------------------------------------------------------------

    async def become_master(self) -> None:
        """Takes slaves. Raises GantryError when haListenPort is taken."""
        await self._end_slave()
        self.role_changes += 1
        self._store.set_slave(False)
        self._flush_offset = self._store.max_physical_offset
        self.begins()
        self._master = self._listen()
        await self._master.start()

    async def become_slave(self) -> None:
        """Follows whom the NameServers, haMasterAddress, or in controller mode the controller say."""
        await self._end_master()
        await self._end_slave()
        self.role_changes += 1
        self._store.set_slave(True)
        config = self._config
        self._slave = HaSlave(
            self._store,
            config.replication,
            broker_id=config.broker_id,
            jobs=self._jobs,
            on_messages=self._arrived,
            ssl_context=client_context(config) if config.replication.ha_tls_enable else None,
            new_link=partial(self._autoswitch_link, self.epoch_file) if self.epoch_file is not None else None,
            new_handshake=self._access.slave_handshake,
        )
        self._slave.set_master(self.following.ha_address)
        await self._slave.start()
        if not config.enable_controller_mode:
            self._looking.start(_FIRST_LOOK_S)

    async def stop(self) -> None:
        """A master's slaves get what it has, if that takes no longer than a moment."""
        await self._end_slave()
        if self._master is not None:
            self._all_have = asyncio.Event()
            self._look_who_has()
            self._master.log_grew()
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await self._all_have.wait()
        await self._end_master()

    def _look_who_has(self) -> None:
        """A slave has more, has come or has gone."""
        self.acknowledged()
        if self._all_have is not None:
            end = self._store.max_physical_offset
            if all(slave.acknowledged >= end for slave in self.slaves() if not slave.is_learner):
                self._all_have.set()

    async def _end_slave(self) -> None:
        self._looking.cancel()
        slave, self._slave = self._slave, None
        if slave is not None:
            await slave.stop()

    async def _end_master(self) -> None:
        master, self._master = self._master, None
        if master is not None:
            await master.stop()

    def _listen(self) -> HaMaster:
        """At haListenPort, or the port after the broker's as in Java, or, if that is taken, at any: slaves are told."""
        config = self._config.replication
        if config.ha_listen_port or not 0 < self._port < 65535:
            return self._listen_at(config.ha_listen_port)
        if self._config.listen_port:
            with suppress(GantryError):
                return self._listen_at(self._port + 1)
        return self._listen_at(0)

    def _listen_at(self, port: int) -> HaMaster:
        config = self._config
        return HaMaster(
            self._store,
            replace(config.replication, ha_listen_port=port),
            host=config.bind_address,
            tls=config if config.replication.ha_tls_enable else None,
            jobs=self._jobs,
            on_acknowledged=self._look_who_has,
            on_newer_epoch=self._newer_epoch,
            sending=partial(self._autoswitch_sending, self.epoch_file) if self.epoch_file is not None else None,
            access=self._access,
            address_of=partial(format_address, config.broker_ip1),
        )

    def _autoswitch_link(self, epochs: EpochFile) -> AutoSwitchLink:
        config = self._config
        return AutoSwitchLink(self._store, Hello(config.broker_id, config.replication.sync_from_last_file), epochs)

    def _autoswitch_sending(self, epochs: EpochFile) -> AutoSwitchSending:
        return AutoSwitchSending(self._store, epochs.epochs, self.confirm_offset)

    # -- as a master --------------------------------------------------------------------------------------------

    def replicated(self, count: int) -> int:
        """The physical offset up to which `count` replicas have the log; 0 with fewer replicas."""
        if count == ALL_IN_SYNC_STATE_SET:
            return self.confirm_offset()
        return 0 if self._master is None else self._master.slaves.replicated(count)

    def in_sync_count(self) -> int:
        """How many replicas are less than haMaxGapNotInSync behind, this broker among them."""
        return 1 if self._master is None else self._master.slaves.in_sync_count(self._store.max_physical_offset)

    def slaves(self) -> list[Slave]:
        """Those who follow this broker."""
        return [] if self._master is None else self._master.slaves.all()

    def when_newer_epoch(self, listener: Callable[[int], None]) -> None:
        """Calls `listener` when a slave says that another master leads in this epoch. An unsigned one may lie."""
        self._newer_epoch_listeners.append(listener)

    def _newer_epoch(self, epoch: int) -> None:
        for listener in self._newer_epoch_listeners:
            listener(epoch)

    def log_grew(self) -> None:
        """Somebody waits for slaves to have what is new."""
        if self._master is not None:
            self._master.log_grew()

    @property
    def ha_address(self) -> str:
        """Where slaves connect; at a slave port 0: it has none."""
        return format_address(self._config.broker_ip1, 0 if self._master is None else self._master.port)

    # -- as a slave ---------------------------------------------------------------------------------------------

    @property
    def has_master(self) -> bool:
        """Whether there is another broker that is this one's master, as far as is known."""
        return self.following.address is not None

    @property
    def log_end(self) -> int:
        """Where this broker's log ends."""
        return self._store.max_physical_offset

    @property
    def is_following(self) -> bool:
        """Whether the master's log comes, or what it has has come."""
        return self._slave is not None and self._slave.state is LinkState.FOLLOWING

    def log_begins(self, physical_offset: int) -> None:
        """The master's log begins there: what an empty slave of a Java master asks for."""
        if self._slave is not None and self.following.ha_address is not None:
            self._slave.set_master(self.following.ha_address, physical_offset)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection with the master that is followed."""
        return self._slave is not None and self._slave.state is not None

    @property
    def hears_master(self) -> bool:
        """Whether the master lives: one that hangs is connected, too, and says nothing."""
        return self._slave is not None and self._slave.hears_master

    @property
    def told_confirm_offset(self) -> int:
        """At a slave: up to where all in sync have the log, as its master said."""
        return (self._slave.confirm_offset if self._slave is not None else None) or 0

    def follow(self, address: str | None, ha_address: str | None) -> None:
        """What the controller says of this broker's master; None: there is none, or it isn't known where it listens."""
        before = self.following.address
        self.following.told(_FROM_CONTROLLER, address, ha_address)
        if self._slave is not None:
            self._slave.set_master(ha_address)
        if address is not None and address != before:
            self.copy_tables()

    def leave_for(self, address: str, epoch: int) -> None:
        """Another broker is master, in this epoch: a slave of the former one leaves it, and tells it so."""
        if self._slave is not None and self.following.address not in (None, address):
            self._slave.leave(epoch)

    def told(self, name_server: str, address: str | None, ha_address: str | None) -> None:
        """What a NameServer says of this broker's master; None when it knows none."""
        if self._config.enable_controller_mode:
            return
        before = self.following.address
        self.following.told(name_server, address, ha_address)
        if self._slave is None:
            return
        # Who is gone may be back before a NameServer knows it.
        if self.following.ha_address is not None:
            self._slave.set_master(self.following.ha_address)
        if self.following.address is not None and self.following.address != before:
            self.copy_tables()

    def _arrived(self, queues: Collection[ConsumeQueue]) -> None:
        for queue in queues:
            self._polling.message_arrived(queue)
            if self._topics.get(queue.topic) is None and not is_system_topic(queue.topic):
                # Nobody can read it here before the topic is known; the master may be gone in a moment.
                self.copy_tables()

    def _look(self) -> float:
        if self._slave is None:
            return inf
        if self._slave.state is not None:
            self._pause_s = _FIRST_LOOK_S
            return _FIRST_LOOK_S
        self.look_again()
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_LOOK_S)
        return pause_s

    # -- requests -----------------------------------------------------------------------------------------------

    def status(self) -> HaStatus:
        """What GET_BROKER_HA_STATUS answers."""
        if self._master is not None:
            return self._master.status()
        status = HaStatus() if self._slave is None else self._slave.status()
        status.client.master_flush_offset = self._flush_offset
        return status

    def get_status(self, connection: Connection, request: RemotingCommand) -> Reply:
        return RemotingCommand.response(body=self.status().encode())

    def exchange(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A slave asks its master where it listens for slaves, or is told by it."""
        header = request.read_header(ExchangeHaInfoRequestHeader)
        answer = ExchangeHaInfoResponseHeader()
        if header.master_ha_address is not None:
            if self._slave is not None:
                log.info("%s says that the master is %s", connection.address, header.master_address)
                if self._config.enable_slave_acting_master:
                    # It asks next how far this slave has got, which isn't to be what the master had before by then: its
                    # tables are copied once NameServers know it. Nor is more to be delivered here.
                    self._slave.set_master(header.master_ha_address)
                    connection.respond_with(request, self._stood_back())
                    return None
                self.told(_FROM_MASTER, header.master_address, header.master_ha_address)
        elif self._master is not None:
            answer.master_ha_address = self.ha_address
            answer.master_flush_offset = self._flush_offset
            answer.master_address = self._address
        return RemotingCommand.response(header=answer)

    async def _stood_back(self) -> Reply:
        await self.stand_back()
        return RemotingCommand.response(header=ExchangeHaInfoResponseHeader())

    def reset_flush_offset(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Java's slave takes no record from beyond that offset while its master recovers; here it is shown."""
        header = request.read_header(ResetMasterFlushOffsetHeader)
        if self._slave is not None and header.master_flush_offset is not None:
            self._flush_offset = header.master_flush_offset
        return RemotingCommand.response()
