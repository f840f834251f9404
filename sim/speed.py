"""Speed of runs without faults: two NameServers, three brokers, and ten clients, of which five are producers.

The producers send about 20 messages per simulated second, of every kind that seeds have.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from sim.plan import Plan
from sim.run import Run

_PRODUCERS, _MESSAGES, _PAUSE_S = 5, 300, 0.36
#: The five consumers: all in one group, or in four groups, so that each message is received four times.
_CONSUMERS = {
    "one group": {"push": 5, "orderly": 0, "pop": 0, "lite": 0},
    "four groups": {"push": 2, "orderly": 1, "pop": 1, "lite": 1},
}


def plans() -> Iterator[tuple[str, Plan]]:
    """Yields the name and the plan of each measurement."""
    for name, consumers in _CONSUMERS.items():
        yield (
            name,
            Plan(
                seed="speed",
                name_servers=2,
                brokers=3,
                producers=_PRODUCERS,
                consumers=consumers,
                is_synced=False,
                messages=_MESSAGES,
                pause_s=_PAUSE_S,
                ordered=0.3,
                delayed=0.05,
                batches=0.05,
                transactions=0.05,
                failures=0.0,
                tiny_reads=0.0,
            ),
        )


def measure(plan: Plan) -> tuple[list[str], str]:
    """Runs a plan. Returns its problems, and one line with the CPU time of the run and its checkers."""
    began = time.process_time()
    outcome = Run(plan).execute()
    took_s = time.process_time() - began
    return outcome.problems, (
        f"{outcome.messages} messages, received {outcome.received} times, in {outcome.simulated_s:.0f} simulated "
        f"seconds: {took_s:.2f} s of a processor, {outcome.messages / took_s:,.0f} messages and "
        f"{outcome.simulated_s / took_s:,.0f} simulated seconds a second"
    )
