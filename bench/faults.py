"""Faults: real processes with random faults, clients of every kind, and one check of what they saw; see README.md.

The cluster of bench/failover.py and the groups of bench/soak.py run together: three brokers with controllers, a
NameServer, a proxy and the clients. Faults hit processes, links, files, clocks and clients until the time is over.
`--seed` repeats the order of the faults, but not their exact times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkouts import checkout, import_path_of
from failover import Round, Run, table, without_effect
from failover_faults import CLIENTS, FAULTS, OF_CLOCKS, OF_DISKS, OF_ETCD, OF_FSYNC, UPGRADED
from failover_load import QUEUES
from failover_servers import BROKERS, Servers
from failover_tools import Tools, can_mount, has_libfiu
from result_files import conditions, put_run, read_result
from soak import GROUPS, Client, Received, RecordFile, Sent, send_first
from soak_clients import TOPIC

from gantrymq.errors import GantryError
from gantrymq.kernels import native

#: Longest time until a group has received everything after the last fault, in seconds. Locks, pops and routes expire
#: earlier.
CATCH_UP_S = 180.0
#: Timeout of `gantry store verify`, in seconds.
VERIFY_S = 600.0
#: Share of `--rate` that the producers with batches send, and the messages of one batch.
BATCHED_SHARE, BATCH = 0.5, 4
FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")
#: The faults that occur at random.
AT_RANDOM = [name for name in FAULTS if name != UPGRADED]
#: Further configuration of the brokers.
PROPERTIES = {
    # Small, so that brokers create files while they must not grow.
    "mappedFileSizeCommitLog": str(1 << 20),
    # On a full disk, brokers must not delete messages, and must meet ENOSPC.
    "cleanFileForciblyEnable": "false",
    "diskSpaceWarningLevelRatio": "100",
}


class FaultServers(Servers):
    """The servers, with a proxy, and the clients of a soak, which faults hit as well."""

    def __init__(self, directory: Path, kind: str, load: Sequence[str], tools: Tools, earlier: Path | None) -> None:
        super().__init__(directory, kind, PROPERTIES, proxy=True, tools=tools)
        self._load = load
        self._earlier = earlier
        #: The servers that still run from the checkout `earlier`, in the order of their upgrade.
        self._outdated = [] if earlier is None else list(self._hosts)
        self.clients: dict[str, Client] = {}

    @property
    def outdated(self) -> int:
        """Number of servers that are not upgraded yet."""
        return len(self._outdated)

    def upgrade_next(self, master: str) -> str:
        """Returns a server. Its next start uses the present code. The master is the last of the brokers."""
        next_two = self._outdated[:2]
        name = next_two[-1] if next_two[0] == master and next_two[-1] in BROKERS else next_two[0]
        self._outdated.remove(name)
        return name

    def variables(self, name: str) -> dict[str, str]:
        variables = super().variables(name)
        if self._earlier is not None and name in self._outdated:
            variables["PYTHONPATH"] = import_path_of(self._earlier)
        return variables

    def __exit__(self, *exc: object) -> None:
        for client in self.clients.values():
            client.kill()
        for process in self.processes.values():
            # After Ctrl-C, a server can still be stopped by its fault.
            if process.is_running:
                os.kill(process.pid, signal.SIGCONT)
        super().__exit__(*exc)

    def start(self, name: str) -> None:
        if name not in CLIENTS:
            super().start(name)
            return
        # One of the groups uses the proxy.
        names = self.address("proxy") if name == "concurrent" else self.names
        options = self._load if name == "load" else ()
        self.clients[name] = Client(name, names, self.directory, "--at-once", *options)

    def kill(self, name: str) -> None:
        if name in CLIENTS:
            self.clients[name].kill()
        else:
            super().kill(name)

    def is_running(self, name: str) -> bool:
        return self.clients[name].is_running if name in CLIENTS else super().is_running(name)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        if name in CLIENTS:
            self.clients[name].send_signal(number)
        else:
            super().send_signal(name, number)


class FaultRun(Run):
    """Rounds with faults of every kind, and the histories of the soak's groups."""

    def __init__(self, servers: FaultServers, rate: float, seed: int, faults: Sequence[str]) -> None:
        super().__init__(servers, rate, random.Random(seed), faults)
        self._seed = seed
        self._cluster = servers
        self._records = {kind: RecordFile(servers.directory / f"{kind}.records") for kind in CLIENTS}
        self.sent = Sent()
        self.received = {kind: Received() for kind in GROUPS}

    def report(self, text: str) -> None:
        print(f"seed {self._seed}: {text}", file=sys.stderr, flush=True)

    async def __aenter__(self) -> FaultRun:
        await super().__aenter__()
        try:
            await self._admin.ensure_topic(TOPIC, queues=QUEUES)
            await send_first(self._cluster.names)
            for client in CLIENTS:
                await asyncio.to_thread(self._cluster.start, client)
        except BaseException:
            await super().__aexit__()
            raise
        return self

    def _look(self) -> None:
        super()._look()
        for kind, received in self.received.items():
            received.take(self._records[kind].new())
        # Read after the groups, so that a group is ahead of the sends by a moment at most.
        self.sent.take(self._records["load"].new())

    async def _victim(self, role: str, number: int) -> str:
        if role != "outdated":
            return await super()._victim(role, number)
        return self._cluster.upgrade_next(await self.until(self.master, "there is a master"))

    async def finish(self) -> list[str]:
        """Ends the load, waits for the groups, and checks all histories and the stores. Returns the problems."""
        await asyncio.to_thread(self._cluster.clients["load"].stop)
        until = time.monotonic() + CATCH_UP_S
        await self.pause(1.0)
        while time.monotonic() < until and any(one.missing(self.sent) for one in self.received.values()):
            await self.pause(1.0)
        problems = judge_groups(self.sent, self.received)
        for kind in GROUPS:
            await asyncio.to_thread(self._cluster.clients[kind].stop)
        problems += await super().finish()
        for name in BROKERS:
            problems += await asyncio.to_thread(verify, self._cluster.directory / name)
        return problems

    def figures(self) -> dict[str, int]:
        """Returns the numbers of messages in the histories. Repeated ones are no violation."""
        counts = {"sent one by one": len(self.acknowledged), "sent in batches": self.sent.total}
        for word, kept in self._kept.items():
            counts[word] = len(kept)
        for kind, one in self.received.items():
            counts[f"received by {kind}"], counts[f"received by {kind} again"] = one.total, one.again
        return counts


