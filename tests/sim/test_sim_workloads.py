"""Each workload alone, without faults and with one: its checks hold, and it finishes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RUN = """
import os, sys
from sim import system
system.install()
from sim.plan import EXTRAS, FEATURE_EXTRAS, LATER_EXTRAS, Fault, make_plan
from sim.run import Run
from sim.workloads import EXTRAS as WORKLOADS
assert {*EXTRAS, *LATER_EXTRAS, *FEATURE_EXTRAS} == set(WORKLOADS)
plan = make_plan("workloads")
plan.messages, plan.brokers, plan.failures = 20, 2, 0.0
plan.extras = tuple(sys.argv[1].split(","))
plan.acl = "permissions" in plan.extras
plan.faults = [Fault("kill-all", "broker-0", 30.0, 3.0, 1.0)] if sys.argv[2] == "fault" else []
print(*Run(plan).execute().problems, sep="\\n")
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize("fault", ["calm", "fault"])
@pytest.mark.parametrize(
    "extras",
    [
        "broadcasts,comings",
        "configurations,dead-letters",
        "offsets,recalls",
        "requests,retention",
        "slow-pops,topics",
        "endings,pop-resets",
        "recreations",
        "compaction,retention",
        "deduplication,filters,priorities",
        "lite-topics",
        "permissions,rate-limits",
        "proxies,topic-retention",
        "writers",
    ],
)
def test_workload(extras: str, fault: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, extras, fault],
        cwd=ROOT,
        # Fixed hash seed: sets have the same order in every run.
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "", done.stdout
    assert done.returncode == 0, done.stderr
