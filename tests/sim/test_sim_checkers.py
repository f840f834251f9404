"""sim/checkers: problems that the checkers must find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_RUN = """
import os, sys
from sim import system
system.install()
from sim.checkers.programs import everybody_works
from sim.faults import KINDS
from sim.plan import Fault, make_plan
from sim.run import Run


class Crash:
    "The programs with these names end with an error that nobody takes."

    def begin(self, site, program, strength):
        for one in site.programs.values():
            if one.name in ("broker-0", "ns-0", "producer-0"):
                one.failure = KeyError("brokerAddr")

    def end(self, site, program):
        pass


KINDS["crash"] = Crash()
plan = make_plan("checkers")
plan.messages, plan.extras, plan.faults = 1, (), [Fault(kind, "broker-0", 1.0, 1.0, 1.0) for kind in ("crash", "full")]
run = Run(plan)
run.execute()
print(*everybody_works(run), sep="\\n")
sys.stdout.flush()
os._exit(0)
"""


def test_a_disk_that_failed_excuses_its_broker_alone() -> None:
    done = subprocess.run([sys.executable, "-c", _RUN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "ns-0 ended: KeyError('brokerAddr')",
        "producer-0 ended: KeyError('brokerAddr')",
    ]
