"""Plans that find planted bugs quickly, mostly bugs of replicas and controllers. Random seeds would take longer.

Each plan has one script of scripts.py, or one fault, in a short run. tests/sim/test_sim_planted.py runs them with the
bugs, and without.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.plan import Fault, Plan
from sim.replicas_plan import CONTROLLED, SYNC_MASTER

#: Begin of the fault, in seconds after the first send.
_AT_S = 4.0


def plan_with(kind: str, lasts: float, strength: float, **more: Any) -> Plan:
    """Returns a plan for three brokers in controller mode with one fault. `more` replaces fields of the plan."""
    plan = Plan(
        seed="planted",
        name_servers=1,
        brokers=1,
        producers=2,
        consumers={"push": 1, "orderly": 1, "pop": 0, "lite": 0},
        is_synced=False,
        messages=80,
        pause_s=0.1,
        ordered=0.3,
        delayed=0.1,
        batches=0.05,
        transactions=0.0,
        failures=0.0,
        tiny_reads=0.0,
        replicas=3,
        mode=CONTROLLED,
        controllers=3,
        faults=[Fault(kind, "broker-0", _AT_S, lasts, strength)],
    )
    return replace(plan, **more)


#: The slaves are cut off from their master: for a short time, or for so long that they are out of sync when it dies.
_TORN = plan_with("torn", 4.0, 0.3)
_TORN_LONG = plan_with("torn", 9.0, 0.6)
_TWO_IN_SYNC = plan_with("torn", 4.0, 0.6, in_sync=2, is_synced=True)
_ISOLATED = plan_with("isolated", 14.0, 0.8, replicas=2)
_STALLED = plan_with("stalled", 8.0, 0.7)
#: Many producers send during a handover. Between the notification and the change of handlers, the loop iterates a few
#: times.
_HANDED = plan_with("handed", 15.0, 1.0, replicas=2, producers=8, messages=150, ordered=0.0)
#: A slave of each name becomes acting master while the master is down.
_AWAY = plan_with(
    "away",
    35.0,
    0.3,
    replicas=2,
    brokers=2,
    mode=SYNC_MASTER,
    in_sync=2,
    controllers=0,
    acting=True,
    delayed=0.3,
    transactions=0.1,
    consumers={"push": 1, "orderly": 1, "pop": 1, "lite": 0},
)
#: The power of a single broker fails during a sync, before the consumers have the newest messages.
_AT_SYNC = plan_with(
    "power-at-sync", 3.0, 0.07, seed="1", replicas=1, mode="", controllers=0, is_synced=True, ordered=0.6
)
#: No faults: a topic is created again, or a group is reset.
_CALM = plan_with("reset", 0.1, 0.0, replicas=1, mode="", controllers=0, messages=10, faults=[])
_CREATED_AGAIN = replace(_CALM, extras=("recreations",))
_PRIORITIES = replace(_CALM, extras=("priorities",))
_LITE_TOPICS = replace(_CALM, extras=("lite-topics",))
_RATE_LIMITS = replace(_CALM, extras=("rate-limits",))
#: A topic whose messages expire by age, or by the size of their queue.
_BY_AGE, _BY_SIZE = (replace(_CALM, seed=seed, extras=("topic-retention",)) for seed in ("0", "2"))
#: A topic is deleted and created again. Then the disk of a master fills up, so its queues get no messages.
_FILLED = plan_with(
    "filled",
    5.0,
    0.82,
    seed="52262",
    brokers=2,
    replicas=2,
    mode=SYNC_MASTER,
    in_sync=2,
    controllers=0,
    consumers={"push": 1, "orderly": 1, "pop": 1, "lite": 1},
    messages=50,
    pause_s=0.2,
    extras=("recreations",),
    faults=[Fault("filled", "broker-1", 6.74, 5.0, 0.82)],
)
_COMPACTION = replace(_CALM, extras=("compaction",))
#: The power fails after some compactions.
_COMPACTION_POWER = replace(_COMPACTION, is_synced=True, faults=[Fault("power", "broker-0", 52.2, 3.0, 0.5)])
_FILTERS = replace(_CALM, extras=("filters",))
_PERMISSIONS = replace(_CALM, extras=("permissions",), acl=True)
#: A broker's clock is half an hour ahead for some seconds.
_AHEAD = plan_with("far-clock", 8.0, 0.85, replicas=1, mode="", controllers=0, delayed=0.4)
#: Four planned changes of master.
_RELIEVED = plan_with("relieved", 24.0, 0.5, messages=120, pause_s=0.2, delayed=0.3, transactions=0.3)
#: NameServers restart. One of two brokers cannot reach them for a while, and one of two consumers joins.
_YOUNG = plan_with(
    "young",
    25.0,
    0.5,
    replicas=1,
    brokers=2,
    mode="",
    controllers=0,
    consumers={"push": 2, "orderly": 1, "pop": 0, "lite": 1},
    faults=[Fault("young", "broker-1", _AT_S, 25.0, 0.5)],
)
#: A broker is killed while producers repeat their sends.
_REPEATED = plan_with(
    "kill", 6.0, 0.5, replicas=1, mode="", controllers=0, is_synced=True, messages=10, extras=("deduplication",)
)
#: Messages are sent until the end of the run.
_LONG = plan_with("stop", 3.0, 0.5, replicas=1, mode="", controllers=0, messages=400)

#: Plans by the name of the bug.
PLANS = {
    "a flusher confirms before it syncs": _AT_SYNC,
    "a consumer that stops commits nothing": _LONG,
    "a clock that was ahead blocks a delay level": _AHEAD,
    "a new master delivers timed messages again": _RELIEVED,
    "a new master delivers all delayed messages again": _RELIEVED,
    "a transaction can end twice": replace(_CALM, extras=("endings",)),
    "a reset keeps popped messages in flight": replace(_CALM, seed="1", extras=("pop-resets",)),
    "consumers keep the offsets of a recreated topic": _CREATED_AGAIN,
    "delayed messages of a deleted topic go to the new one": _CREATED_AGAIN,
    "a lite topic is popped while its messages are in flight": _LITE_TOPICS,
    "a consumer repeats no lite topics": _LITE_TOPICS,
    "a pop of a lite topic skips a message": _LITE_TOPICS,
    "a pop reads the lowest priority first": _PRIORITIES,
    "a priority above the last queue is unlimited": _PRIORITIES,
    "sends do not count for the rate limit": _RATE_LIMITS,
    "deliveries do not count for the rate limit": _RATE_LIMITS,
    "a client does not wait for a rate limit": _RATE_LIMITS,
    "a restarted broker shows expired messages": replace(_BY_AGE, faults=[Fault("kill", "broker-0", 40.0, 2.0, 0.5)]),
    "messages expire too early": _BY_AGE,
    "the size of a queue is half of its retention": _BY_SIZE,
    "a pull before the begin of a queue continues at its end": _BY_AGE,
    "messages of a SQL92 group are not filtered": _FILTERS,
    "a compressed body is not marked": _FILTERS,
    "signatures are not checked": _PERMISSIONS,
    "a user may use every topic": _PERMISSIONS,
    "a compaction removes the last message of a key": _COMPACTION,
    "a removed tombstone brings back the value of its key": _COMPACTION,
    "a read of compacted messages skips one": _COMPACTION,
    "the files of a compaction are not synced": _COMPACTION_POWER,
    "a proxy acknowledges no message": replace(_CALM, extras=("proxies",)),
    "a broker stores repeated rows": replace(_CALM, extras=("writers",)),
    "a response does not wait for the flush": _AT_SYNC,
    "a send does not wait for slaves": _TORN,
    "slow slaves count as confirmed": _TORN,
    "a send returns before the in-sync set confirms it": _ISOLATED,
    "a slave acknowledges data that is not on its disk": _TWO_IN_SYNC,
    "a broker outside the in-sync set is elected": _TORN_LONG,
    "a master changes the in-sync set alone": _ISOLATED,
    "sends do not wait for a slave that joins the set": plan_with("ambush", 6.0, 0.3, replicas=2),
    "minInSyncReplicas is ignored": _TWO_IN_SYNC,
    "a slave keeps the records of a deposed master": _ISOLATED,
    "an unsaved change is confirmed": _STALLED,
    "an epoch is not saved": _TORN,
    "an acting master delivers nothing": _AWAY,
    "a deposed master accepts messages": _HANDED,
    "consumers use the route of a NameServer that has just started": _YOUNG,
    "a NameServer that has just started waits for no broker": _YOUNG,
    "a slave keeps the queues of a deleted topic": _FILLED,
    "deduplication ids are not read from the log": _REPEATED,
    "an older epoch is accepted": plan_with("gone-back", 6.0, 0.7),
}
