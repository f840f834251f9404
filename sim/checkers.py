"""What must be true of a run, judged by what its clients saw and by the stores at its end.

A new checker is a function here that takes the run and yields what is wrong, and its name in `ALL`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.run import Run

#: A wall clock that jumps makes a delayed message early by as much: half of what faults.ClockJump does, s.
_JUMP_S = 10.0
#: Late by more than this, s, once nothing is wrong any more: see `progress`.
_EARLY_S = 0.002


def nothing_is_lost(run: Run) -> Iterator[str]:
    """What was acknowledged reaches every group."""
    for group in run.clients.scene.reads:
        lost = run.clients.scene.lacks(group)
        if lost:
            yield f"{group} never had {len(lost)} of the messages that were acknowledged: {', '.join(lost[:5])}"


def nothing_is_invented(run: Run) -> Iterator[str]:
    """What is received was sent, and not taken back."""
    for one in run.history.received:
        sent = run.history.sent.get(one.name)
        if sent is None:
            yield f"{one.group} had {one.name!r}, which nobody sent"
        elif sent.is_void:
            yield f"{one.group} had {one.name}, which was rolled back"


def nothing_is_early(run: Run) -> Iterator[str]:
    """A delayed message isn't delivered before its time."""
    jumps = any(fault.kind == "clock" for fault in run.plan.faults)
    for one in run.history.received:
        sent = run.history.sent.get(one.name)
        if sent is not None and one.at < sent.not_before - _EARLY_S - (_JUMP_S if jumps else 0.0):
            yield f"{one.group} had {one.name} {sent.not_before - one.at:.3f} s before its time"


def orderly_is_in_order(run: Run) -> Iterator[str]:
    """The orderly group has the messages of a key and queue one after the other the first time."""
    highest: dict[tuple[str, str, int], int] = {}
    seen: set[str] = set()
    for one in run.history.received:
        sent = run.history.sent.get(one.name)
        if one.group != "orderly" or sent is None or not sent.key:
            continue
        place = (sent.key, one.broker, one.queue)
        if one.name not in seen and sent.number < highest.get(place, -1):
            yield f"orderly had {one.name} after number {highest[place]} of its key, in the same queue"
        seen.add(one.name)
        highest[place] = max(highest.get(place, -1), sent.number)


def nothing_is_twice(run: Run) -> Iterator[str]:
    """Where nothing goes wrong each group has each message once."""
    if run.plan.faults or run.plan.failures:
        return
    for group, had in run.history.by_group().items():
        if group in run.clients.scene.rewound:
            continue
        twice = [name for name, deliveries in had.items() if len(deliveries) > 1]
        if twice:
            yield f"{group} had {len(twice)} messages more than once, without a fault: {', '.join(twice[:5])}"


def nobody_is_refused(run: Run) -> Iterator[str]:
    """Where nothing goes wrong no call of a client fails."""
    if not run.plan.faults:
        yield from (f"without a fault: {problem}" for problem in run.history.errors[:5])


def producers_get_on(run: Run) -> Iterator[str]:
    """When faults are over everybody can send again."""
    for program in run.clients.producers:
        if program.name not in run.clients.done:
            yield f"{program.name} has not sent all of its messages"


def workloads_are_content(run: Run) -> Iterator[str]:
    """What else each workload promises."""
    for extra in run.clients.extras:
        yield from extra.problems()


def noted_at_once(run: Run) -> Iterator[str]:
    """What the clients themselves found impossible."""
    yield from run.history.problems[:5]


def nothing_went_unhandled(run: Run) -> Iterator[str]:
    """No task or callback raised what nobody took."""
    for context in run.world.loop.unhandled[:5]:
        yield f"unhandled: {context.get('message')}: {context.get('exception')!r}"


def everybody_works(run: Run) -> Iterator[str]:
    """When faults are over no job fails, and no program has ended of itself."""
    for program in run.servers.all + run.clients.all:
        if program.failure is not None and not run.had_disk_faults:
            yield f"{program.name} ended: {program.failure!r}"
    for name, broker in run.servers.running.items():
        for report in broker.jobs.failing():
            yield f"{name}: the job {report.name!r} fails: {report.last_error!r}"


ALL: list[Callable[[Run], Iterator[str]]] = [
    nothing_is_lost,
    nothing_is_invented,
    nothing_is_early,
    orderly_is_in_order,
    nothing_is_twice,
    nobody_is_refused,
    producers_get_on,
    workloads_are_content,
    noted_at_once,
    nothing_went_unhandled,
    everybody_works,
]
