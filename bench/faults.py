"""Faults: a soak whose servers and clients are killed, stopped and started again at random; see README.md.

Acknowledged messages must reach every group, the orderly group must never skip a message of a key, and the store
must be intact at the end. Otherwise, the exit status is 1. `--seed` repeats the order of the faults, but not their
exact times.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from soak import GROUPS, Client, Received, Sent, send_first

from gantrymq.testing.processes import HOST, START_TIMEOUT_S, ServerProcess

#: Shortest and longest time from the end of a fault to the next one, in seconds.
PAUSE_S = (1.0, 10.0)
#: Shortest and longest absence or stop of a process, in seconds.
AWAY_S = (0.0, 12.0)
#: Longest time until a group has received everything after the last fault, in seconds. Locks, pops and routes expire
#: earlier.
CATCH_UP_S = 180.0
#: Interval of the checks of received messages, in seconds.
LOOK_S = 0.5
#: Timeout of `gantry store verify`, in seconds.
VERIFY_S = 600.0


class Server:
    """A server that can be restarted at the same address with its files."""

    def __init__(self, command: str, directory: Path, properties: dict[str, str]) -> None:
        self._command = command
        self._directory = directory
        self._properties = properties | {"bindAddress": HOST, "listenPort": "0"}
        self.start()
        self._properties["listenPort"] = self.address.rpartition(":")[2]

    @property
    def address(self) -> str:
        return self._process.address

    @property
    def log(self) -> str:
        return self._process.log_path.read_text(errors="replace")

    def start(self) -> None:
        self._process = ServerProcess(self._command, self._command, self._directory, self._properties, ())
        self._process.wait_until_ready(time.monotonic() + START_TIMEOUT_S)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._process.stop()

    def stop(self) -> None:
        self._process.stop()


class FaultRun:
    """One cluster, its clients, and their faults."""

    def __init__(self, directory: Path, minutes: float, rate: float, seed: int) -> None:
        self._directory = directory
        self._rate = rate
        self._chance = random.Random(seed)
        self._ends = time.monotonic() + 60 * minutes
        self._sent = Sent()
        self._received = {kind: Received() for kind in GROUPS}
        self.faults: Counter[str] = Counter()
        self._name_server = Server("namesrv", directory, {"kvConfigPath": str(directory / "kvConfig.json")})
        self._store = directory / "store"
        self._broker = Server(
            "broker",
            directory,
            {
                "brokerIP1": HOST,
                "namesrvAddr": self._name_server.address,
                "storePathRootDir": str(self._store),
                "storePathCommitLog": str(self._store / "commitlog"),
            },
        )
        asyncio.run(send_first(self._name_server.address))
        self._clients = {kind: self._client(kind) for kind in ("load", *GROUPS)}

    def run(self) -> list[str]:
        """Runs the faults. Returns the problems."""
        while time.monotonic() < self._ends:
            self._look_for(self._chance.uniform(*PAUSE_S))
            self._one_fault()
        self._clients["load"].stop()
        caught_up_by = time.monotonic() + CATCH_UP_S
        self._look()
        while time.monotonic() < caught_up_by and any(one.missing(self._sent) for one in self._received.values()):
            self._look_for(LOOK_S)
        return self._judge()

    def end(self) -> None:
        for client in self._clients.values():
            client.kill()
        self._broker.stop()
        self._name_server.stop()

    def _client(self, kind: str) -> Client:
        options = ["--at-once"]
        if kind == "load":
            left_s = self._ends - time.monotonic() + PAUSE_S[1] + AWAY_S[1]
            options += [f"--rate={self._rate}", f"--minutes={left_s / 60}"]
        return Client(kind, self._name_server.address, self._directory, *options)

    def _one_fault(self) -> None:
        away_s = self._chance.uniform(*AWAY_S)
        whom = self._chance.choice(("broker", "broker", "namesrv", *self._clients))
        how = self._chance.choice(("killed", "stopped", "ended"))
        self.faults[f"{whom} {how}"] += 1
        self._disturb(whom, how, away_s)
        count = sum(self.faults.values())
        if count % 10 == 0:
            received = ", ".join(f"{kind} {one.total:,}" for kind, one in self._received.items())
            left_s = max(0.0, self._ends - time.monotonic())
            print(f"{left_s:5.0f} s left: {count} faults; sent {self._sent.total:,}; received {received}", flush=True)

    def _disturb(self, whom: str, how: str, away_s: float) -> None:
        servers = {"broker": self._broker, "namesrv": self._name_server}
        victim = servers[whom] if whom in servers else self._clients[whom]
        if how == "stopped":
            victim.send_signal(signal.SIGSTOP)
            self._look_for(away_s)
            victim.send_signal(signal.SIGCONT)
            return
        if how == "killed":
            victim.kill()
        else:
            victim.stop()
        self._look_for(away_s)
        if isinstance(victim, Server):
            victim.start()
        else:
            self._clients[whom] = self._client(whom)
            self._clients[whom].records = victim.records

    def _look_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left_s))
            self._look()

    def _look(self) -> None:
        for kind in GROUPS:
            self._received[kind].take(self._clients[kind].records.new())
        self._sent.take(self._clients["load"].records.new())

    def _judge(self) -> list[str]:
        problems = []
        faults = ", ".join(f"{count} x {what}" for what, count in sorted(self.faults.items()))
        print(f"{self._sent.total:,} acknowledged; faults: {faults}")
        for kind, received in self._received.items():
            print(f"{kind}: {received.total:,} received, {received.again:,} of them again")
            if missing := received.missing(self._sent):
                problems.append(f"{kind}: {missing:,} messages never came")
            if received.gaps and kind == "orderly":
                problems.append(f"{kind}: out of order {len(received.gaps)} times, first {received.gaps[0]}")
        for kind in GROUPS:
            self._clients[kind].stop()
        self._broker.stop()
        verified = subprocess.run(
            [sys.executable, "-m", "gantrymq.cli", "store", "verify", self._store],
            capture_output=True,
            text=True,
            timeout=VERIFY_S,
        )
        if verified.returncode:
            problems.append(f"gantry store verify: {verified.stdout}{verified.stderr}")
        if "Traceback" in self._broker.log:
            problems.append("the broker's log has a traceback")
        return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long there are faults (%(default)s)")
    parser.add_argument("--rate", type=float, default=500.0, help="messages per second (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the faults (a random one)")
    parser.add_argument("--keep", type=Path, help="an empty directory for files and logs, which stay (a temporary one)")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    with ExitStack() as stack:
        directory = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = FaultRun(directory, args.minutes, args.rate, args.seed)
        stack.callback(run.end)
        problems = run.run()
    for problem in problems:
        print(problem, file=sys.stderr)
    print("failed" if problems else "nothing lost, nothing out of order, the store is whole")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
