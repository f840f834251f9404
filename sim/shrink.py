"""Shrinking: of a plan whose run fails, the smallest that still fails in the same way, with its faults and its work.

Each step tries some smaller plans and goes on from the first that fails; when none does, it is done. A smaller plan
is another run, not a part of the old one, so some bugs shrink further than others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from sim.plan import Fault, Plan, make_plan
from sim.replicas_plan import CONTROLLED, with_replicas

#: The problems of runs of several plans, in their order.
Try = Callable[[list[Plan]], list[list[str]]]

_LEAST_S = 0.2


def to_json(plan: Plan) -> str:
    """One line, of which `from_json` makes the plan again."""
    return json.dumps(asdict(plan))


def from_json(text: str) -> Plan:
    """Raises TypeError when the plan was of a version with other fields."""
    fields = json.loads(text)
    faults = [Fault(**fault) for fault in fields.pop("faults")]
    extras = tuple(fields.pop("extras"))
    return Plan(**fields, extras=extras, faults=faults)


def plan_of(seed: str) -> Plan:
    """Of a seed, or of a plan as `to_json` writes it."""
    if seed.startswith("{"):
        return from_json(seed)
    plan = make_plan(seed)
    return with_replicas(plan) or plan


def kinds(problems: list[str]) -> set[str]:
    """What is wrong, without the names, numbers and lists in which two runs differ."""
    return {re.sub(r"\S*\d\S*", "#", re.split(r": |, ", problem)[0]) for problem in problems}


def shrink(plan: Plan, problems: list[str], run: Try, said: Callable[[str], None], *, at_once: int = 1) -> Plan:
    """The smallest plan that was found; `at_once` plans are tried together."""
    wanted = kinds(problems)
    while True:
        candidates = list(smaller(plan))
        for begin in range(0, len(candidates), at_once):
            some = candidates[begin : begin + at_once]
            results = run(some)
            chosen = next((one for one, found in zip(some, results, strict=True) if kinds(found) & wanted), None)
            if chosen is not None:
                break
        else:
            return plan
        plan = chosen
        said(size(plan))


def size(plan: Plan) -> str:
    """What is left of a plan, in words."""
    return (
        f"{len(plan.faults)} faults, {plan.producers} x {plan.messages} messages, {plan.name_servers} NameServers, "
        f"{plan.brokers} x {plan.replicas} brokers, {sum(plan.consumers.values())} consumers, "
        f"{len(plan.extras)} workloads more"
    )


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with one thing less, those that leave out most first."""
    faults = plan.faults
    count = len(faults)
    while count:
        # All of them, each half, each quarter, ..., each one.
        for begin in range(0, len(faults), count):
            yield replace(plan, faults=faults[:begin] + faults[begin + count :])
        count //= 2
    for extra in plan.extras:
        yield replace(plan, extras=tuple(other for other in plan.extras if other != extra))
    for messages in (1, plan.messages // 4, plan.messages // 2, plan.messages - plan.messages // 4, plan.messages - 1):
        if 0 < messages < plan.messages:
            yield replace(plan, messages=messages)
    for field in ("producers", "brokers", "name_servers"):
        number: int = getattr(plan, field)
        if number > 1:
            yield _known(replace(plan, **{field: number - 1}))  # type: ignore[arg-type]
    if plan.replicas > 2:
        yield _known(replace(plan, replicas=plan.replicas - 1))
    if plan.replicas > 1 and plan.mode != CONTROLLED:
        yield _known(replace(plan, replicas=1, mode="", in_sync=1))
    if plan.controllers > 1:
        yield _known(replace(plan, controllers=1))
    for group, number in plan.consumers.items():
        # Some workloads count on a first consumer of each group that there always is.
        if number > (group in ("push", "orderly")):
            yield _known(replace(plan, consumers=plan.consumers | {group: number - 1}))
    for field in ("tiny_reads", "failures", "oneway", "transactions", "batches", "delayed", "ordered"):
        if getattr(plan, field):
            yield replace(plan, **{field: 0.0})  # type: ignore[arg-type]
    for place, fault in enumerate(faults):
        if fault.lasts > _LEAST_S:
            shorter = replace(fault, lasts=round(fault.lasts / 2, 2))
            yield replace(plan, faults=[*faults[:place], shorter, *faults[place + 1 :]])


def _known(plan: Plan) -> Plan:
    """Without faults of programs that the plan has no longer."""
    known = {*plan.servers, *plan.clients}
    return replace(plan, faults=[fault for fault in plan.faults if fault.whom in known])
