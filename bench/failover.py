"""Failover: faults of three brokers, their controllers and their links, round after round under load; see README.md.

A message is acknowledged when at least two brokers, and all in-sync brokers, have it. For each fault, the benchmark
measures the longest time without service for a producer and for each kind of consumer. It also counts the
transactions and delayed messages that were stored again.

failover_check.py checks the clients' records: no message is lost, out of order or unknown, there are never two
masters, and all brokers have the same log at the end. If a check fails, the exit status is 1. `--seed` repeats the
faults of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from failover_check import Stored, again, judge
from failover_effects import EFFECT_S, EVIDENCE, NO_EFFECT, Victim
from failover_faults import CLIENTS, FAULTS, OF_ETCD, OF_FAULT_RUNS, Hit, slaves
from failover_load import PRODUCERS, QUEUES, TOPIC, Acknowledged, History
from failover_reading import Events, log_of, messages_of, read_all
from failover_servers import BROKERS, CONTROLLERS, HEARTBEAT_TIMEOUT_MS, NAME, Servers
from failover_workloads import CONSUMERS, DELAYS, TRANSACTIONS, is_rolled_back

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ReplicasInfo
from gantrymq.replication.epochs import Epochs

T = TypeVar("T")

LOAD = Path(__file__).with_name("failover_load.py")
WORKLOADS = Path(__file__).with_name("failover_workloads.py")
#: Shortest and longest time between full synchronisation and the next fault, in seconds.
STEADY_S = (0.5, 2.0)
#: Timeout for sends to continue, and for all brokers to be in sync again, in seconds. Otherwise the run ends.
PATIENCE_S = 60.0
#: Interval of the checks, in seconds.
LOOK_S = 0.05
#: Faults of a run without `--faults`.
MASTER_FAULTS = ("killed", "stopped", "cut off")
#: The faults of servers that run here. bench/faults.py has the others, too.
HERE = tuple(name for name in FAULTS if name not in OF_FAULT_RUNS)
#: Guaranteed recovery times with our controller, in seconds.
MEDIAN_S, WORST_S = 5.0, 10.0

_TITLES = {"sqlite": "ours", "etcd": "ours, etcd", "java": "Apache's"}

_CUT = re.compile(r"(\d+) bytes behind \d+ are cut off")


@dataclass
class Round:
    """One fault. Times are in seconds."""

    fault: str
    whom: str
    #: Longest time for which a producer got no acknowledgement.
    silent_s: float
    #: Time from the end of the fault until all brokers were in sync.
    in_sync_s: float
    #: For each kind of consumer, the longest time in which it received nothing.
    unserved_s: dict[str, float]
    #: Begin of the fault, in milliseconds since 1970.
    began_ms: int
    #: Number of messages that brokers stored again in this round.
    transactions_again: int = 0
    delays_again: int = 0
    #: What the broker reported during the fault and after it; NO_EFFECT without a report. Empty for other faults.
    effect: str = ""
    recovery: str = ""


class Run:
    """Rounds with running `servers`; an asynchronous context manager."""

    def __init__(
        self, servers: Servers, rate: float, chance: random.Random, faults: Sequence[str] = MASTER_FAULTS
    ) -> None:
        self._servers = servers
        self._rate = rate
        self._chance = chance
        self._faults = faults
        #: Faults that are left before any of them is repeated.
        self._next_faults: list[str] = []
        self._stack = AsyncExitStack()
        self._history = History(servers.directory / "acknowledged")
        self.acknowledged: list[Acknowledged] = []
        #: For each producer: time of its last acknowledgement, and longest time without one since the fault.
        self._last = [0.0] * PRODUCERS
        self._silent = [0.0] * PRODUCERS
        self._admin: AdminClient
        self._load: subprocess.Popen[bytes]
        #: The same for consumers, by kind.
        self._received = dict.fromkeys(CONSUMERS, 0.0)
        self._unserved = dict.fromkeys(CONSUMERS, 0.0)
        #: Numbers of the committed transactions, and of the acknowledged delayed messages.
        self._kept: dict[str, set[int]] = {"transactions": set(), "delays": set()}
        #: Members of etcd, in the order in which faults hit them.
        self._members = ["etcd0", "etcd1", "etcd2"]
        self._events = Events(servers.directory / "events")
        self._workloads: subprocess.Popen[bytes]
        self.rounds: list[Round] = []
        self.stored: list[Stored] = []

    def report(self, text: str) -> None:
        """Prints a line of progress."""
        print(text, flush=True)

    async def __aenter__(self) -> Run:
        """Waits until all brokers are in sync and every producer sends."""
        async with self._stack:
            self._admin = await self._stack.enter_async_context(AdminClient(self._servers.names))
            await self.until(self.are_all_in_sync, "all brokers are in sync")
            await self.until(self._has_topics, "the topics are there")
            self._load = await asyncio.to_thread(self._start_load)
            self._stack.push_async_callback(asyncio.to_thread, self._load.communicate)
            await self.sends_go_on("at the beginning")
            self._workloads = await asyncio.to_thread(self._start_workloads)
            self._stack.push_async_callback(asyncio.to_thread, self._workloads.communicate)
            await self.until(self._are_all_received, "all consumers receive")
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def finish(self) -> list[str]:
        """Ends the load, reads all messages and stops the brokers. Returns the problems."""
        await self.pause(STEADY_S[1])
        await asyncio.to_thread(self._load.communicate)
        await asyncio.to_thread(self._workloads.communicate)
        self._look()
        await self.until(self.are_all_in_sync, "all brokers are in sync")
        self.stored = await read_all(self._servers.names)
        problems = await self._judge_workloads()
        await asyncio.to_thread(self._servers.stop_brokers)
        return problems + self._judge()

    def _start_load(self) -> subprocess.Popen[bytes]:
        return self._start(LOAD, "acknowledged", f"--rate={self._rate}")

    def _start_workloads(self) -> subprocess.Popen[bytes]:
        return self._start(WORKLOADS, "events")

    def _start(self, program: Path, records: str, *options: str) -> subprocess.Popen[bytes]:
        servers = self._servers
        with (servers.directory / f"{program.stem}.log").open("wb") as log:
            command = [sys.executable, str(program), servers.names, str(servers.directory / records), *options]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log, start_new_session=True)

    # -- rounds -------------------------------------------------------------------------------------------------

    async def one_round(self, name: str | None = None) -> None:
        """Runs this fault, or a random one."""
        for process in (self._load, self._workloads):
            if process.poll() is not None:
                raise RuntimeError(f"a load has ended with status {process.returncode}; see its log")
        await self.pause(self._chance.uniform(*STEADY_S))
        if name is None:
            self._next_faults = self._next_faults or self._chance.sample(self._faults, len(self._faults))
            name = self._next_faults.pop()
        fault = FAULTS[name]
        away_s = self._chance.uniform(*fault.away_s)
        hit = Hit(fault, tuple([await self._victim(role, n) for n, role in enumerate(fault.whom)]))
        what = f"{hit.label}: {name}"
        self._silent = [0.0] * PRODUCERS
        self._unserved = dict.fromkeys(CONSUMERS, 0.0)
        began_ms = time.time_ns() // 1_000_000
        if fault.begin is None:
            await self._hand_over()
        else:
            await asyncio.to_thread(fault.begin, self._servers, hit.names, self._chance)
        if fault.returns_first:
            await self.pause(away_s)
            returns = hit.names[fault.whom.index(fault.returns_first)]
            await asyncio.to_thread(self._servers.start, returns)
        if hit.former_master is not None:
            await self.sends_go_on(f"after {what}", elsewhere_than=hit.former_master)
        await self.pause(away_s)
        effect = await self._effect(name, hit, began_ms)
        if fault.end is not None:
            await asyncio.to_thread(fault.end, self._servers, hit.names)
        back = time.monotonic()
        await self.until(self.are_all_in_sync, f"all are in sync after {what}")
        in_sync_s = time.monotonic() - back
        recovery = await self._recovery(name, hit, back)
        await self.sends_go_on(f"after {what}, and its end")
        received = dict(self._received)
        await self.until(lambda: self._are_all_received(received), f"all consumers receive after {what}")
        unserved = dict(self._unserved)
        self.rounds.append(
            Round(
                name, hit.label, max(self._silent), in_sync_s, unserved, began_ms, effect=effect, recovery=recovery
            )
        )  # fmt: skip
        told = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in unserved.items())
        self.report(
            f"{len(self.rounds):3}: {what:40} without service, s: producers {max(self._silent):.2f}, {told}; all in "
            f"sync after {in_sync_s:.2f} s; {len(self.acknowledged):,} acknowledged"
            + (f"; effect: {effect}; then: {recovery}" if effect else "")
        )

    async def _effect(self, name: str, hit: Hit, began_ms: int) -> str:
        """Returns what the broker reports about the fault; empty if nothing is checked. Waits for EFFECT_S at most."""
        if name not in EVIDENCE:
            return ""
        began, server = time.monotonic(), hit.names[0]
        while time.monotonic() < began + EFFECT_S:
            if not self._servers.is_running(server):
                return "the broker has ended"
            of = self._servers.record_of(server)
            acknowledged = [each for each in self.acknowledged[-1000:] if each.began > began and each.broker == of]
            victim = Victim(self._servers.address(server), began_ms, acknowledged)
            if effect := await EVIDENCE[name].effect(self._admin, victim):
                return effect
            if hit.fault.whom == ("slave",) and server not in await self._in_sync():
                # A slave that cannot write its log reports no job: it disconnects from its master.
                return "the slave has left the sync-state set"
            await self.pause(10 * LOOK_S)
        return NO_EFFECT

    async def _recovery(self, name: str, hit: Hit, ended: float) -> str:
        """Returns what the broker reports after the fault; empty if nothing is checked. Raises RuntimeError without."""
        if name not in EVIDENCE:
            return ""
        server = hit.names[0]

        async def recovery() -> str:
            # Of any broker: another one can be master after the fault.
            acknowledged = [each for each in self.acknowledged[-1000:] if each.began > ended]
            return await EVIDENCE[name].recovery(self._admin, Victim(self._servers.address(server), 0, acknowledged))

        return await self.until(recovery, f"{server} recovers from {name}")

    async def _victim(self, role: str, number: int) -> str:
        if role == "etcd":
            if number == 0:
                self._chance.shuffle(self._members)
            return self._members[number]
        if role in ("namesrv", "proxy", *CLIENTS):
            return role
        if role == "controller":
            return await self.until(self.leader, "a controller leads")
        master = await self.until(self.master, "there is a master")
        return master if role == "master" else self._chance.choice(slaves(master))

    async def _hand_over(self) -> None:
        """Elects another in-sync broker as master."""
        known = await self.until(self._known, "a controller knows the brokers")
        others = [each.broker_id for each in known.in_sync_replicas if each.broker_id != known.master_broker_id]
        controller = self._servers.address(await self.until(self.leader, "a controller leads"))
        await self._admin.elect_master(controller, "DefaultCluster", NAME, self._chance.choice(others))

    # -- waiting ------------------------------------------------------------------------------------------------

    async def sends_go_on(self, when: str, *, elsewhere_than: str | None = None) -> None:
        """Waits until every producer got a new acknowledgement, from another broker than `elsewhere_than`."""
        at, began = len(self.acknowledged), time.monotonic()
        former = None if elsewhere_than is None else self._servers.record_of(elsewhere_than)
        producers: set[int] = set()

        async def go_on() -> bool:
            nonlocal at
            self._look()
            new, at = self.acknowledged[at:], len(self.acknowledged)
            producers.update(each.key % PRODUCERS for each in new if each.broker != former and each.ended > began)
            return len(producers) == PRODUCERS

        await self.until(go_on, f"sends go on {when}")

    async def until(self, condition: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Returns the first true result of `condition`. Raises RuntimeError after `PATIENCE_S`."""
        ends = time.monotonic() + PATIENCE_S
        while not (answer := await condition()):
            if time.monotonic() > ends:
                raise RuntimeError(f"not in {PATIENCE_S:.0f} s: {what}")
            await self.pause(LOOK_S)
        return answer

    async def pause(self, seconds: float) -> None:
        """Sleeps, and continues to read the records."""
        ends = time.monotonic() + seconds
        while (left_s := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(LOOK_S, left_s))
            self._look()

    def _look(self) -> None:
        new = self._history.new()
        self.acknowledged += new
        for each in new:
            producer = each.key % PRODUCERS
            last = self._last[producer] or each.ended
            self._silent[producer] = max(self._silent[producer], each.ended - last)
            self._last[producer] = max(last, each.ended)
        for word, number, at in self._events.new():
            if word in self._kept:
                self._kept[word].add(number)
            else:
                last = self._received[word] or at
                self._unserved[word] = max(self._unserved[word], at - last)
                self._received[word] = at

    async def _are_all_received(self, former: dict[str, float] | None = None) -> bool:
        """Returns true if each kind of consumer has received something, after `former` if given."""
        self._look()
        return all(at > (former[kind] if former else 0.0) for kind, at in self._received.items())

    async def _has_topics(self) -> bool:
        try:
            for topic in (TOPIC, TRANSACTIONS, DELAYS):
                await self._admin.ensure_topic(topic, queues=QUEUES)
        except GantryError:
            # A new master accepts no messages until its slaves are connected.
            return False
        return True

    async def leader(self) -> str | None:
        """Returns the name of the leading controller."""
        for controller in self._servers.controllers:
            with suppress(GantryError):
                if (await self._admin.controller_metadata(self._servers.address(controller))).is_leader:
                    return controller
        return None

    async def master(self) -> str | None:
        """Returns the name of the master according to the controllers."""
        known = await self._known()
        return self._servers.broker_at(known.master_address) if known is not None else None

    async def are_all_in_sync(self) -> bool:
        known = await self._known()
        return known is not None and known.master_address is not None and self._names_of(known) == set(BROKERS)

    async def _in_sync(self) -> Collection[str | None]:
        """Returns the brokers of the sync-state set; all if no controller answers."""
        known = await self._known()
        return BROKERS if known is None else self._names_of(known)

    def _names_of(self, known: ReplicasInfo) -> set[str | None]:
        return {self._servers.broker_at(replica.broker_address) for replica in known.in_sync_replicas}

    async def _known(self) -> ReplicasInfo | None:
        """Returns the brokers' state according to the controllers."""
        for controller in self._servers.controllers:
            try:
                return (await self._admin.sync_state_sets(self._servers.address(controller), [NAME])).get(NAME)
            except GantryError:
                # The controller is down, or has no leader yet.
                continue
        return None

    # -- end of the run -----------------------------------------------------------------------------------------

    async def _judge_workloads(self) -> list[str]:
        """Counts the transactions and delayed messages that were stored again. Returns the missing ones as problems."""
        problems: list[str] = []
        for word, topic in (("transactions", TRANSACTIONS), ("delays", DELAYS)):
            kept = self._kept[word]
            places: dict[int, list[int]] = {}

            async def has_all(topic: str = topic, kept: set[int] = kept, places: dict[int, list[int]] = places) -> bool:
                places.clear()
                for message in await messages_of(self._servers.names, topic):
                    places.setdefault(int(message.body), []).append(message.store_timestamp)
                return kept <= places.keys()

            try:
                await self.until(has_all, f"all {word} are delivered")
            except RuntimeError:
                missing = sorted(kept - places.keys())
                problems.append(f"lost: {len(missing)} of {len(kept)} {word}, for example {missing[:3]}")
            for times in places.values():
                for at_ms in sorted(times)[1:]:
                    self._count_again(word, at_ms)
            self.report(f"{len(kept):,} {word}, {sum(map(len, places.values())) - len(places)} of them stored again")
            if word == "transactions" and (undone := sorted(filter(is_rolled_back, places))):
                problems.append(f"invented: {len(undone)} transactions were rolled back, for example {undone[:3]}")
        for one in self.rounds:
            if FAULTS[one.fault].is_orderly and (one.transactions_again or one.delays_again):
                problems.append(
                    f"{one.fault} stored {one.transactions_again} transactions and {one.delays_again} delayed messages "
                    "again"
                )
        return problems

    def _count_again(self, word: str, at_ms: int) -> None:
        """Counts a repeated message for the round in which the later copy was stored."""
        of = next((one for one in reversed(self.rounds) if one.began_ms <= at_ms), None)
        if of is not None and word == "transactions":
            of.transactions_again += 1
        elif of is not None:
            of.delays_again += 1

    def _judge(self) -> list[str]:
        servers = self._servers
        last = max(each.physical_offset for each in self.stored)
        logs = {name: log_of(servers.directory / name, last) for name in BROKERS}
        epochs = Epochs.decode((servers.directory / BROKERS[0] / "epochFileCheckpoint").read_text())
        problems = judge(self.acknowledged, self.stored, list(epochs.all()))
        for name in BROKERS[1:]:
            if logs[name] != logs[BROKERS[0]]:
                problems.append(f"the logs of the brokers {BROKERS[0]} and {name} are not the same")
        problems += [f"broker {name}'s log has a traceback" for name in BROKERS if "Traceback" in servers.log(name)]
        cut = [int(count) for name in BROKERS for count in _CUT.findall(servers.log(name))]
        self.report(
            f"{len(self.acknowledged):,} acknowledged, {again(self.stored):,} stored more than once; former masters "
            f"cut {sum(cut):,} bytes off their logs in {len(cut)} of {len(self.rounds)} rounds"
        )
        return problems


