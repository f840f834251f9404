"""Shrinks a failing plan: finds a small plan with fewer faults and less work that still fails in the same way.

Each step tries smaller plans and continues with the first one that fails. It ends when none of them fails. A smaller
plan is another run, not a part of the old one, so some bugs shrink further than others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from sim.plan import Fault, Plan, make_plan
from sim.replicas_plan import CONTROLLED, with_replicas

#: Runs several plans. Returns the problems of each, in the same order.
Try = Callable[[list[Plan]], list[list[str]]]

_LEAST_S = 0.2


def to_json(plan: Plan) -> str:
    """Returns the plan as one line of JSON for `from_json`."""
    return json.dumps(asdict(plan))


def from_json(text: str) -> Plan:
    """Returns the plan of a JSON line. Raises TypeError if a version with other fields wrote it."""
    fields = json.loads(text)
    faults = [Fault(**fault) for fault in fields.pop("faults")]
    extras = tuple(fields.pop("extras"))
    return Plan(**fields, extras=extras, faults=faults)


def plan_of(seed: str) -> Plan:
    """Returns the plan of a seed, or of a JSON line of `to_json`."""
    if seed.startswith("{"):
        return from_json(seed)
    plan = make_plan(seed)
    return with_replicas(plan) or plan


def kinds(problems: list[str]) -> set[str]:
    """Returns the kinds of problems: their texts without names, numbers and lists, which differ between runs."""
    return {re.sub(r"\S*\d\S*", "#", re.split(r": |, ", problem)[0]) for problem in problems}


def shrink(plan: Plan, problems: list[str], run: Try, said: Callable[[str], None], *, at_once: int = 1) -> Plan:
    """Returns the smallest failing plan that it finds. Runs `at_once` plans in parallel."""
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
    """Returns a description of a plan's size."""
    return (
        f"{len(plan.faults)} faults, {plan.producers} x {plan.messages} messages, {plan.name_servers} NameServers, "
        f"{plan.brokers} x {plan.replicas} brokers, {sum(plan.consumers.values())} consumers, "
        f"{len(plan.extras)} workloads more"
    )


def smaller(plan: Plan) -> Iterator[Plan]:
    """Yields plans that lack one part of this plan. The plans that omit most come first."""
    faults = plan.faults
    count = len(faults)
    while count:
        # All faults, then each half, each quarter, and finally each single one.
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
        # Some workloads need the first consumer of these groups.
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
    """Removes the faults of programs that the plan no longer has."""
    known = {*plan.servers, *plan.clients}
    return replace(plan, faults=[fault for fault in plan.faults if fault.whom in known])
