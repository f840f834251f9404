"""Decides whether a slave is the acting master (`BrokerController.updateMinBroker`).

With `enableSlaveActingMaster`, a broker sends a heartbeat (BROKER_HEARTBEAT) to the NameServers each second, so that a
NameServer detects a failed broker soon. It also queries the list of live brokers each second. A NameServer reports a
change with NOTIFY_MIN_BROKER_ID_CHANGE. Any client can send this request, so the broker ignores its content and queries
the list.

Decision record: docs/decisions/acting-masters.md.
"""

from __future__ import annotations

import asyncio
from functools import partial

from gantrymq.background.repeating import Repeating
from gantrymq.broker.acting.members import members_of
from gantrymq.broker.append import PendingResponses
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.replication import Replication
from gantrymq.broker.role_changes import RoleChanges
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import BrokerHeartbeatRequestHeader
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Pause before a failed operation is repeated, in seconds.
_AGAIN_S = 0.5
#: A slave does not become acting master for this time after its master came back and contacted it, in seconds.
_BACK_S = 5.0


class ActingMaster(Feature):
    """Makes a slave the acting master while its master is down. Does nothing without `enableSlaveActingMaster`."""

    def __init__(
        self,
        context: BrokerContext,
        *,
        replication: Replication,
        pending_responses: PendingResponses,
        role_changes: RoleChanges,
    ) -> None:
        self._config = context.config
        self._address = context.address
        self._replication = replication
        self._pending_responses = pending_responses
        self._remoting = context.remoting
        self._role_changes = role_changes
        self._master_uncertain = context.events.master_uncertain
        self.is_acting = False
        #: Whether a change of the acting role failed and is incomplete.
        self._is_half = False
        self._is_started = False
        #: Allows only one role change at a time.
        self._changing = asyncio.Lock()
        #: Until this time of the monotonic clock, the broker does not become acting master.
        self._not_before = 0.0
        #: The live brokers of this name at the last query: host:port by broker id.
        self.members: dict[int, str] = {}
        self._slave_count = 0
        config, jobs = context.config, context.jobs
        self._asking = jobs.repeating(
            "ask who of the brokers of this name is there",
            self._ask,
            config.sync_broker_member_group_period / 1000,
            after_error_s=_AGAIN_S,
        )
        self._jobs = jobs
        #: The jobs that send heartbeats, by NameServer.
        self._beating: dict[str, Repeating] = {}
        if config.enable_slave_acting_master:
            context.events.replica_acknowledged.subscribe(self._replica_acknowledged)
            context.events.config_changed.subscribe(self._name_servers_changed)
            context.events.name_servers_changed.subscribe(lambda is_by_dns: self._name_servers_changed())

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_broker_id_changed}

    async def start(self) -> None:
        if self._config.enable_slave_acting_master:
            self._is_started = True
            self._asking.start()
            self._name_servers_changed()

    async def stop(self) -> None:
        self._is_started = False
        await self._asking.stop()
        for job in self._beating.values():
            await job.stop()
        if self.is_acting or self._is_half:
            self.is_acting = self._is_half = False
            await self._role_changes.stand_back()

    def min_broker_id_changed(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Handles NOTIFY_MIN_BROKER_ID_CHANGE: queries the live brokers at once."""
        if self._config.enable_slave_acting_master:
            self._asking.wake()
        return RemotingCommand.response()

    def _replica_acknowledged(self) -> None:
        if len(self._replication.slaves()) != self._slave_count:
            self._count()

    def _name_servers_changed(self) -> None:
        """Starts to send heartbeats to new NameServers, and ends the heartbeats to removed NameServers."""
        if not self._is_started:
            return
        for name_server in self._beating.keys() - set(self._config.name_servers):
            job = self._beating.pop(name_server)
            job.cancel()
            self._jobs.forget(job)
        for name_server in dict.fromkeys(self._config.name_servers):
            if name_server not in self._beating:
                job = self._jobs.repeating(
                    f"send heartbeats to the NameServer {name_server}",
                    partial(self._beat, name_server),
                    self._config.broker_heartbeat_interval / 1000,
                )
                self._beating[name_server] = job
                job.start()

    async def _beat(self, name_server: str) -> None:
        config = self._config
        header = BrokerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._address,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
        )
        try:
            request = RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header)
            await self._remoting.call(name_server, request, config.send_heartbeat_timeout_millis)
        except GantryError as e:
            log.warning("can't send a heartbeat to NameServer %s: %s", name_server, e)

    async def _ask(self) -> None:
        """Queries the live brokers and changes the acting role if needed.

        If no NameServer responds, the broker uses the last known list and raises GantryError.
        """
        problem: GantryError | None = None
        had_master = MASTER_ID in self.members
        try:
            self.members = await members_of(self._config, self._remoting)
        except GantryError as e:
            problem = e
        self._count()
        if self._config.broker_role is BrokerRole.SLAVE:
            if had_master != (MASTER_ID in self.members):
                self._master_uncertain.publish()
            async with self._changing:
                await self._act(self._is_to_act())
        if problem is not None:
            raise problem

    async def stand_back(self) -> None:
        """Ends the acting role, because the master is back. Raises the errors of the features that change role."""
        self._not_before = monotonic() + _BACK_S
        async with self._changing:
            await self._act(False)

    async def _act(self, acts: bool) -> None:
        if acts == self.is_acting and not self._is_half:
            return
        log.warning("this broker %s for the master", "stands in" if acts else "no longer stands in")
        if self.is_acting or self._is_half:
            self._is_half = True
            await self._role_changes.stand_back()
        self.is_acting, self._is_half = acts, acts
        if acts:
            await self._role_changes.stand_in()
            self._is_half = False

    def _is_to_act(self) -> bool:
        """Whether this slave should be acting master: it has the lowest id and receives nothing from its master.

        The second condition is needed because a restarted NameServer may not list the master.
        """
        members = self.members
        return (
            bool(members)
            and monotonic() >= self._not_before
            and self._config.broker_id == min(members)
            and not self._replication.receives_from_master
            and self._config.enable_remote_escape
        )

    def _count(self) -> None:
        if self._config.enable_slave_acting_master and self._config.broker_role is not BrokerRole.SLAVE:
            self._slave_count = len(self._replication.slaves())
            # This broker is alive, even if no NameServer lists it.
            alive = len(self.members.keys() | {self._config.broker_id})
            self._pending_responses.replicas_changed(self._replication.in_sync_count(), alive)
