"""sim/shrink.py: the smallest failing plan."""

from __future__ import annotations

import pytest
from sim.plan import Fault, Plan, make_plan
from sim.shrink import from_json, kinds, shrink, smaller, to_json

_KILL = Fault("kill", "broker-0", 10.0, 5.0, 0.5)


def big() -> Plan:
    others = [Fault("reset", f"push-{n % 3}", float(n), 8.0, 0.5) for n in range(7)]
    return Plan(
        seed="x",
        name_servers=2,
        brokers=3,
        producers=3,
        consumers={"push": 3, "orderly": 3, "pop": 2, "lite": 2},
        is_synced=True,
        messages=200,
        pause_s=0.05,
        ordered=0.3,
        delayed=0.2,
        batches=0.1,
        transactions=0.1,
        failures=0.02,
        tiny_reads=0.1,
        extras=("broadcasts", "recalls"),
        faults=[*others[:4], _KILL, *others[4:]],
    )


def test_what_has_nothing_to_do_with_it_goes() -> None:
    """The run fails with a kill of a broker, at least 37 messages and batches. Everything else must go."""

    def run(plan: Plan) -> list[str]:
        is_bad = any(fault.kind == "kill" for fault in plan.faults) and plan.messages >= 37 and plan.batches > 0
        return [f"push never had {plan.messages} of the messages: a.{plan.producers}"] if is_bad else ["late"]

    tried = 0

    def run_some(plans: list[Plan]) -> list[list[str]]:
        nonlocal tried
        tried += len(plans)
        return [run(plan) for plan in plans]

    said: list[str] = []
    least = shrink(big(), run(big()), run_some, said.append, at_once=2)
    assert [fault.kind for fault in least.faults] == ["kill"]
    assert least.faults[0].lasts <= 0.2
    assert (least.messages, least.producers, least.brokers, least.name_servers) == (37, 1, 1, 1)
    assert least.consumers == {"push": 1, "orderly": 1, "pop": 0, "lite": 0}
    assert (least.batches, least.delayed, least.tiny_reads, least.extras) == (0.1, 0.0, 0.0, ())
    assert said[-1].startswith("1 faults, 1 x 37 messages, ")
    assert tried < 300


def test_another_failure_is_not_the_one() -> None:
    plan = big()
    least = shrink(plan, ["lost: a"], lambda plans: [["invented: b"] for _ in plans], print)
    assert least == plan


def test_names_and_numbers_make_no_difference() -> None:
    assert kinds(["push never had 7 of the messages that were acknowledged: a.0, a.3"]) == kinds(
        ["push never had 1 of the messages that were acknowledged: producer-1.3"]
    )
    assert kinds(["push never had 7 of the messages"]) != kinds(["pop never had 7 of the messages"])
    assert kinds([]) == set()


def test_faults_of_those_who_are_gone_go() -> None:
    plan = big()
    plan.faults.append(Fault("kill", "broker-2", 10.0, 5.0, 0.5))
    fewer = next(one for one in smaller(plan) if one.brokers == 2)
    assert "broker-2" not in [fault.whom for fault in fewer.faults]
    assert _KILL in fewer.faults


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_the_same_after_its_json(seed: int) -> None:
    plan = make_plan(str(seed))
    text = to_json(plan)
    assert "\n" not in text
    assert from_json(text) == plan
