"""Soak test: producers, and three groups whose consumers come and go, for some minutes. See README.md.

Checks during the run: acknowledged messages reach every group; the orderly group never skips a message of a key;
every consumer that stays long enough receives messages; the broker's memory does not grow. If a check fails, the
exit status is 1. The load and each group are processes of their own (`soak_clients.py`). This process reads their
records and checks them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from result_files import add_out, recorded
from soak_clients import KEYS, RECORD, TOPIC

from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.protocol.message import Message
from gantrymq.testing.processes import ProcessCluster

CLIENTS = Path(__file__).with_name("soak_clients.py")
GROUPS = ("concurrent", "orderly", "pop")
#: Longest time until a group has received everything after the last send, in seconds.
CATCH_UP_S = 60.0
#: Longest time of a client's stop, in seconds.
STOP_S = 60.0
#: Limit for the growth of the broker's anonymous memory from the second to the last third of the run, in MiB.
MAX_GROWTH_MIB = 8.0


class RecordFile:
    """Reads the records that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb", buffering=0)
        self._rest = b""

    def new(self) -> list[tuple[int, int]]:
        """Returns the (key, number) of each message, in the order of the file."""
        data = self._rest + self._file.readall()
        end = len(data) - len(data) % RECORD.size
        self._rest = data[end:]
        return list(RECORD.iter_unpack(data[:end]))


class Sent:
    """Acknowledged messages: for each key, the numbers below `counts`."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(range(KEYS), 1)

    def take(self, records: list[tuple[int, int]]) -> None:
        for key, number in records:
            self.counts[key] = number + 1

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Received:
    """Messages that one group received."""

    def __init__(self) -> None:
        self.total = 0
        #: Number of repeated deliveries, after a failed send or a consumer that left.
        self.again = 0
        #: For each key: the highest number, and the smaller numbers that are still missing.
        self.highest = dict.fromkeys(range(KEYS), -1)
        self.skipped: dict[int, set[int]] = {key: set() for key in range(KEYS)}
        self.gaps: list[str] = []

    def take(self, records: list[tuple[int, int]]) -> None:
        for key, number in records:
            self.total += 1
            highest = self.highest[key]
            if number > highest + 1:
                self.gaps.append(f"key {key}: {number} after {highest}")
                self.skipped[key].update(range(highest + 1, number))
            if number > highest:
                self.highest[key] = number
            elif number in self.skipped[key]:
                self.skipped[key].remove(number)
            else:
                self.again += 1

    def missing(self, sent: Sent) -> int:
        """Returns the number of acknowledged messages that the group has not received."""
        behind = sum(max(0, count - 1 - self.highest[key]) for key, count in sent.counts.items())
        return behind + sum(map(len, self.skipped.values()))


class Client:
    """One process of `soak_clients.py`."""

    def __init__(self, kind: str, names: str, directory: Path, *options: str) -> None:
        records = directory / f"{kind}.records"
        records.touch()
        self._kind = kind
        with (directory / f"{kind}.log").open("ab") as log:
            # Its own session: Ctrl-C in the terminal reaches only the parent, which stops its clients.
            self._process = subprocess.Popen(
                [sys.executable, CLIENTS, kind, names, records, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> str:
        """Stops the client. Returns its output. Raises RuntimeError if its exit status is not 0."""
        output, _ = self._process.communicate(timeout=STOP_S)
        if self._process.returncode:
            raise RuntimeError(f"{self._kind} ended with status {self._process.returncode}")
        return output.decode()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def anonymous_mib(pid: int) -> float:
    """Returns a process's memory without pages of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def send_first(names: str) -> None:
    """Sends number 0 of each key, so that the topic exists before the groups start."""
    async with Producer(names, "soak-producers") as producer:
        for key in range(KEYS):
            await producer.send(Message(TOPIC, b"%d 0" % key), select=select_by_hash(key))


