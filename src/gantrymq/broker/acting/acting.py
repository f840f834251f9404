"""Acting: whether a slave stands in for its master, as one part of the broker (`BrokerController.updateMinBroker`).

Brokers with enableSlaveActingMaster give NameServers a sign of life each second (BROKER_HEARTBEAT), so that these know
soon who is gone, and ask them who is there, each second and when one says that this has changed
(NOTIFY_MIN_BROKER_ID_CHANGE, which anybody may send, so it is asked).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from gantrymq.background.jobs import Jobs
from gantrymq.broker.acting.members import members_of
from gantrymq.broker.config import BrokerConfig, BrokerRole
from gantrymq.broker.flush_waits import FlushWaits
from gantrymq.broker.part import Part
from gantrymq.broker.replication.replicating import Replicating
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.namesrv import BrokerHeartbeatRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: What failed is tried again after this time, s.
_AGAIN_S = 0.5
#: A master that says that it is back has so long to be heard of, s.
_BACK_S = 5.0


class Acting(Part):
    """Of one broker at `address`.

    `begin` has the broker's parts do what only a master does, for other brokers to store, and `end` stops that;
    `register` has NameServers asked for the master.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        replicating: Replicating,
        flush_waits: FlushWaits,
        remoting: RemotingClient,
        jobs: Jobs,
    ) -> None:
        self._config = config
        self._address = address
        self._replicating = replicating
        self._flush_waits = flush_waits
        self._remoting = remoting
        self.begin: Callable[[], Awaitable[None]]
        self.end: Callable[[], Awaitable[None]]
        self.register: Callable[[], None] = lambda: None
        #: The broker stands in for its master.
        self.is_acting = False
        #: Beginning or ending with that has failed half-way.
        self._is_half = False
        #: One change at a time.
        self._changing = asyncio.Lock()
        #: Until then this broker doesn't begin to stand in.
        self._not_before = 0.0
        #: Who was there when they were last asked for.
        self._members: dict[int, str] = {}
        self._slave_count = 0
        self._asking = jobs.repeating(
            "ask who of the brokers of this name is there",
            self._ask,
            config.sync_broker_member_group_period / 1000,
            after_error_s=_AGAIN_S,
        )
        self._beating = [
            jobs.repeating(
                f"send signs of life to the NameServer {name_server}",
                partial(self._beat, name_server),
                config.broker_heartbeat_interval / 1000,
            )
            for name_server in (config.namesrv_addr if config.enable_slave_acting_master else ())
        ]

    def handlers(self) -> dict[int, RequestHandler]:
        return {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: self.min_broker_id_changed}

    async def start(self) -> None:
        if self._config.enable_slave_acting_master:
            self._asking.start()
            for job in self._beating:
                job.start()

    async def stop(self) -> None:
        await self._asking.stop()
        for job in self._beating:
            await job.stop()
        if self.is_acting or self._is_half:
            self.is_acting = self._is_half = False
            await self.end()

    def min_broker_id_changed(self, connection: Connection, request: RemotingCommand) -> Reply:
        """NOTIFY_MIN_BROKER_ID_CHANGE: a NameServer has news."""
        if self._config.enable_slave_acting_master:
            self._asking.wake()
        return RemotingCommand.response()

    def acknowledged(self) -> None:
        """A slave of this broker has more of the log, has come or has gone."""
        self._flush_waits.acknowledged()
        if len(self._replicating.slaves()) != self._slave_count:
            self._count()

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
            log.warning("the NameServer %s doesn't hear that this broker lives: %s", name_server, e)

    async def _ask(self) -> None:
        """Raises GantryError. While nobody answers what was known goes on to hold, but for what is seen here."""
        problem: GantryError | None = None
        had_master = MASTER_ID in self._members
        try:
            self._members = await members_of(self._config, self._remoting)
        except GantryError as e:
            problem = e
        self._count()
        if self._config.broker_role is BrokerRole.SLAVE:
            if had_master != (MASTER_ID in self._members):
                self.register()
            async with self._changing:
                await self._act(self._is_to_act())
        if problem is not None:
            raise problem

    async def stand_back(self) -> None:
        """The master is back, by its own word. Raises what the broker's parts raise."""
        self._not_before = monotonic() + _BACK_S
        async with self._changing:
            await self._act(False)

    async def _act(self, acts: bool) -> None:
        if acts == self.is_acting and not self._is_half:
            return
        log.warning("this broker %s for the master", "stands in" if acts else "no longer stands in")
        if self.is_acting or self._is_half:
            self._is_half = True
            await self.end()
        self.is_acting, self._is_half = acts, acts
        if acts:
            await self.begin()
            self._is_half = False

    def _is_to_act(self) -> bool:
        """It has the lowest id, and hears nothing of its master: a NameServer that was restarted may not know him."""
        members = self._members
        return (
            bool(members)
            and monotonic() >= self._not_before
            and self._config.broker_id == min(members)
            and not self._replicating.hears_master
            and self._config.enable_remote_escape
        )

    def _count(self) -> None:
        """How many replicas a send can wait for."""
        if self._config.enable_slave_acting_master and self._config.broker_role is not BrokerRole.SLAVE:
            self._slave_count = len(self._replicating.slaves())
            # This broker itself counts whether a NameServer knows it or not.
            alive = len(self._members.keys() | {self._config.broker_id})
            self._flush_waits.replicas_changed(self._replicating.in_sync_count(), alive)