def judge_groups(sent: Sent, received: dict[str, Received]) -> list[str]:
    """Returns the acknowledged messages that a group never received, unordered ones, and those that nobody sent."""
    problems = []
    for kind, one in received.items():
        if missing := one.missing(sent):
            problems.append(f"lost: {kind} never received {missing:,} messages")
        if one.gaps and kind == "orderly":
            problems.append(f"out of order: {kind} skipped messages {len(one.gaps)} times, first {one.gaps[0]}")
        # A message that was in flight at the end has no acknowledgement.
        invented = [f"key {key}: {number}" for key, number in one.highest.items() if number > sent.counts[key]]
        if invented:
            problems.append(f"invented: {kind} received messages that nobody sent, {invented[0]}")
    return problems


def verify(store: Path) -> list[str]:
    """Returns the faults that `gantry store verify` finds."""
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli", "store", "verify", store],
        capture_output=True,
        text=True,
        timeout=VERIFY_S,
    )
    return [f"gantry store verify {store.name}: {done.stdout}{done.stderr}"] if done.returncode else []


async def run_for(run: FaultRun, servers: FaultServers, minutes: float) -> list[str]:
    """Runs rounds for this time, at least one, and upgrades the servers at even intervals. Returns the problems."""
    async with run:
        began, upgrades = time.monotonic(), servers.outdated
        while True:
            await run.one_round()
            elapsed = (time.monotonic() - began) / (60 * minutes)
            while servers.outdated > max(0, 1 - elapsed) * upgrades:
                await run.one_round(UPGRADED)
            if elapsed >= 1:
                return await run.finish()