async def run_rounds(run: Run, rounds: int) -> list[str]:
    """Runs the rounds. Returns the problems."""
    async with run:
        for _ in range(rounds):
            await run.one_round()
        return await run.finish()


def without_effect(rounds: Sequence[Round]) -> list[str]:
    """Returns the faults of which no round had an effect, although it was checked."""
    checked = [one for one in rounds if one.effect]
    with_effect = {one.fault for one in checked if one.effect != NO_EFFECT}
    return sorted({one.fault for one in checked} - with_effect)


def table(rounds: dict[str, list[Round]]) -> str:
    """Returns for each fault and controller the worst (and median) time without service, and the repeated messages."""
    lines = [
        "| fault | controller | rounds | producers, s | " + " | ".join(f"{kind}, s" for kind in CONSUMERS) + " "
        "| transactions again | delayed again |",
        "|" + "---|" * (6 + len(CONSUMERS)),
    ]
    for fault in FAULTS:
        for controller, its_rounds in rounds.items():
            some = [one for one in its_rounds if one.fault == fault]
            if some:
                columns = [[one.silent_s for one in some]]
                columns += [[one.unserved_s[kind] for one in some] for kind in CONSUMERS]
                cells = " | ".join(f"{max(column):.2f} ({statistics.median(column):.2f})" for column in columns)
                again_cells = f"{sum(o.transactions_again for o in some)} | {sum(o.delays_again for o in some)}"
                lines.append(f"| {fault} | {_TITLES[controller]} | {len(some)} | {cells} | {again_cells} |")
    return "\n".join(lines)


