"""The replication feature of a broker: a master sends its log to slaves, a slave follows its master.

Three requests read or change its state: EXCHANGE_BROKER_HA_INFO, GET_BROKER_HA_STATUS and RESET_MASTER_FLUSH_OFFSET
(906 to 908).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from math import inf

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication.ha_access import HaAccess
from gantrymq.broker.replication.master_address import MasterAddress
from gantrymq.broker.replication.required_replicas import ALL_IN_SYNC_STATE_SET
from gantrymq.broker.replication.sync_state_set import SyncStateSet
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.ha_status import HaStatus
from gantrymq.remoting.address import format_address
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.tls import client_context
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.link import LinkState
from gantrymq.replication.log_transfer import AutoSwitchLogTransfer
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave
from gantrymq.replication.slaves import Slave

log = peer_log(__name__)

#: A slave without a connection to a master queries the NameServers after this time, in seconds. The time doubles up to
#: `_LONGEST_LOOK_S`.
_FIRST_LOOK_S = 1.0
_LONGEST_LOOK_S = 30.0
#: The longest time that a stopping master waits until its slaves have caught up, in seconds.
_STOP_S = 3.0
#: In controller mode, the only source of the master's address.
_FROM_CONTROLLER = "controller"


class Replication(Feature):
    """Runs the replication of one broker. With `epochs`, the broker is in controller mode."""

    def __init__(self, context: BrokerContext, *, access: HaAccess, epochs: EpochFile | None) -> None:
        self._config = context.config
        self._access = access
        self._port = context.port
        self._store = context.store
        self._jobs = context.jobs
        self._events = context.events
        self.epochs = epochs
        self.following = MasterAddress(context.address, context.config.replication.ha_master_address)
        #: The sync-state set of this master; None outside controller mode and on a slave.
        self._in_sync: SyncStateSet | None = None
        #: The largest confirm offset that this broker computed as a master or received as a slave.
        self._confirmed = 0
        #: Set when all slaves have caught up; None unless the broker is stopping.
        self._all_have: asyncio.Event | None = None
        #: Number of times that the broker became master or slave.
        self.role_changes = 0
        self._master: HaMaster | None = None
        self.slave: HaSlave | None = None
        self._looking = context.jobs.repeating("look for the master", self._look)
        self._pause_s = _FIRST_LOOK_S
        #: On a master, the end of the log when it became master. On a slave, the offset from RESET_MASTER_FLUSH_OFFSET.
        self._flush_offset = 0
        context.events.config_changed.subscribe(self._config_changed)

    def _config_changed(self) -> None:
        """Updates the master side's copy of the configuration, except `ha_listen_port`, which is the port in use."""
        if self._master is not None:
            for field in fields(self._config.replication):
                if field.name != "ha_listen_port":
                    setattr(self._master.config, field.name, getattr(self._config.replication, field.name))

    # -- roles --------------------------------------------------------------------------------------------------

    async def become_master(self, begin_epoch: Callable[[], None] | None = None) -> None:
        """Accepts slaves. In controller mode, calls `begin_epoch` after the broker has left its former master.

        Raises GantryError if `haListenPort` is in use.
        """
        await self._end_slave()
        self.role_changes += 1
        self._store.set_slave(False)
        self._flush_offset = self._store.max_physical_offset
        if begin_epoch is not None:
            begin_epoch()
        self._master = self._listen()
        await self._master.start()

    async def become_slave(self) -> None:
        """Follows the master. Its address comes from `haMasterAddress`, the NameServers or the controller."""
        await self._end_master()
        await self._end_slave()
        self.role_changes += 1
        self._store.set_slave(True)
        config = self._config
        self.slave = HaSlave(
            self._store,
            config.replication,
            broker_id=config.broker_id,
            jobs=self._jobs,
            on_messages=self._events.messages_replicated.publish,
            ssl_context=client_context(config) if config.replication.ha_tls_enable else None,
            new_link=partial(self._autoswitch_link, self.epochs) if self.epochs is not None else None,
            new_handshake=self._access.slave_handshake,
        )
        self.slave.set_master(self.following.ha_address)
        await self.slave.start()
        if not config.enable_controller_mode:
            self._looking.start(_FIRST_LOOK_S)

    async def stop(self) -> None:
        """Stops replication. A master first lets its slaves catch up, for at most `_STOP_S`."""
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
        """Handles a change of a slave: it acknowledged more of the log, connected or disconnected."""
        self._events.replica_acknowledged.publish()
        if self._all_have is not None:
            end = self._store.max_physical_offset
            if all(slave.acknowledged >= end for slave in self.slaves() if not slave.is_learner):
                self._all_have.set()

    async def _end_slave(self) -> None:
        self._looking.cancel()
        slave, self.slave = self.slave, None
        if slave is not None:
            await slave.stop()

    async def _end_master(self) -> None:
        master, self._master = self._master, None
        if master is not None:
            await master.stop()

    def _listen(self) -> HaMaster:
        """Opens the HA port: `haListenPort` or, if that isn't set, the port after the broker's, as in Java.

        If the default port is in use, the master opens any free port. Slaves receive the port from the NameServers or
        the master.
        """
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
            config.replication,
            ListenOptions(config.bind_address, port),
            tls=config if config.replication.ha_tls_enable else None,
            jobs=self._jobs,
            on_acknowledged=self._look_who_has,
            log_transfer=partial(self._autoswitch_log_transfer, self.epochs) if self.epochs is not None else None,
            access=self._access,
        )

    def _autoswitch_link(self, epochs: EpochFile) -> AutoSwitchLink:
        config = self._config
        return AutoSwitchLink(self._store, Hello(config.broker_id, config.replication.sync_from_last_file), epochs)

    def _autoswitch_log_transfer(self, epochs: EpochFile) -> AutoSwitchLogTransfer:
        return AutoSwitchLogTransfer(self._store, epochs.epochs, self.confirm_offset, self._events.newer_epoch.publish)

    # -- as a master --------------------------------------------------------------------------------------------

    def replicated(self, count: int) -> int:
        """Returns the physical offset up to which `count` replicas have the log; 0 with fewer replicas."""
        if count == ALL_IN_SYNC_STATE_SET:
            return self.confirm_offset()
        return 0 if self._master is None else self._master.slaves.replicated(count)

    def in_sync_count(self) -> int:
        """Returns the number of replicas that lag by less than `haMaxGapNotInSync`, this broker included."""
        return 1 if self._master is None else self._master.slaves.in_sync_count(self._store.max_physical_offset)

    def slaves(self) -> list[Slave]:
        """Returns the slaves that are connected to this broker."""
        return [] if self._master is None else self._master.slaves.all()

    def set_in_sync(self, in_sync: SyncStateSet | None) -> None:
        """Sets the sync-state set of this master. None means that the broker isn't a master."""
        self._in_sync = in_sync

    def confirm_offset(self) -> int:
        """Returns the physical offset up to which all in-sync replicas have the log (`CommitLog.getConfirmOffset`).

        A slave returns the last offset that its master reported. Used in controller mode only.
        """
        if self._in_sync is not None:
            confirmed = self._in_sync.confirmed(self.slaves(), self._store.max_physical_offset)
        else:
            confirmed = (self.slave.confirm_offset if self.slave is not None else None) or 0
        self._confirmed = max(self._confirmed, confirmed)
        return self._confirmed

    def log_grew(self) -> None:
        """Starts sending new log data to the slaves, because a send waits for them."""
        if self._master is not None:
            self._master.log_grew()

    @property
    def ha_address(self) -> str:
        """The address that slaves connect to. On a slave its port is 0."""
        return format_address(self._config.ha_ip, 0 if self._master is None else self._master.port)

    # -- as a slave ---------------------------------------------------------------------------------------------

    @property
    def has_master(self) -> bool:
        """Whether another broker is the master, according to the NameServers or the controller."""
        return self.following.address is not None

    @property
    def log_end(self) -> int:
        """The physical offset of the end of this broker's log."""
        return self._store.max_physical_offset

    @property
    def is_following(self) -> bool:
        """Whether this slave receives the master's log or has already caught up."""
        return self.slave is not None and self.slave.state is LinkState.FOLLOWING

    def log_begins(self, physical_offset: int) -> None:
        """Sets the start of the master's log. An empty slave of a Java master starts replication there."""
        if self.slave is not None and self.following.ha_address is not None:
            self.slave.set_master(self.following.ha_address, physical_offset)

    @property
    def is_connected(self) -> bool:
        """Whether this slave is connected to its master."""
        return self.slave is not None and self.slave.state is not None

    @property
    def receives_from_master(self) -> bool:
        """Whether this slave has received data. A master that hangs accepts the connection but sends nothing."""
        return self.slave is not None and self.slave.receives_from_master

    def follow(self, address: str | None, ha_address: str | None) -> None:
        """Sets the master that the controller names. `address` is None if there is no master.

        `ha_address` is None until the master has reported its HA port.
        """
        before = self.following.address
        self.following.reported(_FROM_CONTROLLER, address, ha_address)
        if self.slave is not None:
            self.slave.set_master(ha_address)
        if address is not None and address != before:
            self._events.master_changed.publish()

    def leave_for(self, address: str, epoch: int) -> None:
        """Disconnects a slave from its former master, and sends it the new `epoch`. `address` is the new master's."""
        if self.slave is not None and self.following.address not in (None, address):
            self.slave.leave(epoch)

    def master_reported(self, name_server: str, address: str | None, ha_address: str | None) -> None:
        """Sets the master that a NameServer reports; None without a master. No effect in controller mode."""
        if self._config.enable_controller_mode:
            return
        before = self.following.address
        self.following.reported(name_server, address, ha_address)
        if self.slave is None:
            return
        # A slave stays connected if no address is known: its master may return before a NameServer lists it.
        if self.following.ha_address is not None:
            self.slave.set_master(self.following.ha_address)
        if self.following.address is not None and self.following.address != before:
            self._events.master_changed.publish()

    def _look(self) -> float:
        if self.slave is None:
            return inf
        if self.slave.state is not None:
            self._pause_s = _FIRST_LOOK_S
            return _FIRST_LOOK_S
        self._events.master_uncertain.publish()
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_LOOK_S)
        return pause_s

    # -- status -------------------------------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        """Whether this broker accepts slaves."""
        return self._master is not None

    @property
    def is_slave(self) -> bool:
        return self.slave is not None

    @property
    def flush_offset(self) -> int:
        """On a master, the end of the log when it became master. On a slave, the offset that its master reported."""
        return self._flush_offset

    def set_flush_offset(self, offset: int) -> None:
        """Stores the flush offset that a recovering master reported to this slave."""
        if self.slave is not None:
            self._flush_offset = offset

    def connect_to(self, ha_address: str) -> None:
        """Connects a slave to its master's HA port before the NameServers list that master."""
        if self.slave is not None:
            self.slave.set_master(ha_address)

    def status(self) -> HaStatus:
        """Returns the response to GET_BROKER_HA_STATUS."""
        if self._master is not None:
            return self._master.status()
        status = HaStatus() if self.slave is None else self.slave.status()
        status.client.master_flush_offset = self._flush_offset
        return status