def find_tools(faults: Sequence[str], faketime: Path | None) -> Tools:
    """Returns the tools of this machine that these faults need."""
    faketime = faketime or next((path for path in map(Path, FAKETIME) if path.exists()), None)
    wanted = set(faults)
    return Tools(
        faketime=None if wanted.isdisjoint(OF_CLOCKS) else faketime,
        libfiu=not wanted.isdisjoint(OF_FSYNC) and has_libfiu(),
        small_disks=not wanted.isdisjoint(OF_DISKS) and can_mount(),
    )


def available(faults: Sequence[str], controller: str, tools: Tools) -> tuple[list[str], list[str]]:
    """Returns the faults that this machine can have, and those that are left out. Prints a line for the latter."""
    needs = (
        ("etcd", controller == "etcd", OF_ETCD),
        ("libfaketime", tools.faketime is not None, OF_CLOCKS),
        ("root and mkfs.ext4", tools.small_disks, OF_DISKS),
        ("libfiu and fiu-ctrl", tools.libfiu, OF_FSYNC),
    )
    left_out: list[str] = []
    for what, exists, some in needs:
        if not exists and (skipped := [name for name in faults if name in some]):
            left_out += skipped
            print(f"without {what}, skipped: {', '.join(skipped)}", file=sys.stderr)
    return [name for name in faults if name not in left_out], left_out


def result_tables(
    rounds: Sequence[Round],
    messages: dict[str, int],
    problems: Sequence[str],
    left_out: Sequence[str],
    *,
    upgrades: bool,
) -> dict[str, Any]:
    """Returns the columns and rows of each table of the result file, by its name.

    A run with upgrades has only the results of the checks: times without service are also those of the earlier version.
    """
    sent = messages["sent one by one"] + messages["sent in batches"]
    checks: list[list[Any]] = [["faults", len(rounds)], ["messages sent", sent], ["violations", len(problems)]]
    checks.append(["faults without an effect", ", ".join(without_effect(rounds)) or "none"])
    checks.append(["faults that this machine cannot have", ", ".join(left_out) or "none"])
    if upgrades:
        return {"checks during upgrades": {"columns": ["what", "figure"], "rows": checks}}
    times: list[list[Any]] = []
    for fault in dict.fromkeys(one.fault for one in rounds):
        some = [one for one in rounds if one.fault == fault]
        unserved = [max(one.unserved_s[kind] for one in some) for kind in ("push", "pop", "lite")]
        times.append([fault, len(some), *(round(each, 1) for each in (max(one.silent_s for one in some), *unserved))])
    effects = [[one.fault, one.effect, one.recovery] for one in rounds if one.effect]
    clients = ["producers, s", "push consumers, s", "POP consumers, s", "lite pull consumers, s"]
    return {
        "checks": {"columns": ["what", "figure"], "rows": checks},
        "effects": {"columns": ["fault", "during the fault", "after it"], "rows": effects},
        "time without service": {"columns": ["fault", "rounds", *clients], "rows": times},
        "messages": {"columns": ["messages", "number"], "rows": [[name, count] for name, count in messages.items()]},
    }


