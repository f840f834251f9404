"""Controller mode of a broker (`ReplicasManager`).

The broker gets an id from the controller, registers its address and sends heartbeats. It queries the master each
`syncBrokerMetadataPeriod`, after NOTIFY_BROKER_ROLE_CHANGED, and while a slave has no connection to its master. Any
client can send that notification, so only the controller's response counts.

`Roles` gets each response at once. One job then changes the broker step by step. The broker rejects messages even
before this job has run, as soon as one of these conditions is true:
- Another broker is master.
- The lease has ended.
- A slave has reported a master with a newer epoch.
"""

from __future__ import annotations

from functools import partial
from math import inf

from gantrymq.background.repeating import Repeating
from gantrymq.broker.append import Appender, PendingResponses
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.controller.controllers import Controllers, Progress
from gantrymq.broker.controller.handover import Handover
from gantrymq.broker.controller.identity import Identity
from gantrymq.broker.controller.lease import Fence, Lease
from gantrymq.broker.controller.roles import BrokerSetState, Role, Roles
from gantrymq.broker.controller.sync_state_sets import SyncStateSets
from gantrymq.broker.credentials import inner_client_hooks
from gantrymq.broker.feature import Feature
from gantrymq.broker.registration import Registration
from gantrymq.broker.replication import Replication
from gantrymq.broker.role_changes import RoleChanges
from gantrymq.errors import BrokerError, GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.ha import ExchangeHaInfoRequestHeader, ExchangeHaInfoResponseHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import client_context
from gantrymq.replication.epochs import Epochs
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)

#: Pause before a failed request to a controller or a master is repeated, in seconds.
_AGAIN_S = 0.5
#: Remark of the responses while the lease has ended. Clients compare it (`client/failover.py`).
_NO_LEASE = "no controller has said of late that this broker is still the master"
#: After a lost connection, the next heartbeat to that controller is sent after this time, in seconds.
_SOON_S = 0.05


