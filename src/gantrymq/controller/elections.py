"""Elections: a broker set whose master is gone gets another (ControllerManager, DLedgerController)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from gantrymq.background.tasks import Tasks
from gantrymq.controller.changes import Changes
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.former_leases import MAX_LEASE_MS, FormerLeases
from gantrymq.controller.leadership import Leadership
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBrokers
from gantrymq.controller.replicas import NO_BROKER, Decision, Live, Replicas
from gantrymq.controller.role_changes import RoleChanges
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: How an election ended, under the names of ControllerMetricsConstant.
_RESULTS = {
    ResponseCode.SUCCESS: "new_master_elected",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "keep_current_master",
    ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE: "no_master_elected",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "no_master_elected",
}


class Elections:
    """Holds them, when asked or when a master is gone, and has the brokers told."""

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
        #: Broker sets for which one is under way that nobody asked for.
        self._under_way: set[str] = set()
        #: By result.
        self.held: Counter[str] = Counter()

    def live(self) -> Live:
        """Which brokers are active now."""
        return partial(self._live_brokers.active, now_ms=int(monotonic() * 1000))

    def begin(self) -> float:
        """This controller leads from now on; in how many seconds it is to look for masters that are gone."""
        self._former_leases.begin(int(monotonic() * 1000))
        return MAX_LEASE_MS / 1000

    def heard(self, broker: BrokerIdentity) -> None:
        """It has sent a heartbeat."""
        self._former_leases.heard(broker, int(monotonic() * 1000))

    async def hold(self, header: ElectMasterRequestHeader, *, has_ended: bool = False) -> Decision:
        """As somebody asks for it; `has_ended`: the master's process has. Raises RequestRefused."""
        decision = await self._changes.make(header.broker_name, partial(self._decide, header, has_ended=has_ended))
        if result := _RESULTS.get(ResponseCode(decision.code)):
            self.held[result] += 1
        changed = decision.changed
        if changed is not None and changed.master is not None and self._config.notify_broker_role_changed:
            self._role_changes.send(changed, self.live())
        return decision

    def _decide(self, header: ElectMasterRequestHeader, *, has_ended: bool) -> Decision:
        live, known = self.live(), self._replicas.get(header.broker_name)
        if known is not None and not has_ended:
            left_ms = self._former_leases.left_ms(known, live, int(monotonic() * 1000))
            if left_ms:
                raise RequestRefused(
                    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                    f"master {known.master} of {known.broker_name} may have a lease of the controller that led before: "
                    f"another can be elected in {left_ms} ms",
                )
        return self._replicas.elect_master(header, live, unclean=self._config.enable_elect_unclean_master)

    def gone(self, brokers: Iterable[BrokerIdentity], *, have_ended: bool) -> None:
        """These brokers closed their connections, or fell silent; of those that were masters another is elected."""
        for cluster_name, broker_name, broker_id in brokers:
            log.warning("broker %d of set %s, cluster %s, is gone", broker_id, broker_name, cluster_name)
            known = self._replicas.get(broker_name)
            if self._leadership.is_leader and known is not None and known.master == broker_id:
                self._begin(broker_name, has_ended=have_ended)

    def look(self) -> None:
        """Elects for those sets whose master is gone and nobody noticed: another controller led, or was led to fail."""
        if self._leadership.is_leader:
            for broker_name in self._replicas.without_living_master(self.live()):
                self._begin(broker_name, has_ended=False)

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
            # Whoever leads next looks for such sets, too.
            log.warning("no master is elected for broker set %s: %s", broker_name, e)
            return
        finally:
            self._under_way.discard(broker_name)
        if decision.code != ResponseCode.SUCCESS:
            log.warning("no master is elected for broker set %s: %s", broker_name, decision.remark)
