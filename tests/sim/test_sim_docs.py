"""docs/testing.md: its fault and its checker run and have less than 50 lines, and it lists the planted bugs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sim.planted import BUGS
from sim.planted_plans import PLANS

ROOT = Path(__file__).parents[2]
_BEFORE = """
import os, sys
from types import SimpleNamespace
from sim import system
system.install()
"""
_AFTER = """
from sim.history import History, Received, Sent
from sim.plan import Fault, make_plan
plan = make_plan("docs")
plan.messages, plan.extras, plan.delayed = 20, (), 0.0
plan.faults = [Fault("fast-clock", "broker-0", 1.0, 5.0, 0.5)]
run = Run(plan)
drifts = []
run.world.loop.call_later(12.0, lambda: drifts.append(run.servers.brokers[0].host.clock_drift))
print("problems", run.execute().problems, "drift", drifts)
history = History()
history.ask(Sent("one", "orders", stored_at=1.0))
for at in (1.5, 2.5):
    history.receive(Received("one", "push", at, "push-0", "broker-0", 0, 0))
plan.faults, plan.failures, plan.transactions = [], 0.0, 0.0
print("late", list(ALL[-1](SimpleNamespace(plan=plan, history=history))))
sys.stdout.flush()
os._exit(0)
"""


def test_the_fault_and_the_checker_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    assert all(block.count("\n") < 50 for block in blocks)
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE + "".join(blocks) + _AFTER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "problems [] drift [0.05]",
        "late ['push had one 1.50 s after it was stored']",
    ]


@pytest.mark.parametrize(
    ("page", "of_bugs", "of_plans"),
    [
        ("docs/testing.md", r"contains (\d+) deliberate bugs", r"runs (\d+) of the bugs"),
        ("docs/zh/testing.md", r"`sim/planted\.py` 有 (\d+) 个缺陷", r"运行其中 (\d+) 个"),
    ],
)
def test_the_numbers_of_planted_bugs(page: str, of_bugs: str, of_plans: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert re.findall(of_bugs, text) == [str(len(BUGS))]
    assert re.findall(of_plans, text) == [str(len(PLANS))]


def test_the_page_lists_each_planted_bug() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    listed = page.partition("### Bugs to find\n")[2].partition("\n### ")[0].replace("`", "").lower()
    assert [bug.name for bug in BUGS if bug.name.lower() not in listed] == []
