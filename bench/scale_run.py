"""Common parts of the measurements of scale.py: settings, rows, and the cost of a send and a pull."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from measures import progress
from scale_load import pull, send
from scale_servers import SETTLE_WINDOW_S, Node, cpu_us, idle_cpu

from gantrymq.protocol.message import MessageQueue
from gantrymq.remoting.connection import Connection

#: Figures of one point by name. "x" is the size of the point.
Row = dict[str, float]

TOPIC = "scale"
QUEUES = 8
#: Interval of client heartbeats and broker registrations, in seconds.
BEAT_S = 30.0
#: Number of requests per figure, after half as many for warm-up.
SENDS = 40_000
PULLS = 8_000


@dataclass(frozen=True)
class Run:
    """Settings of a run: directory of the stores.

    `quick` has smaller points and shorter times, to test the benchmark itself.
    """

    directory: Path
    quick: bool = False

    @property
    def idle_s(self) -> float:
        return 3.0 if self.quick else BEAT_S

    def count(self, whole: int) -> int:
        return whole // 10 if self.quick else whole


def told(name: str, row: Row) -> None:
    """Prints the progress."""
    progress(f"{name} {row['x']:,}: {', '.join(f'{key} {value:.4g}' for key, value in row.items() if key != 'x')}")


async def sends_and_pulls(
    run: Run,
    of: Node,
    connections: Sequence[Connection],
    queues: Sequence[MessageQueue],
    window_s: float = SETTLE_WINDOW_S,
) -> Row:
    """Returns the broker's CPU time for a send and a pull, and the mean number of messages per pull.

    The requests go to the queues in turn. Times are in microseconds.
    """
    count = max(run.count(SENDS), len(queues), len(connections))
    await send(connections, queues, max(count // 2, len(queues), len(connections)))
    sent = await cpu_us(of.broker, count, send(connections, queues, count), window_s)
    count = max(run.count(PULLS), len(queues), len(connections))
    found = 0

    async def pulls() -> None:
        nonlocal found
        found = await pull(connections, islice(cycle((queue, 0) for queue in queues), count))

    return {"send": sent, "pull": await cpu_us(of.broker, count, pulls()), "found": found / count}


async def idle(run: Run, name: str, all_of_them: Sequence[Node], rows: Sequence[Row]) -> None:
    """Measures the idle CPU time of all points at the same time, because each uses little."""
    servers = [server for of in all_of_them for server in (of.broker, of.namesrv)]
    shares = await idle_cpu(servers, run.idle_s)
    for row, broker, namesrv in zip(rows, shares[::2], shares[1::2], strict=True):
        row["idle"], row["namesrv_idle"] = broker, namesrv
        progress(f"{name} {row['x']:,}: when idle {broker:.2f} % of a processor, NameServer {namesrv:.2f} %")
