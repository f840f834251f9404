"""Runs one seed: starts the cluster, its clients and its faults, waits for all deliveries, and runs the checkers."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass
from itertools import islice

from gantrymq.remoting import loop_watch, server
from gantrymq.replication import master
from sim import access_control, audit, checkers, faults, replica_faults, scripts
from sim.clients import Clients
from sim.cluster import Servers
from sim.faults import KINDS, Site, happen
from sim.history import History
from sim.machine import PROCESS
from sim.plan import Fault, Plan
from sim.scene import PRODUCERS_S
from sim.shrink import plan_of
from sim.system import World, begin

KINDS |= replica_faults.KINDS
faults.SCRIPTS |= scripts.SCRIPTS
#: Timeout for the servers to start and to have the topic, in seconds.
_SET_UP_S = 120.0
#: Timeout for all deliveries after the last fault, in seconds. Locks, pops, retries and routes expire earlier.
PROGRESS_S = 400.0
_LOOK_S = 1.0
#: Consumers read a restarted broker's queues again when they have its route (30 s), and brokers need time to start.
_SETTLE_S = 40.0
#: A slave can wait half a minute for its master's tables, starting at the end of a fault.
_SLAVES_SETTLE_S = 60.0
#: Faults whose `end` can be repeated at any time to undo them.
_LASTING = (
    "cut",
    "slow",
    "clock",
    "far-clock",
    "drift",
    "open-errors",
    "io-errors",
    "slow-disk",
    "full",
    "garble",
    "trouble",
)
#: Largest number of reported real calls, and of reported problems of one checker.
_FEW, _MANY = 5, 20


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    seed: str
    problems: list[str]
    simulated_s: float
    messages: int
    received: int
    faults: list[Fault]
    trace: list[tuple[float, str]]

    @property
    def trace_text(self) -> str:
        """One line for each event. The same seed gives the same bytes."""
        return "".join(f"{at:12.6f} {what}\n" for at, what in self.trace)


class Run:
    """State of a run, as the checkers use it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.history = History()
        self.world: World = begin(plan.seed)
        self.world.loop.network.tiny_reads = plan.tiny_reads
        # Watching for a late loop and for idle connections is useless on virtual time. The loop watch alone used a
        # fifth of an idle server's time.
        loop_watch.BEAT_S = 30.0
        server.LOOK_S = 5.0
        # A master looks for new log data each 10 ms. A longer interval suffices, because a waiting send triggers it at
        # once.
        master._LOOK_AT_LOG_S = 0.1
        access_control.use(is_on=plan.acl)
        self.servers = Servers(self.world, plan)
        self.clients = Clients(self.world, plan, self.history, self.servers)
        self._site = Site(self.world, self.servers, self.clients, self.history)

    def execute(self) -> Outcome:
        tracing = _Tracing(self)
        logging.getLogger().addHandler(tracing)
        # Collect garbage once, at the end: its timing depends on earlier work of this process, and unhandled errors are
        # reported during a collection. It also takes a fifth of the time.
        gc.freeze()
        gc.disable()
        real_calls: list[str] = []
        with audit.forbidden(real_calls):
            self.world.loop.run_until_complete(self._main())
            gc.collect()
        logging.getLogger().removeHandler(tracing)
        problems = real_calls[:_FEW]
        for check in checkers.ALL:
            problems += islice(check(self), _MANY)
        return Outcome(
            self.plan.seed,
            problems,
            self.world.loop.time(),
            sum(sent.stored_at is not None for sent in self.history.sent.values()),
            len(self.history.received),
            self.plan.faults,
            self.history.trace,
        )

    async def _main(self) -> None:
        for fault in self.plan.faults:
            if fault.at < 0:
                KINDS[fault.kind].begin(self._site, self._site.programs[fault.whom], fault.strength)
        for program in self.servers.all:
            program.start()
        self.clients.set_up()
        try:
            async with asyncio.timeout(_SET_UP_S):
                await self.clients.is_set_up.wait()
        except TimeoutError:
            failures = [f"{program.name}: {program.failure!r}" for program in self.servers.all if program.failure]
            raise RuntimeError(f"nothing comes to be: {', '.join(failures)}") from None
        for program in self.clients.consumers:
            program.start()
        await asyncio.sleep(PRODUCERS_S)
        for program in self.clients.producers:
            program.start()
        await asyncio.gather(*(happen(self._site, fault) for fault in self.plan.faults))
        self._end_faults()
        loop = self.world.loop
        deadline = loop.time() + PROGRESS_S
        # Failed jobs run again in this time.
        settled = loop.time() + (_SLAVES_SETTLE_S if self.plan.mode else _SETTLE_S)
        while loop.time() < settled or (loop.time() < deadline and not self.clients.is_done()):
            await asyncio.sleep(_LOOK_S)
            # Restart ended programs, as a service manager does.
            for program in self.servers.all + self.clients.all:
                program.start()
        await self.clients.end()

    def _end_faults(self) -> None:
        """Undoes all faults. With overlapping faults, the end of one may have left effects of another."""
        for fault in self.plan.faults:
            if fault.kind in _LASTING:
                KINDS[fault.kind].end(self._site, self._site.programs[fault.whom])
        for program in self.servers.all + self.clients.all:
            if program.host.process is not None:
                program.host.process.go_on()
            self.world.loop.network.without_power.discard(program.host.address)
            faults = self.world.disks[program.host.address].faults
            faults.sync_errors = faults.sync_lies = 0.0


class _Tracing(logging.Handler):
    """Adds the package's log records to the trace."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.WARNING)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        name = process.name if process is not None else "?"
        self._run.history.note(self._run.world.loop.time(), f"{name} {record.levelname}: {record.getMessage()}")


def run_seed(seed: str) -> Outcome:
    """Runs a seed, or a plan in the JSON form of sim/shrink.py."""
    return Run(plan_of(seed)).execute()
