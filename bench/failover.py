"""Failover: the master of three brokers is killed, stopped or cut off under load, round after round; see README.md.

A message is acknowledged when two brokers at least, and all in sync, have it. Measured is how long a producer had
nothing acknowledged after each fault; checked from what the clients were told (failover_check.py), and that the logs of
all three brokers are the same in the end. Exit status 1 when something is wrong. `--seed` repeats the faults.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from failover_check import Stored, again, judge
from failover_load import PRODUCERS, QUEUES, TOPIC, Acknowledged, History
from failover_servers import BROKERS, CONTROLLERS, HEARTBEAT_TIMEOUT_MS, NAME, Servers

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ReplicasInfo
from gantrymq.replication.epochs import Epochs

T = TypeVar("T")

LOAD = Path(__file__).with_name("failover_load.py")
#: From the time when all are in sync to the next fault, s.
STEADY_S = (0.5, 2.0)
#: How long after sends go on the former master stays away, s.
AWAY_S = (0.0, 3.0)
#: Within this time sends go on, or all are in sync again, s; else the run ends there.
PATIENCE_S = 60.0
#: How often is looked.
LOOK_S = 0.05
#: What happens to the master. Else an administrator may name another, the controller that leads be killed, or one of
#: etcd's members.
MASTER_FAULTS = ("killed", "stopped", "cut off")
FAULTS = (*MASTER_FAULTS, "handed over", "controller killed", "member killed")
#: What is promised with our controller, s.
MEDIAN_S, WORST_S = 5.0, 10.0

_TITLES = {"sqlite": "ours", "etcd": "ours, etcd", "java": "Apache's"}

_CUT = re.compile(r"(\d+) bytes behind \d+ are cut off")


@dataclass
class Round:
    """One fault; times are seconds."""

    fault: str
    whom: str
    #: For so long some producer had nothing acknowledged, at the most.
    silent_s: float
    #: From the end of the fault until all were in sync.
    in_sync_s: float


class Run:
    """Of `servers` that run; an asynchronous context manager."""

    def __init__(
        self, servers: Servers, rate: float, chance: random.Random, faults: Sequence[str] = MASTER_FAULTS
    ) -> None:
        self._servers = servers
        self._rate = rate
        self._chance = chance
        self._faults = faults
        self._stack = AsyncExitStack()
        self._history = History(servers.directory / "acknowledged")
        self.acknowledged: list[Acknowledged] = []
        #: When each producer had its last acknowledgement, and the longest time without since the fault.
        self._last = [0.0] * PRODUCERS
        self._silent = [0.0] * PRODUCERS
        self._admin: AdminClient
        self._load: subprocess.Popen[bytes]
        self.rounds: list[Round] = []
        self.stored: list[Stored] = []

    async def __aenter__(self) -> Run:
        """All brokers are in sync, and every producer sends."""
        async with self._stack:
            self._admin = await self._stack.enter_async_context(AdminClient(self._servers.names))
            await self.until(self.are_all_in_sync, "all brokers are in sync")
            await self.until(self._has_topic, "the topic is there")
            self._load = await asyncio.to_thread(self._start_load)
            self._stack.push_async_callback(asyncio.to_thread, self._load.communicate)
            await self.sends_go_on("at the beginning")
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def finish(self) -> list[str]:
        """Ends the load, reads all, stops the brokers; what was wrong."""
        await self.pause(STEADY_S[1])
        await asyncio.to_thread(self._load.communicate)
        self._look()
        await self.until(self.are_all_in_sync, "all brokers are in sync")
        self.stored = await read_all(self._servers.names)
        await asyncio.to_thread(self._servers.stop_brokers)
        return self._judge()

    def _start_load(self) -> subprocess.Popen[bytes]:
        servers = self._servers
        with (servers.directory / "load.log").open("wb") as log:
            options = [servers.names, str(servers.directory / "acknowledged"), f"--rate={self._rate}"]
            command = [sys.executable, str(LOAD), *options]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)

    # -- rounds -------------------------------------------------------------------------------------------------

    async def one_round(self) -> None:
        if self._load.poll() is not None:
            raise RuntimeError(f"the load has ended with status {self._load.returncode}; see load.log")
        await self.pause(self._chance.uniform(*STEADY_S))
        fault, away_s = self._chance.choice(self._faults), self._chance.uniform(*AWAY_S)
        whom = await self._victim(fault)
        what = f"{whom} was {fault}"
        self._silent = [0.0] * PRODUCERS
        if fault == "handed over":
            await self._hand_over()
        else:
            await asyncio.to_thread(self._begin, fault, whom)
        if whom in BROKERS:
            await self.sends_go_on(f"after broker {what}", elsewhere_than=whom)
        await self.pause(away_s)
        if fault != "handed over":
            await asyncio.to_thread(self._end, fault, whom)
        back = time.monotonic()
        await self.until(self.are_all_in_sync, f"all are in sync after {what}")
        in_sync_s = time.monotonic() - back
        await self.sends_go_on(f"after {what}, and was back")
        self.rounds.append(Round(fault, whom, max(self._silent), in_sync_s))
        print(
            f"{len(self.rounds):3}: {whom} {fault:8} nothing acknowledged for {max(self._silent):5.2f} s; all in "
            f"sync after {in_sync_s:5.2f} s; {len(self.acknowledged):,} acknowledged",
            flush=True,
        )

    async def _victim(self, fault: str) -> str:
        if fault == "member killed":
            return f"etcd{self._chance.randrange(len(self._servers.etcd))}"
        if fault == "controller killed":
            return await self.until(self.leader, "a controller leads")
        return await self.until(self.master, "there is a master")

    async def _hand_over(self) -> None:
        """To another that is in sync."""
        known = await self.until(self._known, "a controller knows the brokers")
        others = [each.broker_id for each in known.in_sync_replicas if each.broker_id != known.master_broker_id]
        controller = self._servers.address(await self.until(self.leader, "a controller leads"))
        await self._admin.elect_master(controller, "DefaultCluster", NAME, self._chance.choice(others))

    def _begin(self, fault: str, whom: str) -> None:
        servers = self._servers
        if fault == "stopped":
            servers.send_signal(whom, signal.SIGSTOP)
        elif fault == "cut off":
            servers.links.cut(whom)
        elif fault == "member killed":
            servers.etcd[int(whom[-1])].kill()
        else:
            servers.kill(whom)

    def _end(self, fault: str, whom: str) -> None:
        servers = self._servers
        if fault == "stopped":
            servers.send_signal(whom, signal.SIGCONT)
        elif fault == "cut off":
            servers.links.heal(whom)
        elif fault == "member killed":
            servers.etcd[int(whom[-1])].start_again()
        else:
            servers.start(whom)

    # -- waiting ------------------------------------------------------------------------------------------------

    async def sends_go_on(self, when: str, *, elsewhere_than: str | None = None) -> None:
        """Every producer has something acknowledged that ended after now, by another broker than that."""
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
        """Its first true answer."""
        ends = time.monotonic() + PATIENCE_S
        while not (answer := await condition()):
            if time.monotonic() > ends:
                raise RuntimeError(f"not in {PATIENCE_S:.0f} s: {what}")
            await self.pause(LOOK_S)
        return answer

    async def pause(self, seconds: float) -> None:
        """Looks on meanwhile."""
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

    async def _has_topic(self) -> bool:
        try:
            await self._admin.ensure_topic(TOPIC, queues=QUEUES)
        except GantryError:
            # A new master takes nothing before its slaves have come.
            return False
        return True

    async def leader(self) -> str | None:
        """The name of the controller that leads."""
        for controller in self._servers.controllers:
            with suppress(GantryError):
                if (await self._admin.controller_metadata(self._servers.address(controller))).is_leader:
                    return controller
        return None

    async def master(self) -> str | None:
        """The name of the broker that the controllers take for the master."""
        known = await self._known()
        return self._servers.broker_at(known.master_address) if known is not None else None

    async def are_all_in_sync(self) -> bool:
        known = await self._known()
        if known is None:
            return False
        in_sync = {self._servers.broker_at(replica.broker_address) for replica in known.in_sync_replicas}
        return known.master_address is not None and in_sync == set(BROKERS)

    async def _known(self) -> ReplicasInfo | None:
        """What the controllers know of the brokers."""
        for controller in self._servers.controllers:
            try:
                return (await self._admin.sync_state_sets(self._servers.address(controller), [NAME])).get(NAME)
            except GantryError:
                # It doesn't run, or doesn't know yet who leads.
                continue
        return None

    # -- the end ------------------------------------------------------------------------------------------------

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
        print(
            f"{len(self.acknowledged):,} acknowledged, {again(self.stored):,} stored more than once; former masters "
            f"cut {sum(cut):,} bytes off their logs in {len(cut)} of {len(self.rounds)} rounds"
        )
        return problems


async def run_rounds(run: Run, rounds: int) -> list[str]:
    """What was wrong."""
    async with run:
        for _ in range(rounds):
            await run.one_round()
        return await run.finish()


async def read_all(names: str) -> list[Stored]:
    """All messages of the topic, each queue's in its order."""
    found: list[Stored] = []
    async with LitePullConsumer(names, "failover-check") as consumer:
        queues = await consumer.queues(TOPIC)
        await consumer.assign(queues)
        left = {}
        for queue in queues:
            await consumer.seek_to_begin(queue)
            left[queue.queue_id] = await consumer.end_offset(queue)
        while any(left.values()):
            for message in await consumer.poll(max_messages=1000):
                key, number, _ = message.body.split(b" ", 2)
                place = message.queue_id, message.queue_offset, message.commit_log_offset
                found.append(Stored(*place, int(key), int(number)))
                if message.queue_offset + 1 >= left[message.queue_id]:
                    left[message.queue_id] = 0
    return found


