"""Plans for brokers with replicas: number and mode of the replicas, and their faults."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.plan import FAULTS_S, Fault, Plan, add_extra, add_far_clocks, add_feature

#: Values of `Plan.mode`.
ASYNC_MASTER, SYNC_MASTER, CONTROLLED = "ASYNC_MASTER", "SYNC_MASTER", "CONTROLLED"
#: Share of seeds with replicas, and the largest number of messages of their producers.
_SHARE = 0.25
_MOST_MESSAGES = 100
#: Share of these seeds with scripts, and the shortest pause between their messages, so that some are sent meanwhile.
_AIMED_SHARE = 0.5
_AIMED_PAUSE_S = 0.2
#: Share of these seeds with a disk that fills up.
_FILLED_SHARE = 0.2
#: Share of the seeds without controllers in which slaves become acting masters.
_ACTING_SHARE = 0.5
#: With SYNC_FLUSH: share of seeds with a failing sync, and share with only syncs that lie.
_SYNC_ERROR_SHARE, _LYING_SHARE = 0.2, 0.15
#: Share of the seeds with controllers in which only the controllers' state is replaced by an old copy.
_GONE_BACK_SHARE = 0.08
#: With SYNC_FLUSH: share of seeds with a power failure before a sync, and its shortest duration, in seconds.
_AT_SYNC_SHARE, _AT_SYNC_S = 0.4, 3.0
#: Scripts that allow no other faults or workloads.
_ALONE = {"away", "gone-back", "lying"}
#: Share of the seeds with controllers in which a master reaches none of them.
_UNCONFIRMED_SHARE = 0.1
#: Share of the seeds with controllers in which masters change as planned, with many delayed messages.
_RELIEVED_SHARE = 0.15
#: Additional workloads for seeds with replicas.
_EXTRAS = (
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
#: Shortest and longest duration of the scripts, in seconds.
_LASTS_S = {
    "isolated": (2, 25),
    "unconfirmed": (8, 20),
    "torn": (1, 15),
    "ambush": (3, 10),
    "stalled": (5, 12),
    "handed": (5, 20),
    "relieved": (15, 60),
    "filled": (2, 20),
    "disaster": (0.5, 8),
    "lying": (1, 20),
    "gone-back": (2, 15),
    "away": (5, 45),
}


def with_replicas(plan: Plan) -> Plan | None:
    """Returns the plan with replicas and with faults of its own, or None if the seed has no replicas."""
    chance = Random(f"{plan.seed} replicas")
    if chance.random() >= _SHARE:
        return None
    mode = chance.choice((CONTROLLED, CONTROLLED, CONTROLLED, SYNC_MASTER, SYNC_MASTER, ASYNC_MASTER))
    is_controlled = mode == CONTROLLED
    replicas = chance.choice((2, 3, 3)) if is_controlled else chance.choice((2, 2, 3))
    plan = replace(
        plan,
        mode=mode,
        replicas=replicas,
        brokers=chance.choice((1, 1, 2)),
        in_sync=(chance.choice((1, 2)) if replicas == 2 else 2) if is_controlled else 1 + (mode == SYNC_MASTER),
        controllers=chance.choice((1, 3)) if is_controlled else 0,
        messages=min(plan.messages, _MOST_MESSAGES),
        failures=0.0,
        oneway=0.0,
        extras=(),
        faults=[],
    )
    kinds = ["kill", "kill", "stop", "end", "cut", "cut", "slow", "reset"]
    if is_controlled:
        kinds += ["stop", "cut", "hand-over", "hand-over"]
    elif plan.is_synced or mode == ASYNC_MASTER:
        kinds += ["garble"]
    for _ in range(chance.choice((0, 1, 2, 4, 8))):
        kind = chance.choice(kinds)
        whom = chance.choice(plan.broker_programs * 2 + plan.servers + plan.clients)
        if kind in ("hand-over", "garble"):
            whom = chance.choice(plan.broker_programs)
        plan.faults.append(_fault(chance, kind, whom))
    if plan.controllers and chance.random() < 0.5:
        plan.faults.append(_fault(chance, "trouble", f"controller-{chance.randrange(plan.controllers)}"))
    # At most one broker of a name loses its disk: no other broker has the newest messages of a second one.
    wrecked = ""
    if plan.in_sync > 1 and chance.random() < 0.3:
        wrecked = chance.choice(plan.broker_programs if is_controlled else [f"broker-{n}" for n in range(plan.brokers)])
        plan.faults.append(_fault(chance, "wreck", wrecked))
    if plan.is_synced:
        # After a power failure, a master without a controller may lack messages that its slaves have.
        dark = plan.broker_programs if is_controlled else plan.broker_programs[plan.brokers :] if not wrecked else []
        for _ in range(chance.choice((0, 1, 2)) if dark else 0):
            plan.faults.append(_fault(chance, "power", chance.choice(dark)))
        at_sync = Random(f"{plan.seed} power of a replica at a sync")
        if dark and at_sync.random() < _AT_SYNC_SHARE:
            # While messages are sent; later there is little to sync.
            fault = _fault(at_sync, "power-at-sync", at_sync.choice(dark))
            at = round(at_sync.uniform(0, min(plan.messages * plan.pause_s, FAULTS_S)), 2)
            plan.faults.append(replace(fault, at=at, lasts=max(fault.lasts, _AT_SYNC_S)))
    aimed = Random(f"{plan.seed} aimed")
    if mode != ASYNC_MASTER and aimed.random() < _AIMED_SHARE:
        plan = _aimed(plan, aimed, may_wreck=not wrecked)
    filled = Random(f"{plan.seed} filled")
    if filled.random() < _FILLED_SHARE:
        plan.faults.append(_script(filled, plan, "filled"))
    broken = Random(f"{plan.seed} broken")
    if plan.is_synced and broken.random() < _SYNC_ERROR_SHARE:
        plan.faults.append(_fault(broken, "sync-error", broken.choice(plan.broker_programs)))
    alone = Random(f"{plan.seed} alone")
    place = alone.random()
    if mode != CONTROLLED and place < _ACTING_SHARE:
        plan = _with_acting_masters(plan, alone)
    elif plan.is_synced and mode != ASYNC_MASTER and place > 1 - _LYING_SHARE:
        plan = _with_script(plan, alone, "lying")
    elif is_controlled and place < _GONE_BACK_SHARE:
        plan = _with_script(plan, alone, "gone-back")
    elif is_controlled and Random(f"{plan.seed} relieved").random() < _RELIEVED_SHARE:
        plan = _with_script(plan, alone, "relieved")
        plan.delayed, plan.transactions = 0.3, 0.15
    elif is_controlled:
        unconfirmed = Random(f"{plan.seed} unconfirmed")
        if unconfirmed.random() < _UNCONFIRMED_SHARE:
            plan.faults.append(_script(unconfirmed, plan, "unconfirmed"))
    plan.extras = _extras(plan, Random(f"{plan.seed} extras of replicas"))
    if not _ALONE & {fault.kind for fault in plan.faults}:
        add_extra(plan)
        add_feature(plan)
        add_far_clocks(plan)
    plan.faults.sort(key=lambda fault: fault.at)
    return plan


def _extras(plan: Plan, chance: Random) -> tuple[str, ...]:
    """Selects additional workloads, unless a script excludes them."""
    kinds = {fault.kind for fault in plan.faults}
    if kinds & _ALONE:
        return ()
    # The configuration of a broker is only on its own disk.
    names = [name for name in _EXTRAS if name != "configurations" or not kinds & {"disaster", "wreck"}]
    return tuple(sorted(chance.sample(names, chance.choice((0, 0, 1, 1, 2)))))


def _aimed(plan: Plan, chance: Random, *, may_wreck: bool) -> Plan:
    """Adds scripts of scripts.py while messages are sent. In most cases, they replace the other faults."""
    is_controlled = plan.mode == CONTROLLED
    plan = replace(plan, messages=_MOST_MESSAGES, pause_s=max(plan.pause_s, _AIMED_PAUSE_S))
    if chance.random() < 0.7:
        plan.faults, may_wreck = [], True
    if not is_controlled:
        # The master delivers messages that a disconnected slave lacks. After a loss of its disk, the group would skip
        # messages that replace them.
        plan.faults = [fault for fault in plan.faults if fault.kind != "wreck"]
    if is_controlled and may_wreck:
        plan.in_sync = chance.choice((1, 1, 2))
    kinds = ["torn"]
    if is_controlled:
        kinds += ["torn", "isolated", "isolated", "ambush", "ambush", "stalled", "stalled", "handed"]
        if plan.is_synced and may_wreck:
            kinds += ["disaster"]
    for _ in range(chance.choice((1, 2, 3))):
        kind = chance.choice(kinds)
        if kind == "disaster":
            kinds.remove(kind)
        plan.faults.append(_script(chance, plan, kind))
    return plan


def _with_script(plan: Plan, chance: Random, kind: str) -> Plan:
    """Returns the plan with this script as the only fault."""
    plan = replace(plan, messages=_MOST_MESSAGES, pause_s=max(plan.pause_s, _AIMED_PAUSE_S), faults=[])
    plan.faults.append(_script(chance, plan, kind))
    return plan


def _with_acting_masters(plan: Plan, chance: Random) -> Plan:
    """Returns a plan with two broker names and the script `away`, with many delayed messages and transactions.

    Two names are necessary, because an acting master stores due messages on the master of the other name.
    """
    plan = _with_script(plan, chance, "away")
    if chance.random() < 0.3:
        plan.faults.append(_script(chance, plan, "away"))
    if chance.random() < 0.3:
        kind = chance.choice(("stop", "cut", "slow", "reset", "kill"))
        plan.faults.append(_fault(chance, kind, chance.choice(plan.servers + plan.clients)))
    consumers = plan.consumers | {"pop": max(plan.consumers["pop"], 1)}
    return replace(plan, acting=True, brokers=2, consumers=consumers, delayed=0.3, transactions=0.1)


def _script(chance: Random, plan: Plan, kind: str) -> Fault:
    least, most = _LASTS_S[kind]
    lasts = round(chance.uniform(least, most), 2)
    at = round(chance.uniform(2, max(0.8 * plan.messages * plan.pause_s, 3)), 2)
    return Fault(kind, f"broker-{chance.randrange(plan.brokers)}", at, lasts, round(chance.random(), 2))


def _fault(chance: Random, kind: str, whom: str) -> Fault:
    lasts = chance.uniform(0.1, 40) if chance.random() < 0.3 else chance.uniform(0.1, 8)
    return Fault(kind, whom, round(chance.uniform(0, FAULTS_S), 2), round(lasts, 2), round(chance.random(), 2))
