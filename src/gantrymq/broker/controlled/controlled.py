"""Controlled: controller mode as one part of the broker (`ReplicasManager`).

The controller is asked for an id, told where the broker is, sent signs of life, and asked who is master: each
syncBrokerMetadataPeriod, when it says that there is news (NOTIFY_BROKER_ROLE_CHANGED, which anybody may send, so it is
asked), and while a slave has no connection with its master. What it answers goes to `Roles` at once; the broker is
changed accordingly by one job, one step after the other. As soon as another is master, the lease is over, or a slave
has left for a master of a newer epoch, nothing is taken any more, whatever that job is at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.background.repeating import Repeating
from gantrymq.broker.appender import Appender
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.controlled.controllers import Controllers, Progress
from gantrymq.broker.controlled.epoch_cache import epoch_cache
from gantrymq.broker.controlled.fence import Fence
from gantrymq.broker.controlled.handing_over import HandingOver
from gantrymq.broker.controlled.identity import Identity
from gantrymq.broker.controlled.keeping_in_sync import KeepingInSync
from gantrymq.broker.controlled.lease import Lease
from gantrymq.broker.controlled.roles import Role, Roles, Told
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.part import Part
from gantrymq.broker.replication.credentials import inner_client_hooks
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.errors import BrokerError, GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.ha import ExchangeHaInfoRequestHeader, ExchangeHaInfoResponseHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.tls import client_context
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.store.message_store import MessageStore
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: What a controller couldn't be asked, or a master wasn't yet, is tried again after this time, s.
_AGAIN_S = 0.5
#: The remark of a master whose lease is over; clients compare it (`client/failover.py`).
_NO_LEASE = "no controller has said of late that this broker is still the master"
#: A controller whose connection was lost hears after this time that the broker lives, s.
_SOON_S = 0.05


class Controlled(Part):
    """Of one broker at `address`.

    `make_master` and `make_slave` change all parts of the broker, `register` has the NameServers told of it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        store: MessageStore,
        replicating: Replicating,
        appender: Appender,
        flush_waits: FlushWaits,
        jobs: Jobs,
    ) -> None:
        self._config = config
        self._address = address
        self._store = store
        self._replicating = replicating
        self._appender = appender
        self._flush_waits = flush_waits
        self.make_master: Callable[[], Awaitable[None]]
        self.make_slave: Callable[[], Awaitable[None]]
        self.register: Callable[[int], None]
        self._remoting = RemotingClient(
            ssl_context=client_context(config), hooks=inner_client_hooks(config.auth), on_close=self._lost
        )
        self._controllers = Controllers(config, address, self._remoting)
        root = config.store.store_path_root_dir
        self._identity = Identity(root, config.broker_cluster_name, config.broker_name)
        self._epochs = EpochFile(root)
        #: Made when the broker has its id.
        self._roles: Roles | None = None
        #: What the parts of the broker are, and what the controller said of its set when it made it master.
        self._applied = Role()
        self._told_last = Told(0)
        self._lease = Lease()
        self._fence = Fence()
        #: Another is master: nothing is taken until the parts have changed.
        self._is_deposed = False
        self._is_registered = False
        self._syncing = jobs.repeating(
            "ask the controller who is master",
            self._sync,
            config.sync_broker_metadata_period / 1000,
            after_error_s=_AGAIN_S,
        )
        self._leading = jobs.repeating(
            "ask which controller leads", self._find_leader, config.sync_controller_metadata_period / 1000
        )
        self._changing = jobs.repeating("become master or slave", self._change, after_error_s=_AGAIN_S)
        self._in_sync = KeepingInSync(
            config, store, replicating, appender, flush_waits, self._controllers, jobs, self._syncing.wake
        )
        self._handing_over = HandingOver(store, self._in_sync, self._controllers, jobs, self._told)
        self._finding = jobs.repeating("ask the master where its log comes from", self._find_master)
        self._leasing = jobs.repeating("look whether the lease is over", self._look_at_lease)
        self._beating: dict[str, Repeating] = {
            controller: jobs.repeating(
                f"send signs of life to the controller {controller}",
                partial(self._beat, controller),
                config.broker_heartbeat_interval / 1000,
            )
            for controller in config.controller_addr
        }
        replicating.epoch_file = self._epochs
        replicating.begins = self._begin_epoch
        replicating.confirm_offset = self._in_sync.confirm_offset
        replicating.acknowledged = self._in_sync.acknowledged
        replicating.when_newer_epoch(self._newer_epoch)

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.get_epochs,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
        }

    # -- life ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the broker's id, if it has one, and its log's epochs. Raises StoreError and ConfigError."""
        self._identity.load()
        self._epochs.load(self._store.max_physical_offset)
        self._identified()

    def begin(self) -> None:
        """All parts have started: begins with its work."""
        for job in (self._changing, self._finding, self._leasing):
            job.start()
        self._in_sync.start()
        self._handing_over.start()
        self._syncing.start(0.0)
        self._leading.start()
        if self._roles is not None:
            self._start_beating()

    async def end(self) -> None:
        """The broker ends: its role isn't changed any more. The controller still takes it for living."""
        await self._in_sync.stop()
        await self._handing_over.stop()
        for job in (self._syncing, self._leading, self._finding, self._changing):
            await job.stop()

    async def stop(self) -> None:
        """Leaves the controllers, who elect another master if it was this one."""
        await self.end()
        self._leasing.cancel()
        for job in self._beating.values():
            await job.stop()
        await self._remoting.close()

    def config_changed(self) -> None:
        """What was asked for while the role changed must not bring back another one."""
        self._set_role(is_master=self._is_master)

    def _set_role(self, *, is_master: bool) -> None:
        config = self._config
        config.broker_role = BrokerRole.SYNC_MASTER if is_master else BrokerRole.SLAVE
        config.broker_id = MASTER_ID if is_master else self._identity.broker_id or -1

    @property
    def _is_master(self) -> bool:
        """The parts are a master's."""
        return self._roles is not None and self._applied.master_id == self._roles.own_id

    # -- id and signs of life -----------------------------------------------------------------------------------

    def _identified(self) -> None:
        """The broker has its id, if it has one."""
        broker_id = self._identity.broker_id
        if broker_id is not None:
            self._roles = Roles(broker_id)
            self._set_role(is_master=False)

    async def _get_id(self) -> None:
        """Applies for an id, the same one until it is known whose that is. Raises GantryError."""
        identity, controllers = self._identity, self._controllers
        if identity.applied is None:
            identity.apply_for(await controllers.next_id(), f"{self._address};{now_ms()}")
        assert identity.applied is not None
        try:
            await controllers.apply(*identity.applied)
        except BrokerError as e:
            if e.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                identity.refused()
            raise
        identity.given()
        log.info("the controller gave this broker of %s the id %s", self._config.broker_name, identity.broker_id)
        self._identified()

    def _start_beating(self) -> None:
        for job in self._beating.values():
            job.start(0.0)

    def _lost(self, address: str) -> None:
        """A connection. A controller takes a master for gone when it doesn't hear from it again soon."""
        if (beating := self._beating.get(address)) is not None:
            beating.wake(_SOON_S)

    async def _beat(self, controller: str) -> None:
        try:
            await self._send_heartbeat(controller)
        except GantryError as e:
            log.warning("the controller %s doesn't hear that this broker lives: %s", controller, e)

    async def _send_heartbeat(self, controller: str) -> None:
        """Raises GantryError."""
        assert self._roles is not None
        sent_at = monotonic()
        own_id, epoch = self._roles.own_id, self._roles.role.epoch
        lease_s = await self._controllers.heartbeat(controller, own_id, self._progress(), epoch)
        self._lease.answered(sent_at, lease_s)
        self._leasing.wake()

    def _progress(self) -> Progress:
        last = self._epochs.epochs.last
        end = self._store.max_physical_offset
        return Progress(last.number if last is not None else -1, end, min(self._in_sync.confirm_offset(), end))

    async def _find_leader(self) -> None:
        await self._controllers.find_leader()

    # -- what the controller says -------------------------------------------------------------------------------

    async def _sync(self) -> float:
        """Asks who is master; has one elected if there is none. Raises GantryError."""
        controllers = self._controllers
        if self._roles is None:
            await self._get_id()
            assert self._roles is not None
        if not self._is_registered:
            told = await controllers.register(self._roles.own_id)
            # Who isn't known to live isn't elected.
            await self._send_heartbeat(await controllers.find_leader())
            self._start_beating()
            self._is_registered = True
            if told is not None:
                await self._believe(told)
        asked_at = monotonic()
        try:
            told = await controllers.info()
        except BrokerError as e:
            self._is_registered &= e.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            raise
        await self._believe(told)
        role = self._roles.role
        if self._is_master and self._roles.is_master and (told.epoch, told.master_id) == (role.epoch, role.master_id):
            self._fence.is_master(asked_at, monotonic())
            self._look_at_lease()
            self._leasing.wake()
        if told.master_id is None:
            try:
                self._told(await controllers.elect(self._roles.own_id))
            except BrokerError as e:
                log.warning("there is no master, and this broker can't be it: %s", e)
                return _AGAIN_S
        return self._config.sync_broker_metadata_period / 1000

    async def _believe(self, told: Told) -> None:
        """Who was master when it ended without the controller's notice leaves that to another that is in sync.

        A power failure may have taken the end of its log, and slaves would cut theirs accordingly. If no other lives it
        is master again.
        """
        roles, last = self._roles, self._epochs.epochs.last
        assert roles is not None
        was_master = last is not None and (told.epoch, told.master_id) == (last.number, roles.own_id)
        if was_master and not self._applied.epoch:
            for other in sorted((told.members or frozenset()) - {roles.own_id}):
                try:
                    told = await self._controllers.elect(other, is_designated=True)
                except BrokerError as e:
                    log.warning("broker %d can't be the master in place of this one: %s", other, e)
                else:
                    break
        self._told(told)

    def role_changed(self, connection: Connection, request: RemotingCommand) -> Reply:
        """NOTIFY_BROKER_ROLE_CHANGED: the controller has news."""
        self._syncing.wake()
        return RemotingCommand.response()

    def _told(self, told: Told) -> None:
        roles, last = self._roles, self._epochs.epochs.last
        assert roles is not None
        # Its master may have been elected once more, and the log has come from there since.
        roles.last_epoch = last.number if last is not None else 0
        if roles.is_too_old(told):
            log.error(
                "the controller says epoch %d, and this broker's log has a later one: it is not the controller that it "
                "had, or that has lost its state",
                told.epoch,
            )
        elif roles.told(told):
            self._told_last = told
            role = roles.role
            log.info("epoch %d: master is %s at %s", role.epoch, role.master_id, role.master_address)
            if self._is_master and not roles.is_master:
                self._is_deposed = True
                self._look_at_lease()
                self._flush_waits.deposed()
            elif not self._is_master and role.master_address is not None:
                self._replicating.leave_for(role.master_address, role.epoch)
            # A lease is granted to who was told.
            for beating in self._beating.values():
                beating.wake()
            self._changing.wake()
        elif told.members is not None:
            self._in_sync.told(told.epoch, told.members, told.members_epoch)

    # -- roles --------------------------------------------------------------------------------------------------

    async def _change(self) -> None:
        """Makes the broker what it is to be. Raises GantryError; it is tried again."""
        roles = self._roles
        if roles is None or roles.role == self._applied:
            return
        role = roles.role
        if not roles.is_master:
            await self._become_slave(role)
        elif self._is_master:
            self._applied = role
            self._fence = Fence()
            self._begin_epoch()
        else:
            # From here on it counts as master: what fails is tried again, or undone when another is.
            self._applied = role
            self._fence = Fence()
            self._set_role(is_master=True)
            try:
                await self.make_master()
            except BaseException:
                self._applied = Role()
                self._set_role(is_master=False)
                raise
        # The controller may have said something else meanwhile.
        self._is_deposed = self._is_master and not roles.is_master
        self._look_at_lease()
        self._leasing.wake()
        self.register(role.epoch)
        log.info("this broker is %s in epoch %d", "the master" if self._is_master else "a slave", role.epoch)

    async def _become_slave(self, role: Role) -> None:
        if self._is_master or not self._applied.epoch:
            self._in_sync.end()
            self._applied = Role()
            self._set_role(is_master=False)
            await self.make_slave()
            # A last epoch of which nothing was written is of no log.
            self._epochs.epochs.truncate_from(self._store.max_physical_offset)
            self._epochs.save()
        self._applied = role
        self._replicating.follow(role.master_address, None)
        self._finding.wake()

    def _begin_epoch(self) -> None:
        """The broker's log is a master's from here on. Raises StoreError, ReplicationError for one of a later epoch."""
        roles = self._roles
        assert roles is not None
        number, end = self._applied.epoch, self._store.max_physical_offset
        epochs = self._epochs.epochs
        epochs.forget_before(self._store.min_physical_offset)
        last = epochs.last
        if last is None or last.number < number:
            # One in which nothing was written would keep this one from having its own beginning.
            epochs.truncate_from(end)
        if last is None or last.number != number:
            self._epochs.begin(number, end)
        told = self._told_last
        last = epochs.last
        assert last is not None
        self._in_sync.begin(roles.own_id, number, told.members or (), told.members_epoch, last.start_offset)

    async def _find_master(self) -> float:
        """Asks the master where its log comes from, until that comes."""
        address = self._master_address
        if self._is_master or address is None:
            return inf
        if not self._replicating.is_connected:
            # It may be gone, and another master.
            self._syncing.wake()
            try:
                request = RemotingCommand.request(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfoRequestHeader())
                answer = await self._remoting.call(address, request)
                ha_address = answer.read_header(ExchangeHaInfoResponseHeader).master_ha_address
            except GantryError as e:
                log.warning("the master %s doesn't say where its log comes from: %s", address, e)
            else:
                if ha_address and not self._is_master and address == self._master_address:
                    self._replicating.follow(address, ha_address)
        return _AGAIN_S

    @property
    def _master_address(self) -> str | None:
        """That of the master which this broker follows; None while it is still to change to another one."""
        roles = self._roles
        is_latest = roles is not None and roles.role == self._applied
        return self._applied.master_address if is_latest else None

    def _newer_epoch(self, epoch: int) -> None:
        """A slave says that another master leads in this epoch."""
        if self._is_master and epoch > self._applied.epoch:
            self._fence.newer_epoch(epoch, monotonic())
            self._look_at_lease()
            self._leasing.wake()

    def _look_at_lease(self) -> float:
        """Takes messages, or doesn't; when to look again."""
        now, refusal = monotonic(), self._appender.refusal
        if self._is_deposed:
            self._appender.refusal = "another broker is master"
        elif self._is_master and self._fence.is_closed(now):
            epoch = self._fence.epoch
            self._appender.refusal = f"another broker is master, in epoch {epoch}, says a slave of this one"
            if self._appender.refusal != refusal:
                log.warning("nothing is taken until a controller says that this broker is master, not one of %d", epoch)
                self._flush_waits.deposed()
                self._syncing.wake()
        elif self._is_master and self._lease.is_over(now):
            is_confirmed = self._in_sync.confirms_master(now)
            self._appender.refusal = None if is_confirmed else _NO_LEASE
            if not is_confirmed and refusal is None:
                log.warning(
                    "no controller is reachable: the broker rejects messages until one answers, because another broker "
                    "may be master"
                )
            # Slaves come and go.
            return min(_AGAIN_S, self._fence.closes_at - now)
        else:
            self._appender.refusal = None
            # That of a slave may be over; it is looked at again when it becomes master.
            return min(self._lease.until, self._fence.closes_at) - now if self._is_master else inf
        return inf

    # -- requests -----------------------------------------------------------------------------------------------

    def get_epochs(self, connection: Connection, request: RemotingCommand) -> Reply:
        """From where to where the masters of which epochs have written the log."""
        cache = epoch_cache(self._config, self._epochs.epochs, self._store.max_physical_offset)
        return RemotingCommand.response(body=encode_json(cache))
