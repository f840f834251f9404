"""Elects a new master for a broker set whose master has failed (ControllerManager, DLedgerController).

A broker is only elected if it has sent a request after the election began. A broker that has just died still counts as
alive. If it were elected, it would be the only member in sync, and the set would have no working master until its
return. All brokers send a heartbeat every second. A live master whose connection was closed therefore reconnects before
the election ends, and keeps its role. Java instead elects any broker whose last heartbeat has not expired.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from gantrymq.background.tasks import Tasks
from gantrymq.controller.changes import Changes
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.former_leases import MAX_LEASE_MS, FormerLeases
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBroker, LiveBrokers
from gantrymq.controller.replicas import NO_BROKER, Decision, Live, Replicas
from gantrymq.controller.role_changes import RoleChanges
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Time in seconds for the best candidate to send a request: twice `brokerHeartbeatInterval`. Then others can win.
WORD_S = 2.0
#: Result label of an election by response code (ControllerMetricsConstant).
_RESULTS = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: "no_master_elected",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "no_master_elected",
}


class Elections:
    """Runs elections, on request or after a master has failed, and notifies the brokers."""

    def __init__(
        self,
        config: ControllerConfig,
        replicas: Replicas,
        live_brokers: LiveBrokers,
        leadership: Leadership,
        changes: Changes,
        role_changes: RoleChanges,
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._live_brokers = live_brokers
        self._leadership = leadership
        self._changes = changes
        self._role_changes = role_changes
        self._former_leases = FormerLeases()
        self._tasks = Tasks("electing a master")
        #: Broker sets with a running election that no request started.
        self._under_way: set[str] = set()
        #: For each broker set, an event that is set when a broker of the set sends a request.
        self._words: dict[str, asyncio.Event] = {}
        #: Number of elections by result.
        self.held: Counter[str] = Counter()

    def live(self) -> Live:
        """Returns the function that looks up the brokers that are active now."""
        return partial(self._live_brokers.active, now_ms=_now_ms())

    def begin(self) -> float:
        """Starts a term of this controller. Returns the delay before it may replace failed masters, in seconds."""
        self._former_leases.begin(_now_ms())
        return MAX_LEASE_MS / 1000

    def heard(self, broker: BrokerIdentity) -> None:
        """Records a heartbeat of a broker."""
        self._former_leases.heard(broker, _now_ms())
        self._spoke(broker)

    def asked(self, connection: object) -> None:
        """Records a request (other than a heartbeat) of the broker whose heartbeats use this connection."""
        for broker in self._live_brokers.of(connection):
            self._spoke(broker)

    def _spoke(self, broker: BrokerIdentity) -> None:
        self._live_brokers.spoke(broker)
        if (word := self._words.pop(broker.broker_name, None)) is not None:
            word.set()

    async def hold(
        self, header: ElectMasterRequestHeader, connection: object = None, *, has_ended: bool = False
    ) -> Decision:
        """Runs an election that `connection` requested. Raises RequestRefused.

        `has_ended` is true if the process of the old master is known to have ended.
        """
        self._leadership.check()
        known, since = self._replicas.get(header.broker_name), self._live_brokers.words
        self.asked(connection)
        if known is not None and not header.designate_elect:
            self._spoke(BrokerIdentity(known.cluster_name, known.broker_name, header.broker_id))
        with suppress(TimeoutError):
            async with asyncio.timeout(WORD_S):
                while self._is_doubtful(header, since):
                    await self._words.setdefault(header.broker_name, asyncio.Event()).wait()
        decide = partial(self._decide, header, since, has_ended=has_ended)
        decision = await self._changes.make(header.broker_name, decide)
        if result := _RESULTS.get(ResponseCode(decision.code)):
            self.held[result] += 1
        changed = decision.changed
        if changed is not None and changed.master is not None and self._config.notify_broker_role_changed:
            self._role_changes.send(changed, self.live())
        return decision

    def _is_doubtful(self, header: ElectMasterRequestHeader, since: int) -> bool:
        """Returns true while the best candidate has sent no request after the one with number `since`."""
        known, live = self._replicas.get(header.broker_name), self.live()
        if known is None or not known.had_master:
            return False
        best = self._replicas.elected(known, header, live, unclean=self._config.enable_elect_unclean_master)
        if best is None:
            # A broker's request is answered at once. Otherwise the election waits, because the old master may come
            # back.
            return header.broker_id == NO_BROKER and known.master is not None
        broker = live(BrokerIdentity(known.cluster_name, known.broker_name, best))
        return best != known.master and (broker is None or broker.word <= since)

    def _decide(self, header: ElectMasterRequestHeader, since: int, *, has_ended: bool) -> Decision:
        live, known = self.live(), self._replicas.get(header.broker_name)
        if known is not None and not has_ended:
            left_ms = self._former_leases.left_ms(known, live, _now_ms())
            if left_ms:
                raise RequestRefused(
                    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                    f"master {known.master} of {known.broker_name} may have a lease of the controller that led before: "
                    f"another can be elected in {left_ms} ms",
                )

        def may_be_elected(broker: BrokerIdentity) -> LiveBroker | None:
            found = live(broker)
            has_spoken = found is not None and found.word > since
            return found if has_spoken or (known is not None and broker.broker_id == known.master) else None

        return self._replicas.elect_master(header, may_be_elected, unclean=self._config.enable_elect_unclean_master)

    def gone(self, brokers: Iterable[BrokerIdentity], *, have_ended: bool) -> None:
        """Replaces the masters among these brokers. They closed their connections or became silent."""
        for cluster_name, broker_name, broker_id in brokers:
            log.warning("broker %d of set %s, cluster %s, is gone", broker_id, broker_name, cluster_name)
            known = self._replicas.get(broker_name)
            if self._leadership.is_leader and known is not None and known.master == broker_id:
                self._begin(broker_name, has_ended=have_ended)

    def look(self) -> float | None:
        """Elects a master for each broker set whose master failed while another controller was the leader.

        Returns the seconds until a master that may still have a lease of the previous leader can be replaced. Returns
        None if there is no such master.
        """
        if not self._leadership.is_leader:
            return None
        live, waits_ms = self.live(), []
        for broker_name in self._replicas.without_living_master(live):
            known = self._replicas.get(broker_name)
            left_ms = self._former_leases.left_ms(known, live, _now_ms()) if known is not None else 0
            if left_ms:
                waits_ms.append(left_ms)
            else:
                self._begin(broker_name, has_ended=False)
        return min(waits_ms) / 1000 if waits_ms else None

    async def stop(self) -> None:
        await self._tasks.stop()

    def _begin(self, broker_name: str, *, has_ended: bool) -> None:
        if broker_name not in self._under_way:
            self._under_way.add(broker_name)
            self._tasks.start(self._elect(broker_name, has_ended=has_ended))

    async def _elect(self, broker_name: str, *, has_ended: bool) -> None:
        header = ElectMasterRequestHeader(broker_name=broker_name, broker_id=NO_BROKER)
        try:
            decision = await self.hold(header, has_ended=has_ended)
        except RequestRefused as e:
            # The next leader will also look for such sets.
            log.warning("no master is elected for broker set %s: %s", broker_name, e)
            return
        finally:
            self._under_way.discard(broker_name)
        if decision.code != ResponseCode.SUCCESS:
            log.warning("no master is elected for broker set %s: %s", broker_name, decision.remark)


def _now_ms() -> int:
    return int(monotonic() * 1000)
