"""Checks the servers during a run, for problems that are not visible at its end, and stops all programs in order.

Some properties hold at any time: for example, a committed offset never decreases by itself. Others concern changes
over time: a job that stopped running is dead. Others concern the state that remains after a program has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from math import inf

from gantrymq.background.jobs import Jobs
from gantrymq.background.repeating import Repeating, Work
from gantrymq.background.report import JobReport
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from sim.assignment_watch import AssignmentWatch
from sim.cluster import BROKER_PORT, REGISTER_MS, Program
from sim.compare import compare
from sim.copies import copies_of
from sim.machine import State
from sim.plan import broker_name
from sim.replica_watch import ReplicaWatch
from sim.scene import Scene

#: Interval of the checks, in seconds.
_LOOK_S = 2.0
#: Largest number of loop iterations per interval. Busy programs need some hundred per message.
_MOST_TURNS = 100_000
#: Jobs and threads with an interval below `_OFTEN_S` must run within `_JOBS_S`; in seconds.
_JOBS_S = 20.0
_OFTEN_S = 5.0
_THREADS = ("flush the commit log", "flush the consume queues")
#: Time in which a NameServer notices that a broker has started: two registration periods, in seconds. It notices an end
#: of a broker earlier, by the closed connection.
PERIODS_S = 2 * REGISTER_MS / 1000
_GONE_S = 5.0
#: Timeout for programs to end after SIGTERM, in seconds.
_END_S = 60.0
#: Time after which a server has noticed the end of its clients, in seconds.
_HEARD_S = 0.5
#: Tolerance for the end of a long poll, in seconds: its resolution is a second, and it is checked at intervals.
_POLL_LATE_S = 5.0
#: Faults after which a consumer may commit an old offset while another one continues, as in Java.
_STALE = ("stop", "cut", "slow", "reset", "lies", "rot-unread", "isolated", "torn", "ambush", "disaster")
#: Faults after which the first registered member takes all queues of its group, as in Java. The other members continue
#: with their queues until they are notified. In an orderly group, locks prevent this. After "gone-back", all consumers
#: return to a master from which all had disconnected.
_UNKNOWN = ("kill-all", "end-all", "disaster", "gone-back")
#: Faults after which a machine's peers get no reset. Its clients notice the loss one by one. The last one commits its
#: old offset when another one already has its queues, as in Java.
_UNTOLD = ("power", "power-at-sync", "wreck", "lying")
#: Faults after which a consumer that reads from a slave can notice seconds later than others that its master has
#: restarted. Until then, another consumer of the group has its queues, and both commit. The same happens with Java.
_READ_FROM_SLAVES = ("kill", "end", "away", "hand-over", "handed", "relieved", "sync-error", "filled")
#: Faults after which a NameServer cannot detect whether a broker is alive.
_UNSEEN = ("cut", "slow", "stop", "power", "power-at-sync", "lies", "lying", "wreck", "torn", "young")

_Place = tuple[str, str, int]

#: Names of jobs with a short interval, of all servers.
_often: set[str] = set(_THREADS)
#: Jobs by the id of their report. Only a master starts some of them, and only a slave others.
_jobs: dict[int, Repeating] = {}
_repeating = Jobs.repeating


def _noted(jobs: Jobs, name: str, work: Work, interval_s: float = inf, **options: float) -> Repeating:
    if interval_s <= _OFTEN_S:
        _often.add(name)
    job = _repeating(jobs, name, work, interval_s, **options)
    _jobs[id(job.report)] = job
    return job


# A report contains neither the interval of its job nor whether the job is started.
Jobs.repeating = _noted  # type: ignore[method-assign, assignment]


class Watch:
    """Checks of one run. `problems` are the findings."""

    def __init__(self, scene: Scene) -> None:
        self.problems: list[str] = []
        self._scene = scene
        self._replicas = ReplicaWatch(scene)
        self._assignments = AssignmentWatch(scene)
        kinds = {fault.kind for fault in scene.plan.faults}
        self._are_offsets_sure = not kinds & set(_STALE) and "comings" not in scene.plan.extras
        if scene.plan.acl and "far-clock" in kinds:
            # A broker refuses all requests of a client whose clock differs by more than five minutes, as if it were cut
            # off (`_STALE`).
            self._are_offsets_sure = False
        self._are_members_known = not kinds & set(_UNKNOWN)
        of_brokers = {fault.kind for fault in scene.plan.faults if fault.whom in scene.plan.broker_programs}
        reads_from_slaves = bool(scene.plan.mode) and bool(of_brokers & set(_READ_FROM_SLAVES))
        self._are_deaths_told = not kinds & set(_UNTOLD) and not reads_from_slaves
        # With a controller, a broker can be neither master nor slave for a while.
        self._are_deaths_seen = not kinds & set(_UNSEEN) and not scene.plan.controllers
        #: Committed offsets of all groups, for each broker process.
        self._offsets: dict[str, dict[_Place, int]] = {}
        #: Run counts of the frequent jobs of each process, at several times.
        self._runs: dict[str, list[tuple[float, dict[str, int]]]] = {}
        #: Time from which on a NameServer has had a wrong entry for a broker.
        self._wrong_since: dict[tuple[str, str], float] = {}

    async def main(self) -> None:
        """Runs the checks until the run is over."""
        while True:
            turns = self._scene.world.loop.turns
            await asyncio.sleep(_LOOK_S)
            turns = self._scene.world.loop.turns - turns
            if turns > _MOST_TURNS:
                self.problems.append(f"at {self._scene.now():.0f} s somebody is busy: {turns} turns in {_LOOK_S:.0f} s")
            self._look_at_routes()
            self.problems += self._assignments.look()
            for program, broker in self._scene.servers.looked_into():
                assert program.host.process is not None
                if program.host.process.state is State.RUNNING:
                    life = program.host.process.name
                    self._look_at_jobs(life, broker.jobs)
                    self._look_at_polls(life, broker)
                    if self._are_offsets_sure and broker.config.broker_role is not BrokerRole.SLAVE:
                        self._look_at_offsets(f"{life}{self._epoch(broker)}", broker)
                    self._replicas.look(program, broker)
            for program, server in self._scene.servers.name_servers_looked_into():
                assert program.host.process is not None
                if program.host.process.state is State.RUNNING:
                    self._look_at_jobs(program.host.process.name, server.jobs)

    def _look_at_polls(self, life: str, broker: Broker) -> None:
        """Checks that each long poll gets a response when its time is over, with or without messages."""
        late_s = self._scene.now() - min(broker.polling._by_second, default=inf)
        if late_s > _POLL_LATE_S:
            self.problems.append(f"at {self._scene.now():.0f} s {life} holds a pull {late_s:.0f} s beyond its time")

    # -- offsets ------------------------------------------------------------------------------------------------

    @staticmethod
    def _epoch(broker: Broker) -> str:
        """Returns the epoch of a broker in controller mode. It can be master several times."""
        roles = broker.replicas_manager._roles if broker.replicas_manager is not None else None
        return f" in epoch {roles.role.epoch}" if roles is not None else ""

    def _look_at_offsets(self, life: str, broker: Broker) -> None:
        known = self._offsets.setdefault(life, {})
        is_sure = self._are_deaths_told or self._scene.is_settled(broker.config.broker_name)
        for group, topic in self._scene.reads.items():
            if group in self._scene.rewound or not (self._are_members_known or group == "orderly"):
                continue
            for queue_id, offset in broker.offsets.queues(group, topic).items():
                place = group, topic, queue_id
                if is_sure and offset < known.get(place, 0):
                    self.problems.append(
                        f"at {self._scene.now():.0f} s {group}'s offset of queue {queue_id} of {topic} at {life} "
                        f"went back from {known[place]} to {offset}"
                    )
                known[place] = offset

    # -- jobs ---------------------------------------------------------------------------------------------------

    def _look_at_jobs(self, life: str, jobs: Iterable[JobReport]) -> None:
        runs: dict[str, int] = {}
        for report in jobs:
            if report.name in _often:
                job = _jobs.get(id(report))
                # A job can set a longer pause for itself.
                rests = job is not None and _OFTEN_S < job.due - self._scene.now() < inf
                if job is None or (job.is_started and not rests):
                    runs[report.name] = runs.get(report.name, 0) + report.runs
        self._runs.setdefault(life, []).append((self._scene.now(), runs))

    def dead_jobs(self) -> Iterator[str]:
        """Yields the frequent jobs that stopped running, of each process that is alive at the end."""
        for life, looks in self._runs.items():
            ended, last = looks[-1]
            before = next((runs for at, runs in reversed(looks) if at <= ended - _JOBS_S), None)
            if before is not None and ended > self._scene.now() - 2 * _LOOK_S:
                for name in sorted(last.keys() & before.keys()):
                    if last[name] == before[name]:
                        yield f"{life}: the job {name!r} has not run for {_JOBS_S:.0f} s"

    # -- routes -------------------------------------------------------------------------------------------------

    def _look_at_routes(self) -> None:
        """Checks that a NameServer notices a started or ended broker in time."""
        if not self._are_deaths_seen:
            return
        servers, now = self._scene.servers, self._scene.now()
        for name_server, server in servers.name_servers_looked_into():
            for broker in servers.brokers:
                # A restarted NameServer has no entries at first, so each process has its own key.
                assert name_server.host.process is not None
                key = name_server.host.process.name, broker.name
                address = f"{broker.host.address}:{BROKER_PORT}"
                is_known = address in server.table.broker_addresses(broker_name(broker.name)).values()
                # During a start or an end, both are correct.
                is_right = name_server.is_ending or broker.is_ending or is_known == broker.is_alive
                since = self._wrong_since.setdefault(key, now)
                if is_right:
                    del self._wrong_since[key]
                elif now > since + (_GONE_S if is_known else PERIODS_S) + _LOOK_S:
                    state = "still has" if is_known else "lacks"
                    self.problems.append(f"at {now:.0f} s {key[0]} {state} {key[1]}, for {now - since:.0f} s")
                    self._wrong_since[key] = inf

    # -- end of the run -----------------------------------------------------------------------------------------

    async def end_all(self, clients: list[Program]) -> None:
        """Stops clients, then servers, with SIGTERM.

        Reports programs that do not end or that leave something behind.
        """
        servers = self._scene.servers
        self.problems += self.dead_jobs()
        for program, broker in servers.looked_into():
            self._look_at_failures(program, broker.jobs)
        for program, server in servers.name_servers_looked_into():
            self._look_at_failures(program, server.jobs)
        await self._end(clients)
        # Servers need this time to notice the closed connections.
        await asyncio.sleep(_HEARD_S)
        if self._scene.plan.mode:
            self.problems += await compare(servers, self._scene.lied_until, self._scene.deleted | self._scene.undeleted)
        elif self._are_deaths_seen:
            for program, broker in servers.looked_into():
                self.problems += [
                    f"{program.name} has {count} {what}, and no client is there"
                    for what, count in _held(broker).items()
                    if count
                ]
        self._scene.copies = copies_of(servers)
        await self._end(servers.brokers)
        await self._end(servers.name_servers)
        for program in servers.all:
            count = self._scene.world.disks[program.host.address].open_count
            if count and program.failure is None and not program.is_alive:
                self.problems.append(f"{program.name} has ended with {count} descriptors open")

    def _look_at_failures(self, program: Program, jobs: Iterable[JobReport]) -> None:
        for report in jobs:
            if report.failing_since is not None:
                self.problems.append(f"{program.name}: the job {report.name!r} fails: {report.last_error!r}")

    async def _end(self, programs: list[Program]) -> None:
        for program in programs:
            if program.ending is not None:
                program.ending.set()
        deadline = self._scene.now() + _END_S
        while any(program.is_alive for program in programs) and self._scene.now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        self.problems += [f"{program.name} doesn't end" for program in programs if program.is_alive]


def _held(broker: Broker) -> dict[str, int]:
    """Returns the amounts of state that a broker has for connected clients."""
    server = broker._server
    answers = server.response_tasks.all
    return {
        "long polls": len(broker.polling),
        "connections": len(server.connections),
        "requests that wait for an answer": answers.items,
        "bytes of answers": answers.size,
    }