class Soak:
    """Runs the clients, and reads their records each second."""

    def __init__(self, cluster: ProcessCluster, directory: Path, minutes: float, rate: float) -> None:
        names = cluster.namesrv_addr
        asyncio.run(send_first(names))
        self._broker = cluster.brokers[0].pid
        self._began = time.monotonic()
        self._memory: list[float] = []
        self._replaced = 0
        self.sent = Sent()
        self.received = {kind: Received() for kind in GROUPS}
        self._records = {kind: RecordFile(directory / f"{kind}.records") for kind in ("load", *GROUPS)}
        self._groups = {kind: Client(kind, names, directory) for kind in GROUPS}
        self._load = Client("load", names, directory, f"--rate={rate}", f"--minutes={minutes}")

    def run(self) -> list[str]:
        """Runs the soak. Returns the problems."""
        while self._load.is_running:
            self._look()
            time.sleep(1)
        self._load.stop()
        sent_for_s = time.monotonic() - self._began
        deadline = time.monotonic() + CATCH_UP_S
        self._look()
        print(f"sent {self.sent.total:,} in {sent_for_s:.0f} s, {self.sent.total / sent_for_s:,.0f} a second")
        while time.monotonic() < deadline and any(one.missing(self.sent) for one in self.received.values()):
            time.sleep(1)
            self._look()
        return [problem for kind in GROUPS for problem in self._judge(kind)] + self._judge_memory()

    def table(self, problems: list[str]) -> str:
        """Returns the figures of the run as a Markdown table. The last rows say whether it failed."""
        third = len(self._memory) // 3
        before, after = max(self._memory[third : 2 * third]), max(self._memory[2 * third :])
        rows: list[tuple[str, object]] = [("messages sent", self.sent.total)]
        for kind, one in self.received.items():
            rows += [(f"received by {kind}", one.total), (f"received by {kind} again", one.again)]
        rows += [
            ("consumers that were replaced", self._replaced),
            ("memory of the broker, second third of the run, MiB", round(before, 1)),
            ("memory of the broker, last third of the run, MiB", round(after, 1)),
            ("violations", len(problems)),
        ]
        return "\n".join(["| what | figure |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])

    def kill(self) -> None:
        for client in (self._load, *self._groups.values()):
            client.kill()

    def _look(self) -> None:
        for kind, client in self._groups.items():
            if not client.is_running:
                raise RuntimeError(f"the consumers of {kind} have ended")
            self.received[kind].take(self._records[kind].new())
        # Read after the groups, so that a group is ahead of the sends by a moment at most.
        self.sent.take(self._records["load"].new())
        self._memory.append(anonymous_mib(self._broker))
        if len(self._memory) % 10 == 0:
            received = ", ".join(f"{kind} {received.total:,}" for kind, received in self.received.items())
            print(
                f"{time.monotonic() - self._began:5.0f} s: sent {self.sent.total:,}; received {received}; "
                f"{self._memory[-1]:.1f} MiB",
                flush=True,
            )

    def _judge(self, kind: str) -> list[str]:
        received = self.received[kind]
        missing = received.missing(self.sent)
        report = json.loads(self._groups[kind].stop())
        self._replaced += report["consumers"]
        print(
            f"{kind}: {received.total:,} received of {self.sent.total:,} sent, {received.again:,} of them again; "
            f"{report['consumers']} consumers came and went"
        )
        problems = [f"{kind}: {missing:,} messages never came"] if missing else []
        if received.gaps and kind == "orderly":
            problems.append(f"{kind}: out of order {len(received.gaps)} times, first {received.gaps[0]}")
        return problems + report["starved"]

    def _judge_memory(self) -> list[str]:
        third = len(self._memory) // 3
        before, after = max(self._memory[third : 2 * third]), max(self._memory[2 * third :])
        print(f"the broker's own memory: {before:.1f} MiB at most in the second third, {after:.1f} MiB in the last")
        if after - before > MAX_GROWTH_MIB:
            return [f"the broker's memory grew from {before:.1f} to {after:.1f} MiB"]
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long messages are sent (%(default)s)")
    parser.add_argument("--rate", type=float, default=500.0, help="messages per second (%(default)s)")
    add_out(parser)
    args = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(recorded(args, "bench/soak.py"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(ProcessCluster(directory))
        soak = Soak(cluster, directory, args.minutes, args.rate)
        stack.callback(soak.kill)
        problems = soak.run()
        print(soak.table(problems))
    for problem in problems:
        print(problem, file=sys.stderr)
    print("failed" if problems else "nothing lost, nothing out of order, nobody starved, memory flat")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