class ReplicasManager(Feature):
    """Makes the broker master or slave, as the controllers decide."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        replication: Replication,
        appender: Appender,
        pending_responses: PendingResponses,
        registration: Registration,
        role_changes: RoleChanges,
    ) -> None:
        config, store, jobs = context.config, context.store, context.jobs
        self._config = config
        self._address = context.address
        self._events = context.events
        self._store = store
        self._replication = replication
        self._appender = appender
        self._pending_responses = pending_responses
        self._registration = registration
        self._role_changes = role_changes
        self._remoting = RemotingClient(
            ssl_context=client_context(config), hooks=inner_client_hooks(config.auth), on_close=self._lost
        )
        self._controllers = Controllers(config, context.address, self._remoting)
        root = config.store.store_path_root_dir
        self._identity = Identity(root, config.broker_cluster_name, config.broker_name)
        assert replication.epochs is not None
        self._epochs = replication.epochs
        #: None until the broker has its id.
        self._roles: Roles | None = None
        #: The current role of the features, and the controller's state from which it was derived.
        self._applied = Role()
        self._last_state = BrokerSetState(0)
        self._lease = Lease()
        self._fence = Fence()
        #: Whether another broker is master, and this broker's features have not become slave yet. The broker then
        #: rejects messages.
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
        self.sync_state_sets = SyncStateSets(
            context,
            replication=replication,
            appender=appender,
            pending_responses=pending_responses,
            controllers=self._controllers,
            doubtful=self._syncing.wake,
        )
        self._handing_over = Handover(store, self.sync_state_sets, self._controllers, jobs, self._state_received)
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
        context.events.newer_epoch.subscribe(self._newer_epoch)

    @property
    def epochs(self) -> Epochs:
        """The epochs of this broker's log."""
        return self._epochs.epochs

    # -- lifecycle ----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the broker's id, if it has one, and the epochs of its log. Raises StoreError and ConfigError."""
        self._identity.load()
        self._epochs.load(self._store.max_physical_offset)
        self._identified()

    def begin(self) -> None:
        """Starts the background jobs. Call it after all features have started."""
        for job in (self._changing, self._finding, self._leasing):
            job.start()
        self.sync_state_sets.start()
        self._handing_over.start()
        self._syncing.start(0.0)
        self._leading.start()
        if self._roles is not None:
            self._start_beating()

    async def end(self) -> None:
        """Stops role changes, because the broker stops. Heartbeats to the controllers continue."""
        await self.sync_state_sets.stop()
        await self._handing_over.stop()
        for job in (self._syncing, self._leading, self._finding, self._changing):
            await job.stop()

    async def stop(self) -> None:
        """Disconnects from the controllers. If this broker was master, they elect another one."""
        await self.end()
        self._leasing.cancel()
        for job in self._beating.values():
            await job.stop()
        await self._remoting.close()

    def _set_role(self, *, is_master: bool) -> None:
        if is_master:
            self._config.set_role(BrokerRole.SYNC_MASTER, MASTER_ID)
        else:
            self._config.set_role(BrokerRole.SLAVE, self._identity.broker_id or -1)

    @property
    def _is_master(self) -> bool:
        return self._roles is not None and self._applied.master_id == self._roles.own_id

    # -- id and heartbeats --------------------------------------------------------------------------------------

    def _identified(self) -> None:
        """Creates `Roles` if the broker has an id."""
        broker_id = self._identity.broker_id
        if broker_id is not None:
            self._roles = Roles(broker_id)
            self._set_role(is_master=False)

    async def _get_id(self) -> None:
        """Applies for an id. Repeats the same application until its outcome is known. Raises GantryError."""
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
        """Sends a heartbeat soon after a connection was lost, before a controller considers this master dead."""
        if (beating := self._beating.get(address)) is not None:
            beating.wake(_SOON_S)

    async def _beat(self, controller: str) -> None:
        try:
            await self._send_heartbeat(controller)
        except GantryError as e:
            log.warning("can't send a heartbeat to controller %s: %s", controller, e)

    async def _send_heartbeat(self, controller: str) -> None:
        """Sends a heartbeat and updates the lease. Raises GantryError."""
        assert self._roles is not None
        sent_at = monotonic()
        own_id, epoch = self._roles.own_id, self._roles.role.epoch
        lease_s = await self._controllers.heartbeat(controller, own_id, self._progress(), epoch)
        self._lease.answered(sent_at, lease_s)
        self._leasing.wake()

    def _progress(self) -> Progress:
        last = self._epochs.epochs.last
        end = self._store.max_physical_offset
        return Progress(last.number if last is not None else -1, end, min(self._replication.confirm_offset(), end))

    async def _find_leader(self) -> None:
        await self._controllers.find_leader()

    # -- state from the controller ------------------------------------------------------------------------------

    async def _sync(self) -> float:
        """Queries the master and has one elected if there is none. Raises GantryError."""
        controllers = self._controllers
        if self._roles is None:
            await self._get_id()
            assert self._roles is not None
        if not self._is_registered:
            state = await controllers.register(self._roles.own_id)
            # The controller elects only brokers whose heartbeats it receives.
            await self._send_heartbeat(await controllers.find_leader())
            self._start_beating()
            self._is_registered = True
            if state is not None:
                await self._believe(state)
        asked_at = monotonic()
        try:
            state = await controllers.info()
        except BrokerError as e:
            self._is_registered &= e.code != ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            raise
        await self._believe(state)
        role = self._roles.role
        if self._is_master and self._roles.is_master and (state.epoch, state.master_id) == (role.epoch, role.master_id):
            self._fence.is_master(asked_at, monotonic())
            self._look_at_lease()
            self._leasing.wake()
        if state.master_id is None:
            try:
                self._state_received(await controllers.elect(self._roles.own_id))
            except BrokerError as e:
                log.warning("there is no master, and this broker can't be it: %s", e)
                return _AGAIN_S
        return self._config.sync_broker_metadata_period / 1000

    async def _believe(self, state: BrokerSetState) -> None:
        """Applies the controller's state, but prefers another in-sync broker after a crash of this master.

        A power failure may have cut off the end of this broker's log. If it stays master, its slaves truncate their
        logs to the same end. This broker is master again only if no other broker can be elected.
        """
        roles, last = self._roles, self._epochs.epochs.last
        assert roles is not None
        was_master = last is not None and (state.epoch, state.master_id) == (last.number, roles.own_id)
        if was_master and not self._applied.epoch:
            for other in sorted((state.members or frozenset()) - {roles.own_id}):
                try:
                    state = await self._controllers.elect(other, is_designated=True)
                except BrokerError as e:
                    log.warning("broker %d can't be the master in place of this one: %s", other, e)
                else:
                    break
        self._state_received(state)

    def query_soon(self) -> None:
        """Queries the controllers at once: they may have elected another master."""
        self._syncing.wake()

    def _state_received(self, state: BrokerSetState) -> None:
        roles, last = self._roles, self._epochs.epochs.last
        assert roles is not None
        # The same master may have been elected again, and have sent this broker records of a newer epoch.
        roles.last_epoch = last.number if last is not None else 0
        if roles.is_too_old(state):
            log.error(
                "the controller says epoch %d, and this broker's log has a later one: it is not the controller that it "
                "had, or that has lost its state",
                state.epoch,
            )
        elif roles.apply(state):
            self._last_state = state
            role = roles.role
            log.info("epoch %d: master is %s at %s", role.epoch, role.master_id, role.master_address)
            if self._is_master and not roles.is_master:
                self._is_deposed = True
                self._look_at_lease()
                self._pending_responses.deposed()
            elif not self._is_master and role.master_address is not None:
                self._replication.leave_for(role.master_address, role.epoch)
            # A controller grants a lease only to a master that has its current epoch.
            for beating in self._beating.values():
                beating.wake()
            self._changing.wake()
        elif state.members is not None:
            self.sync_state_sets.state_received(state.epoch, state.members, state.members_epoch)

    # -- roles --------------------------------------------------------------------------------------------------

    async def _change(self) -> None:
        """Changes the broker to its new role. Raises GantryError; the job then runs again."""
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
            # The broker counts as master from here. A failed step is repeated, or undone if another master is elected.
            self._applied = role
            self._fence = Fence()
            self._set_role(is_master=True)
            try:
                await self._role_changes.become_master(self._begin_epoch)
            except BaseException:
                self._applied = Role()
                self._set_role(is_master=False)
                raise
        # The controller may have reported another master in the meantime.
        self._is_deposed = self._is_master and not roles.is_master
        self._look_at_lease()
        self._leasing.wake()
        self._registration.role_changed(role.epoch)
        log.info("this broker is %s in epoch %d", "the master" if self._is_master else "a slave", role.epoch)

    async def _become_slave(self, role: Role) -> None:
        if self._is_master or not self._applied.epoch:
            self.sync_state_sets.end()
            self._applied = Role()
            self._set_role(is_master=False)
            await self._role_changes.become_slave()
            # A last epoch without any record does not belong to this log.
            self._epochs.epochs.truncate_from(self._store.max_physical_offset)
            self._epochs.save()
        self._applied = role
        self._replication.follow(role.master_address, None)
        self._finding.wake()

    def _begin_epoch(self) -> None:
        """Records the start of this master's epoch in the log's epoch file. Raises StoreError or ReplicationError."""
        roles = self._roles
        assert roles is not None
        number, end = self._applied.epoch, self._store.max_physical_offset
        epochs = self._epochs.epochs
        epochs.forget_before(self._store.min_physical_offset)
        last = epochs.last
        if last is None or last.number < number:
            # An epoch without records would prevent the new one from starting at this offset.
            epochs.truncate_from(end)
        if last is None or last.number != number:
            self._epochs.begin(number, end)
        state = self._last_state
        last = epochs.last
        assert last is not None
        self.sync_state_sets.begin(roles.own_id, number, state.members or (), state.members_epoch, last.start_offset)

    async def _find_master(self) -> float:
        """Queries the master for its HA address until replication is connected."""
        address = self._master_address
        if self._is_master or address is None:
            return inf
        if not self._replication.is_connected:
            # The master may be dead and another one elected.
            self._syncing.wake()
            try:
                request = RemotingCommand.request(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfoRequestHeader())
                answer = await self._remoting.call(address, request)
                ha_address = answer.read_header(ExchangeHaInfoResponseHeader).master_ha_address
            except GantryError as e:
                log.warning("the master %s doesn't say where its log comes from: %s", address, e)
            else:
                if ha_address and not self._is_master and address == self._master_address:
                    self._replication.follow(address, ha_address)
        return _AGAIN_S

    @property
    def _master_address(self) -> str | None:
        """The address of the master that this broker follows; None while a change to another master is pending."""
        roles = self._roles
        is_latest = roles is not None and roles.role == self._applied
        return self._applied.master_address if is_latest else None

    def _newer_epoch(self, epoch: int) -> None:
        """Handles a slave's report that another broker is master in `epoch`."""
        if self._is_master and epoch > self._applied.epoch:
            self._fence.newer_epoch(epoch, monotonic())
            self._look_at_lease()
            self._leasing.wake()

    def _look_at_lease(self) -> float:
        """Accepts or rejects messages. Returns the time until the next check, in seconds."""
        now, refusal = monotonic(), self._appender.refusal
        if self._is_deposed:
            self._refuse("another broker is master")
        elif self._is_master and self._fence.is_closed(now):
            epoch = self._fence.epoch
            self._refuse(f"another broker is master, in epoch {epoch}, says a slave of this one")
            if self._appender.refusal != refusal:
                log.warning("nothing is taken until a controller says that this broker is master, not one of %d", epoch)
                self._pending_responses.deposed()
                self._syncing.wake()
        elif self._is_master and self._lease.is_over(now):
            is_confirmed = self.sync_state_sets.confirms_master(now)
            self._refuse(None if is_confirmed else _NO_LEASE)
            if not is_confirmed and refusal is None:
                log.warning(
                    "no controller is reachable: the broker rejects messages until one answers, because another broker "
                    "may be master"
                )
            # The result of `confirms_master` can change at any time.
            return min(_AGAIN_S, self._fence.closes_at - now)
        else:
            self._refuse(None)
            # A slave's lease doesn't matter. It is checked when the broker becomes master.
            return min(self._lease.until, self._fence.closes_at) - now if self._is_master else inf
        return inf

    def _refuse(self, reason: str | None) -> None:
        """Rejects messages for this reason; None accepts them. Notifies the features if that changes."""
        was_refusing = self._appender.refusal is not None
        self._appender.refuse(reason)
        if was_refusing != (reason is not None):
            self._events.mastership_doubted.publish(reason is not None)