def parser_of_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev faults", description=__doc__.partition(":")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long there are faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the faults (a random one)")
    parser.add_argument("--rate", type=float, default=500.0, help="messages per second (%(default)s)")
    parser.add_argument("--faults", choices=AT_RANDOM, nargs="+", default=AT_RANDOM, help="which (all)")
    parser.add_argument("--upgrade-from", metavar="COMMIT", help="start servers of this commit, and upgrade each")
    parser.add_argument(
        "--controller",
        choices=("sqlite", "etcd"),
        default="etcd" if shutil.which("etcd") else "sqlite",
        help="one controller, or three with etcd (etcd where it is installed)",
    )
    parser.add_argument("--faketime", type=Path, help="libfaketime.so.1, for wrong clocks (looked for)")
    parser.add_argument("--json", type=Path, help="a file for all figures of each round")
    parser.add_argument("--out", type=Path, help="a result file, such as bench/results/faults.json")
    parser.add_argument("--dir", type=Path, help="a new directory for files and logs, which stay")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser_of_options().parse_args(arguments)
    tools = find_tools(args.faults, args.faketime)
    faults, left_out = available(args.faults, args.controller, tools)
    if not faults:
        print("this machine can have none of these faults", file=sys.stderr)
        return 2
    if args.out is not None:
        try:
            read_result(args.out)
        except ValueError as e:
            print(f"--out: {e}", file=sys.stderr)
            return 2
    try:
        earlier = None if args.upgrade_from is None else checkout(args.upgrade_from)
    except RuntimeError as e:
        print(f"--upgrade-from: {e}", file=sys.stderr)
        return 2
    if args.dir is None:
        directory = Path(tempfile.mkdtemp(prefix="gantrymq-faults-"))
    else:
        directory = args.dir
        directory.mkdir(parents=True)
    batched = BATCHED_SHARE * args.rate
    # The load runs longer than the faults. `FaultRun.finish` ends it.
    load = (f"--rate={batched}", f"--batch={BATCH}", f"--minutes={2 * args.minutes + 60}")
    before = conditions()
    failed = True
    try:
        with FaultServers(directory, args.controller, load, tools, earlier) as servers:
            run = FaultRun(servers, args.rate - batched, args.seed, faults)
            run.report(f"{args.minutes:g} minutes, {len(faults)} kinds of faults, files in {directory}")
            try:
                problems = asyncio.run(run_for(run, servers, args.minutes))
            except (RuntimeError, GantryError, subprocess.TimeoutExpired) as e:
                problems = [f"the run ended early: {e}"]
        failed = bool(problems)
    except KeyboardInterrupt:
        failed = False
        print(f"seed {args.seed}: interrupted", file=sys.stderr)
        return 130
    finally:
        if args.dir is None and not failed:
            shutil.rmtree(directory, ignore_errors=True)
    print(table({args.controller: run.rounds}))
    figures = run.figures()
    print("\n".join(["", "| messages | number |", "|---|---|", *(f"| {k} | {v:,} |" for k, v in figures.items())]))
    if args.json is not None:
        result = {"seed": args.seed, "minutes": args.minutes, "controller": args.controller, "messages": figures}
        result |= {"upgrade from": earlier and earlier.name, "left out": left_out}
        result |= {"rounds": [asdict(one) for one in run.rounds], "problems": problems}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.out is not None:
        options = f"--minutes {args.minutes:g} --seed {args.seed} --controller {args.controller} --rate {args.rate:g}"
        if earlier is not None:
            options += f" --upgrade-from {earlier.name}"
        if args.faults != AT_RANDOM:
            options += " --faults " + " ".join(f'"{name}"' for name in args.faults)
        run_of = before | {"program": "./dev faults", "options": options, "native": native is not None}
        tables = result_tables(run.rounds, figures, problems, left_out, upgrades=earlier is not None)
        for name, columns_and_rows in tables.items():
            put_run(args.out, run_of | {"name": name, "rounds": len(run.rounds)} | columns_and_rows)
    for name in without_effect(run.rounds):
        print(f"seed {args.seed}: without an effect: {name}", file=sys.stderr)
    for problem in problems:
        print(f"seed {args.seed}: {problem}", file=sys.stderr)
    print("failed, see " + str(directory) if problems else "nothing lost, nothing out of order, none invented")
    return 1 if problems else 0


if __name__ == "__main__":
    # Like Ctrl-C. Otherwise a server that its fault has stopped would stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
