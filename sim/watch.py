"""Watch: looks into the servers while a run goes on, for what can't be seen at its end; and ends everything in order.

Some things are true at any time (a committed offset doesn't go back by itself), others only of how something changes (a
job that doesn't run any more is dead), or of what is left of a program when it has ended.
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
from sim.cluster import BROKER_PORT, REGISTER_MS, Program
from sim.compare import compare
from sim.copies import copies_of
from sim.machine import State
from sim.plan import broker_name
from sim.replica_watch import ReplicaWatch
from sim.scene import Scene

#: How often it looks, s.
_LOOK_S = 2.0
#: The loop goes round so often in that time at most: busy programs took some hundred times a message.
_MOST_TURNS = 100_000
#: A job whose interval is shorter runs in this time, s; so do these threads.
_JOBS_S = 20.0
_OFTEN_S = 5.0
_THREADS = ("flush the commit log", "flush the consume queues")
#: A server's connection tells a NameServer at once that it is gone; its other ways take two periods, s.
PERIODS_S = 2 * REGISTER_MS / 1000
_GONE_S = 5.0
#: Programs that are told to end have ended after, s.
_END_S = 60.0
#: And a server has heard of that, s.
_HEARD_S = 0.5
#: A pull may wait so much longer than it was to, s: its second, and the look for it.
_POLL_LATE_S = 5.0
#: After these a consumer may commit what it knew before others went on, here as in Java.
_STALE = ("stop", "cut", "slow", "reset", "lies", "rot-unread", "isolated", "torn", "ambush", "disaster")
#: After these the member that brokers know first takes all queues of its group, and the others go on with theirs until
#: they hear of it, here as in Java; an orderly group has locks against that.
_UNKNOWN = ("kill-all", "end-all", "disaster")
#: A machine that is gone tells nobody. Its clients find out one after the other, and the last one commits what it knew
#: when another has its queues already, here as in Java.
_UNTOLD = ("power", "power-at-sync", "wreck", "lying")
#: After these a NameServer can't know whether a broker lives.
_UNSEEN = ("cut", "slow", "stop", "power", "power-at-sync", "lies", "lying", "wreck", "torn")

_Place = tuple[str, str, int]

#: The names of jobs whose interval is short, whatever server they are of.
_often: set[str] = set(_THREADS)
#: Each job by its report's id: some are started only by a master, or only by a slave.
_jobs: dict[int, Repeating] = {}
_repeating = Jobs.repeating


def _noted(jobs: Jobs, name: str, work: Work, interval_s: float = inf, **options: float) -> Repeating:
    if interval_s <= _OFTEN_S:
        _often.add(name)
    job = _repeating(jobs, name, work, interval_s, **options)
    _jobs[id(job.report)] = job
    return job


# A report doesn't tell how often its job should run, nor whether it is started.
Jobs.repeating = _noted  # type: ignore[method-assign, assignment]


class Watch:
    """Of one run. `problems` is what it found."""

    def __init__(self, scene: Scene) -> None:
        self.problems: list[str] = []
        self._scene = scene
        self._replicas = ReplicaWatch(scene)
        kinds = {fault.kind for fault in scene.plan.faults}
        self._are_offsets_sure = not kinds & set(_STALE) and "comings" not in scene.plan.extras
        self._are_members_known = not kinds & set(_UNKNOWN)
        self._are_deaths_told = not kinds & set(_UNTOLD)
        # A controller's broker may be nobody for a while.
        self._are_deaths_seen = not kinds & set(_UNSEEN) and not scene.plan.controllers
        #: Of each life of a broker: what its groups have committed.
        self._offsets: dict[str, dict[_Place, int]] = {}
        #: How often each job of a life that has to run often had run, at several times.
        self._runs: dict[str, list[tuple[float, dict[str, int]]]] = {}
        #: Since when a NameServer has been wrong about a broker.
        self._wrong_since: dict[tuple[str, str], float] = {}

    async def main(self) -> None:
        """Until the run is over."""
        while True:
            turns = self._scene.world.loop.turns
            await asyncio.sleep(_LOOK_S)
            turns = self._scene.world.loop.turns - turns
            if turns > _MOST_TURNS:
                self.problems.append(f"at {self._scene.now():.0f} s somebody is busy: {turns} turns in {_LOOK_S:.0f} s")
            self._look_at_routes()
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
        """A pull that waits is answered at the end of its time, whether there is something or not."""
        late_s = self._scene.now() - min(broker.polling._by_second, default=inf)
        if late_s > _POLL_LATE_S:
            self.problems.append(f"at {self._scene.now():.0f} s {life} holds a pull {late_s:.0f} s beyond its time")

    # -- offsets ------------------------------------------------------------------------------------------------

    @staticmethod
    def _epoch(broker: Broker) -> str:
        """Of whom a controller may make a slave meanwhile: what it is."""
        roles = broker.controlled._roles if broker.controlled is not None else None
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
                # Work may say itself that it wants to rest for longer.
                rests = job is not None and _OFTEN_S < job._due - self._scene.now() < inf
                if job is None or (job._started and not rests):
                    runs[report.name] = runs.get(report.name, 0) + report.runs
        self._runs.setdefault(life, []).append((self._scene.now(), runs))

    def dead_jobs(self) -> Iterator[str]:
        """Those that have to run often and haven't at the end, of each life that has lasted until then."""
        for life, looks in self._runs.items():
            ended, last = looks[-1]
            before = next((runs for at, runs in reversed(looks) if at <= ended - _JOBS_S), None)
            if before is not None and ended > self._scene.now() - 2 * _LOOK_S:
                for name in sorted(last.keys() & before.keys()):
                    if last[name] == before[name]:
                        yield f"{life}: the job {name!r} has not run for {_JOBS_S:.0f} s"

    # -- routes -------------------------------------------------------------------------------------------------

    def _look_at_routes(self) -> None:
        """Within two periods a NameServer knows who is there and who isn't."""
        if not self._are_deaths_seen:
            return
        servers, now = self._scene.servers, self._scene.now()
        for name_server, server in servers.name_servers_looked_into():
            for broker in servers.brokers:
                # One that is started again begins with nothing.
                assert name_server.host.process is not None
                key = name_server.host.process.name, broker.name
                address = f"{broker.host.address}:{BROKER_PORT}"
                is_known = address in server.table.broker_addresses(broker_name(broker.name)).values()
                # As long as it takes to start or to end it may be either.
                is_right = name_server.is_ending or broker.is_ending or is_known == broker.is_alive
                since = self._wrong_since.setdefault(key, now)
                if is_right:
                    del self._wrong_since[key]
                elif now > since + (_GONE_S if is_known else PERIODS_S) + _LOOK_S:
                    state = "still has" if is_known else "lacks"
                    self.problems.append(f"at {now:.0f} s {key[0]} {state} {key[1]}, for {now - since:.0f} s")
                    self._wrong_since[key] = inf

    # -- the end ------------------------------------------------------------------------------------------------

    async def end_all(self, clients: list[Program]) -> None:
        """Ends clients, then servers, as told; whoever stays, or leaves something, is a problem."""
        servers = self._scene.servers
        self.problems += self.dead_jobs()
        for program, broker in servers.looked_into():
            self._look_at_failures(program, broker.jobs)
        for program, server in servers.name_servers_looked_into():
            self._look_at_failures(program, server.jobs)
        await self._end(clients)
        # The word of it is under way.
        await asyncio.sleep(_HEARD_S)
        if self._scene.plan.mode:
            self.problems += await compare(servers, self._scene.lied_until, self._scene.deleted)
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
    """What a broker keeps for clients that are connected."""
    server = broker._server
    answers = server._rooms_for_answers.all
    return {
        "long polls": len(broker.polling),
        "connections": len(server.connections),
        "requests that wait for an answer": answers.requests,
        "bytes of answers": answers.bytes,
    }
