"""What the measurements of scale.py have in common: a run's settings, rows, and what a send and a pull cost."""

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

#: Figures of one point by name; "x" is of how many, or how much, it is.
Row = dict[str, float]

TOPIC = "scale"
QUEUES = 8
#: Clients send heartbeats, and brokers register, each 30 s.
BEAT_S = 30.0
#: Requests of one figure, after half as many that aren't counted.
SENDS = 40_000
PULLS = 8_000


@dataclass(frozen=True)
class Run:
    """Where the stores go; `quick` has smaller points and shorter times, for a look whether all of it works."""

    directory: Path
    quick: bool = False

    @property
    def idle_s(self) -> float:
        return 3.0 if self.quick else BEAT_S

    def count(self, whole: int) -> int:
        return whole // 10 if self.quick else whole


def told(name: str, row: Row) -> None:
    """Says how far it is."""
    progress(f"{name} {row['x']:,}: {', '.join(f'{key} {value:.4g}' for key, value in row.items() if key != 'x')}")


async def sends_and_pulls(
    run: Run,
    of: Node,
    connections: Sequence[Connection],
    queues: Sequence[MessageQueue],
    window_s: float = SETTLE_WINDOW_S,
) -> Row:
    """us of the broker's for a send and a pull, to and from each queue in turn, and how many messages a pull found."""
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
    """All points at the same time: none has much to do."""
    servers = [server for of in all_of_them for server in (of.broker, of.namesrv)]
    shares = await idle_cpu(servers, run.idle_s)
    for row, broker, namesrv in zip(rows, shares[::2], shares[1::2], strict=True):
        row["idle"], row["namesrv_idle"] = broker, namesrv
        progress(f"{name} {row['x']:,}: when idle {broker:.2f} % of a processor, NameServer {namesrv:.2f} %")
