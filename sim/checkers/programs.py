"""Checks of the programs: servers and clients work, find each other, and leave nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from gantrymq.broker.tables import read_deleted_topics
from gantrymq.errors import GantryError
from gantrymq.store.config import StoreConfig
from gantrymq.store.verify import Report, verify
from sim.cluster import store_config
from sim.plan import broker_name

if TYPE_CHECKING:
    from sim.run import Run

#: Faults after which a broker of the affected name may report a disk error and exit.
_OF_DISKS = ("full", "filled", "sync-error", "open-errors", "io-errors")


def nobody_is_refused(run: Run) -> Iterator[str]:
    """Checks that without faults, no client call fails."""
    if not run.plan.faults:
        yield from (f"without a fault: {problem}" for problem in run.history.errors[:5])


def producers_get_on(run: Run) -> Iterator[str]:
    """Checks that all producers sent all messages after the faults were over."""
    for program in run.clients.producers:
        if program.name not in run.clients.done:
            yield f"{program.name} has not sent all of its messages"


def nothing_went_unhandled(run: Run) -> Iterator[str]:
    """Checks that no task or callback raised an unhandled exception."""
    for context in run.world.loop.unhandled[:5]:
        yield f"unhandled: {context.get('message')}: {context.get('exception')!r}"


def everybody_works(run: Run) -> Iterator[str]:
    """Checks that no program ended by itself.

    Allowed are brokers with a disk error, and clients that found no server at start.
    """
    broken = {broker_name(fault.whom) for fault in run.plan.faults if fault.kind in _OF_DISKS}
    for program in run.servers.all + run.clients.all:
        if program in run.clients.all:
            may_end = bool(run.plan.faults) and isinstance(program.failure, GantryError)
        else:
            may_end = program in run.servers.brokers and broker_name(program.name) in broken
        if program.failure is not None and not may_end:
            yield f"{program.name} ended: {program.failure!r}"


def nothing_was_seen(run: Run) -> Iterator[str]:
    """Yields the findings of `Watch`: offsets, jobs, routes, descriptors and memory."""
    yield from run.clients.watch.problems[:5]


def stores_are_whole(run: Run) -> Iterator[str]:
    """Checks that `gantry store verify` finds exactly the damaged records, after all programs have ended."""
    rotten, lied = run.clients.scene.rotten, run.clients.scene.lied_until
    for program in run.servers.brokers:
        # After syncs that lied, the log may have holes in messages acknowledged meanwhile.
        if program.name in run.servers.running and program.name not in lied:
            report = program.look(partial(_verified, store_config(run.plan), run.clients.scene.undeleted))
            if program.name not in rotten:
                yield from (f"{program.name}: {problem}" for problem in report.problems[:3])
            elif not any(str(rotten[program.name]) in problem for problem in report.problems):
                yield f"verify says nothing of {program.name}'s log at {rotten[program.name]}: {report.problems[:3]}"


def _verified(config: StoreConfig, undeleted: Iterable[str]) -> Report:
    deleted = read_deleted_topics(config.config_directory) | dict.fromkeys(undeleted, sys.maxsize)
    return verify(config, deleted_topics=deleted)
