"""Plan of a run, derived from a seed: size of the cluster, workloads, and faults with their times.

All random choices are made here, before the run. So a fault can be removed while the rest of the plan stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

#: Topic of every seed, and its number of queues on each broker.
TOPIC, QUEUES = "orders", 4
#: Faults begin within this time after the first send, in seconds.
FAULTS_S = 90.0
#: Share of seeds with a drifting clock, a slow disk, or failing reads and writes.
_SLOWER_SHARE = 0.2
#: Share of the seeds with a power failure before a sync, among those that may have power failures.
_AT_SYNC_SHARE = 0.125
#: Share of seeds with clocks that are wrong by up to an hour, and share of these clocks that are wrong from the start.
_FAR_CLOCKS_SHARE, _FROM_THE_START_SHARE = 0.15, 0.3
#: Share of these clocks that are then wrong in the other direction, and share of these seeds without other faults.
_JUMPS_SHARE, _ONLY_CLOCKS_SHARE = 0.3, 0.25
#: Share of seeds without replicas in which NameServers restart and have partial routes.
_YOUNG_SHARE = 0.04
#: Workloads whose checkers depend on the clocks of the brokers.
_TIMED_EXTRAS = {"deduplication", "offsets", "pop-resets", "recalls", "recreations", "retention"}
#: Names of the workloads in `workloads.EXTRAS`. Repeated here, because an import would load the whole package.
EXTRAS = (
    "broadcasts",
    "comings",
    "configurations",
    "dead-letters",
    "offsets",
    "recalls",
    "requests",
    "retention",
    "slow-pops",
    "topics",
)
#: Workloads with their own random numbers; share of seeds with one, and share of these without server faults.
LATER_EXTRAS = ("endings", "pop-resets", "recreations")
_LATER_EXTRAS_SHARE, _CALM_SHARE = 0.12, 0.5
#: Workloads of single features, each with its own random numbers; share of seeds with one. Half of them have no server
#: faults. Add a new workload here and in `workloads.EXTRAS`.
FEATURE_EXTRAS: tuple[str, ...] = (
    "compaction",
    "deduplication",
    "filters",
    "lite-topics",
    "permissions",
    "priorities",
    "proxies",
    "rate-limits",
    "topic-retention",
    "writers",
)
_FEATURE_SHARE = 0.25
#: Share of the seeds with such a workload whose brokers check permissions.
_ACL_SHARE = 0.15
#: Share of the seeds with compaction topics in which the files of the commit log are deleted, too.
_DELETED_SHARE = 0.5
#: Feature workloads whose messages a power failure can lose without SYNC_FLUSH, or syncs that lie: pops, for example.
_LOSSY_FEATURES = {"compaction", "filters", "lite-topics", "priorities", "proxies", "rate-limits", "writers"}


@dataclass(frozen=True)
class Fault:
    """A fault: its kind (faults.py), its target, its begin and duration in seconds, and its strength from 0 to 1.

    The begin is relative to the first send. A clock fault with `at` below 0 begins before the programs start.
    """

    kind: str
    whom: str
    at: float
    lasts: float
    strength: float

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} of {self.whom} for {self.lasts:.2f} s ({self.strength:.2f})"


@dataclass
class Plan:
    """Everything that determines a run, except for the order of its callbacks."""

    seed: str
    name_servers: int
    brokers: int
    producers: int
    #: Consumers of each group.
    consumers: dict[str, int]
    #: True for SYNC_FLUSH: acknowledged messages survive a power failure.
    is_synced: bool
    #: Number of messages of each producer, and the mean pause between two, in seconds.
    messages: int
    pause_s: float
    #: Shares of the kinds of messages. The rest are plain messages.
    ordered: float
    delayed: float
    batches: float
    transactions: float
    #: Share of the deliveries for which the handler raises.
    failures: float
    tiny_reads: float
    #: Share of oneway messages.
    oneway: float = 0.0
    #: Additional workloads (workloads/).
    extras: tuple[str, ...] = ()
    faults: list[Fault] = field(default_factory=list)
    #: Number of brokers of each name, and their mode: ASYNC_MASTER, SYNC_MASTER or CONTROLLED. Empty without replicas.
    replicas: int = 1
    mode: str = ""
    #: `inSyncReplicas` of a SYNC_MASTER, or `minInSyncReplicas` with controllers.
    in_sync: int = 1
    controllers: int = 0
    #: True if slaves become acting masters for an absent master (`enableSlaveActingMaster`).
    acting: bool = False
    #: True if brokers check the permissions of all requests.
    acl: bool = False

    @property
    def broker_programs(self) -> list[str]:
        """Names of the programs of all brokers."""
        others = [f"broker-{n}.{k}" for k in range(1, self.replicas) for n in range(self.brokers)]
        return [f"broker-{n}" for n in range(self.brokers)] + others

    @property
    def servers(self) -> list[str]:
        """Names of the programs of all servers."""
        controllers = [f"controller-{n}" for n in range(self.controllers)]
        return [f"ns-{n}" for n in range(self.name_servers)] + self.broker_programs + controllers

    @property
    def clients(self) -> list[str]:
        """Names of the programs of the standard clients."""
        clients = [f"producer-{n}" for n in range(self.producers)]
        return clients + [f"{kind}-{n}" for kind, count in self.consumers.items() for n in range(count)]


def broker_name(program: str) -> str:
    """Returns the broker name of a program, which it shares with its replicas.

    For example, broker-0 and broker-0.1 have the same broker name.
    """
    return program.partition(".")[0]


def make_plan(seed: str) -> Plan:
    chance = Random(f"{seed} plan")
    plan = Plan(
        seed=seed,
        name_servers=chance.choice((1, 2, 2)),
        brokers=chance.choice((1, 2, 3)),
        producers=chance.choice((1, 2, 3)),
        consumers={
            "push": chance.choice((1, 2, 3)),
            "orderly": chance.choice((1, 2, 3)),
            "pop": chance.choice((0, 1, 2)),
            "lite": chance.choice((0, 1, 2)),
        },
        is_synced=chance.random() < 0.5,
        messages=chance.choice((50, 100, 200)),
        pause_s=chance.choice((0.05, 0.2, 0.5)),
        ordered=chance.choice((0.0, 0.3, 0.6)),
        delayed=chance.choice((0.0, 0.05, 0.2)),
        batches=chance.choice((0.0, 0.1)),
        transactions=chance.choice((0.0, 0.1)),
        failures=chance.choice((0.0, 0.0, 0.02)),
        tiny_reads=chance.choice((0.0, 0.0, 0.1)),
    )
    servers, clients = plan.servers, plan.clients
    kinds = ["kill", "kill", "stop", "end", "cut", "slow", "reset", "clock", "open-errors", "full"]
    if plan.is_synced:
        kinds += ["power", "power", "sync-error"]
    for _ in range(chance.choice((0, 1, 2, 4, 8))):
        kind = chance.choice(kinds)
        whom = chance.choice(servers if kind in ("power", "full", "sync-error", "open-errors") else servers + clients)
        if kind in ("full", "sync-error", "open-errors", "power") and not whom.startswith("broker"):
            whom = f"broker-{chance.randrange(plan.brokers)}"
        plan.faults.append(
            Fault(
                kind,
                whom,
                round(chance.uniform(0, FAULTS_S), 2),
                round(chance.uniform(0.1, 40) if chance.random() < 0.3 else chance.uniform(0.1, 8), 2),
                round(chance.random(), 2),
            )
        )
    # Separate random numbers: later additions leave the rest of a seed unchanged.
    extra = Random(f"{seed} extras")
    plan.extras = tuple(sorted(extra.sample(EXTRAS, extra.choice((0, 0, 1, 1, 2)))))
    if extra.random() < 0.15:
        kind, whom = extra.choice((("kill-all", "ns-0"), ("kill-all", "broker-0"), ("end-all", "broker-0")))
        plan.faults.append(Fault(kind, whom, round(extra.uniform(5, FAULTS_S), 2), round(extra.uniform(1, 20), 2), 1.0))
    plan.oneway = extra.choice((0.0, 0.0, 0.05))
    # Without SYNC_FLUSH, a power failure can lose recent retries, pops and recalls.
    is_lossless = not plan.failures and not {"dead-letters", "recalls", "slow-pops"} & set(plan.extras)
    if not plan.is_synced and not plan.consumers["pop"] and is_lossless and extra.random() < 0.5:
        whom, at = f"broker-{extra.randrange(plan.brokers)}", round(extra.uniform(1, FAULTS_S), 2)
        plan.faults.append(Fault("power", whom, at, round(extra.uniform(1, 20), 2), 1.0))
    # As in Java, recovery ends the log at a damaged record. So only brokers that are not restarted get this fault.
    restarted = {fault.whom for fault in plan.faults if fault.kind in ("kill", "power", "end", "sync-error")}
    steady = [f"broker-{n}" for n in range(plan.brokers) if f"broker-{n}" not in restarted]
    are_all_restarted = any(fault.kind in ("kill-all", "end-all") for fault in plan.faults)
    is_kept = not {"dead-letters", "retention"} & set(plan.extras)
    if plan.delayed and steady and not are_all_restarted and is_kept and extra.random() < 0.2:
        at = round(extra.uniform(1, min(plan.messages * plan.pause_s, FAULTS_S)), 2)
        plan.faults.append(Fault("rot", extra.choice(steady), at, 0.1, round(extra.random(), 2)))
    later = Random(f"{seed} later")
    if plan.is_synced and later.random() < 0.08:
        whom, at = f"broker-{later.randrange(plan.brokers)}", round(later.uniform(1, FAULTS_S), 2)
        _leave_out_what_waits(plan)
        plan.faults.append(Fault("lies", whom, at, round(later.uniform(0.5, 20), 2), round(later.random(), 2)))
        steady = [name for name in steady if name != whom]
    has_rot = any(fault.kind == "rot" for fault in plan.faults)
    # With failing handlers, the damaged message would be read once more for a retry.
    if steady and not are_all_restarted and is_kept and not has_rot and not plan.failures and later.random() < 0.15:
        at = round(later.uniform(1, min(plan.messages * plan.pause_s, FAULTS_S)), 2)
        strength = round(later.random(), 2)
        plan.faults.append(Fault("rot-unread", later.choice(steady), at, round(later.uniform(0.5, 8), 2), strength))
    slower = Random(f"{seed} slower")
    if slower.random() < _SLOWER_SHARE:
        kind = slower.choice(("drift", "slow-disk", "io-errors"))
        whom = slower.choice(servers + plan.clients) if kind == "drift" else f"broker-{slower.randrange(plan.brokers)}"
        at, lasts = round(slower.uniform(0, FAULTS_S), 2), round(slower.uniform(1, 20), 2)
        if kind != "slow-disk" or not any(fault.kind == "lies" for fault in plan.faults):
            plan.faults.append(Fault(kind, whom, at, lasts, round(slower.random(), 2)))
    at_sync = Random(f"{seed} power at a sync")
    if at_sync.random() < _AT_SYNC_SHARE and (plan.is_synced or (not plan.consumers["pop"] and is_lossless)):
        # While messages are sent; later there is little to sync.
        whom, sending_s = f"broker-{at_sync.randrange(plan.brokers)}", min(plan.messages * plan.pause_s, FAULTS_S)
        at, lasts = round(at_sync.uniform(0, sending_s), 2), round(at_sync.uniform(3, 20), 2)
        # As above: recovery must not read a damaged record.
        has_rotten = any(fault.kind in ("rot", "rot-unread") and fault.whom == whom for fault in plan.faults)
        if not has_rotten:
            plan.faults.append(Fault("power-at-sync", whom, at, lasts, round(at_sync.random(), 2)))
    add_extra(plan)
    add_feature(plan)
    add_far_clocks(plan)
    _add_young_name_servers(plan)
    plan.faults.sort(key=lambda fault: fault.at)
    return plan


def _add_young_name_servers(plan: Plan) -> None:
    """Makes all NameServers of some plans restart. Of the other faults, only restarts of clients remain."""
    chance = Random(f"{plan.seed} young name servers")
    if chance.random() < _YOUNG_SHARE:
        at, lasts, strength = chance.uniform(1, FAULTS_S / 2), chance.uniform(2, 25), chance.random()
        restarts = {"kill", "end"}
        plan.faults = [fault for fault in plan.faults if fault.kind in restarts and fault.whom in plan.clients]
        whom = f"broker-{plan.brokers - 1}"
        plan.faults.append(Fault("young", whom, round(at, 2), round(lasts, 2), round(strength, 2)))


def add_extra(plan: Plan) -> None:
    """Adds one of LATER_EXTRAS to some plans."""
    chance = Random(f"{plan.seed} later extras")
    if chance.random() < _LATER_EXTRAS_SHARE:
        plan.extras += (chance.choice(LATER_EXTRAS),)
        if chance.random() < _CALM_SHARE:
            _remove_server_faults(plan)


def add_feature(plan: Plan) -> None:
    """Adds one of FEATURE_EXTRAS to some plans."""
    chance = Random(f"{plan.seed} features")
    kinds = {fault.kind for fault in plan.faults}
    is_lossy = "lies" in kinds or (not plan.is_synced and bool(kinds & {"power", "power-at-sync"}))
    names = [name for name in FEATURE_EXTRAS if not is_lossy or name not in _LOSSY_FEATURES]
    # A slave copies users some seconds after their creation.
    names = [name for name in names if not plan.mode or name != "permissions"]
    if names and chance.random() < _FEATURE_SHARE:
        name = chance.choice(names)
        plan.extras += (name,)
        plan.acl = name == "permissions" or chance.random() < _ACL_SHARE
        # The compaction log has the messages whose files of the commit log are deleted.
        may_delete = "retention" not in plan.extras and not kinds & {"rot", "rot-unread"}
        if name == "compaction" and may_delete and chance.random() < _DELETED_SHARE:
            plan.extras += ("retention",)
        if chance.random() < _CALM_SHARE:
            _remove_server_faults(plan)


def _remove_server_faults(plan: Plan) -> None:
    """Removes the faults of servers, because the checkers of some workloads are strictest without them."""
    plan.faults = [fault for fault in plan.faults if fault.whom in plan.clients and fault.kind != "reset"]


def add_far_clocks(plan: Plan) -> None:
    """Adds clocks that are wrong by up to an hour, mostly of brokers; restarts some of their programs."""
    chance = Random(f"{plan.seed} far clocks")
    if chance.random() >= _FAR_CLOCKS_SHARE or _TIMED_EXTRAS & set(plan.extras):
        return
    for _ in range(chance.choice((1, 1, 2))):
        whom = chance.choice(plan.broker_programs * 3 + plan.servers + plan.clients)
        if chance.random() < _FROM_THE_START_SHARE:
            at, lasts = -1.0, chance.uniform(5, 60)
        else:
            at, lasts = chance.uniform(0, FAULTS_S / 2), chance.uniform(0.5, 40)
        strength = round(chance.random(), 2)
        if chance.random() < _JUMPS_SHARE:
            # The clock jumps over the right time: from ahead to behind, or the other way round.
            since, back_s = max(at, 0.0) + lasts + 0.02, chance.uniform(2, 20)
            plan.faults.append(Fault("far-clock", whom, round(since, 2), round(back_s, 2), round(1 - strength, 2)))
        # As in `make_plan`: a restart of a broker would cut its log at a damaged record.
        has_rot = any(fault.kind in ("rot", "rot-unread") and fault.whom == whom for fault in plan.faults)
        plan.faults.append(Fault("far-clock", whom, round(at, 2), round(lasts, 2), strength))
        if chance.random() < 0.5:
            restart, at = chance.choice(("kill", "end")), max(at, 0.0) + chance.uniform(-2, lasts + 5)
            lasts = chance.uniform(0.5, 5)
            if not has_rot:
                plan.faults.append(Fault(restart, whom, round(max(at, 0.0), 2), round(lasts, 2), 0.5))
    if chance.random() < _ONLY_CLOCKS_SHARE:
        # Then messages must arrive as soon as with right clocks.
        plan.faults = [fault for fault in plan.faults if fault.kind == "far-clock"]
        plan.failures, plan.extras = 0.0, ()
        plan.acl = False
    if plan.acl:
        # A broker refuses signatures whose time differs from its clock by more than five minutes, so no topic could be
        # created before its clock is right.
        plan.faults = [replace(fault, at=max(fault.at, 0.0)) for fault in plan.faults]
    # A wrong clock needs delayed messages to have an effect. Syncs that lie can lose delayed messages when they move.
    if all(fault.kind != "lies" for fault in plan.faults):
        plan.delayed = max(plan.delayed, chance.choice((0.05, 0.2)))


def _leave_out_what_waits(plan: Plan) -> None:
    """Removes messages that move within a broker.

    They were acknowledged before syncs lie, but can be lost when they move.
    """
    plan.delayed = plan.transactions = plan.failures = 0.0
    plan.consumers["pop"] = 0
    plan.extras = tuple(name for name in plan.extras if name not in ("dead-letters", "recalls", "slow-pops"))
    plan.faults = [fault for fault in plan.faults if fault.kind != "rot" and not fault.whom.startswith("pop-")]