def log_of(store: Path, last: int) -> str:
    """A hash of its log up to the end of the record that begins at `last`.

    What comes behind it a master may have written for itself while its slaves ended.
    """
    log = b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))
    return hashlib.sha256(log[: last + int.from_bytes(log[last : last + 4], "big")]).hexdigest()


def table(rounds: dict[str, list[Round]]) -> str:
    """Median and worst of each fault, and of all, with each controller."""
    lines = [
        "| fault | controller | rounds | nothing acknowledged: median, s | worst | all in sync: median, s | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault in (*FAULTS, ""):
        for controller, its_rounds in rounds.items():
            some = [one for one in its_rounds if one.fault == fault or not fault]
            if some:
                silent, in_sync = [one.silent_s for one in some], [one.in_sync_s for one in some]
                figures = (statistics.median(silent), max(silent), statistics.median(in_sync), max(in_sync))
                cells = " | ".join(f"{figure:.2f}" for figure in figures)
                lines.append(f"| {fault or 'all'} | {_TITLES[controller]} | {len(some)} | {cells} |")
    return "\n".join(lines)


def run_with(controller: str, args: argparse.Namespace) -> tuple[list[Round], list[str]]:
    """All rounds with one kind of controller, and what was wrong."""
    print(f"{_TITLES[controller]}:", flush=True)
    with ExitStack() as stack:
        directory = args.keep / controller if args.keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(exist_ok=True, parents=True)
        servers = stack.enter_context(Servers(directory, controller, other_version=args.other_version))
        run = Run(servers, args.rate, random.Random(args.seed), args.faults)
        problems = asyncio.run(run_rounds(run, args.rounds))
    silent = [one.silent_s for one in run.rounds]
    if controller != "java" and (statistics.median(silent) > MEDIAN_S or max(silent) > WORST_S):
        problems.append(f"sends took longer to go on than {MEDIAN_S:g} s (median) or {WORST_S:g} s (worst)")
    return run.rounds, [f"{_TITLES[controller]}: {problem}" for problem in problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--rounds", type=int, default=50, help="with each controller (%(default)s)")
    parser.add_argument("--rate", type=float, default=5000.0, help="messages per second (%(default)s)")
    parser.add_argument(
        "--controller", choices=CONTROLLERS, nargs="+", default=["sqlite"], help="one after the other (sqlite)"
    )
    parser.add_argument("--faults", choices=FAULTS, nargs="+", default=MASTER_FAULTS, help="which (the master's)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the faults (a random one)")
    parser.add_argument("--other-version", type=Path, help="src of another version, which one of the brokers runs")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    parser.add_argument("--keep", type=Path, help="an empty directory for files and logs, which stay (a temporary one)")
    args = parser.parse_args()
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