def run_with(controller: str, args: argparse.Namespace) -> tuple[list[Round], list[str]]:
    """Runs all rounds with one kind of controller. Returns them and the problems."""
    print(f"{_TITLES[controller]}:", flush=True)
    with ExitStack() as stack:
        directory = args.keep / controller if args.keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(exist_ok=True, parents=True)
        servers = stack.enter_context(Servers(directory, controller, other_version=args.other_version))
        faults = [fault for fault in args.faults if fault not in OF_ETCD or controller == "etcd"]
        run = Run(servers, args.rate, random.Random(args.seed), faults)
        problems = asyncio.run(run_rounds(run, args.rounds))
    silent = [one.silent_s for one in run.rounds if one.fault in MASTER_FAULTS]
    if controller != "java" and silent and (statistics.median(silent) > MEDIAN_S or max(silent) > WORST_S):
        problems.append(f"sends took longer to go on than {MEDIAN_S:g} s (median) or {WORST_S:g} s (worst)")
    return run.rounds, [f"{_TITLES[controller]}: {problem}" for problem in problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--rounds", type=int, default=50, help="with each controller (%(default)s)")
    parser.add_argument("--rate", type=float, default=5000.0, help="messages per second (%(default)s)")
    parser.add_argument(
        "--controller", choices=CONTROLLERS, nargs="+", default=["sqlite"], help="one after the other (sqlite)"
    )
    parser.add_argument(
        "--faults", choices=[*HERE, "all"], nargs="+", default=MASTER_FAULTS, help="which (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the faults (a random one)")
    parser.add_argument("--other-version", type=Path, help="src of another version, which one of the brokers runs")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--keep", type=Path, help="an empty directory for files and logs, which stay (a temporary one)")
    args = parser.parse_args()
    if "all" in args.faults:
        args.faults = list(HERE)
    print(f"seed {args.seed}; signs of life are missed for {HEARTBEAT_TIMEOUT_MS} ms", flush=True)
    rounds: dict[str, list[Round]] = {}
    problems: list[str] = []
    for controller in args.controller:
        rounds[controller], wrong = run_with(controller, args)
        problems += wrong
    print(table(rounds))
    if args.json is not None:
        all_rounds = [asdict(one) | {"controller": each} for each, some in rounds.items() for one in some]
        figures = {"seed": args.seed, "rounds": all_rounds, "problems": problems}
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    for problem in problems:
        print(problem, file=sys.stderr)
    print("failed" if problems else "nothing lost, nothing out of order, none invented, never two masters")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
