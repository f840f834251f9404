"""Scripts without a planted bug: they run to their end, and the guarantees of replication hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sim.planted_plans import plan_with
from sim.replicas_plan import SYNC_MASTER
from sim.shrink import to_json

ROOT = Path(__file__).parents[2]
PLANS = {
    "handed": plan_with("handed", 8.0, 0.9, pause_s=0.05, messages=160),
    "filled": plan_with("filled", 6.0, 0.5),
    "a slave filled": plan_with("filled", 6.0, 0.1, replicas=2),
    "disaster": plan_with("disaster", 2.0, 0.5, is_synced=True, in_sync=2),
    "a master's syncs are lying": plan_with("lying", 4.0, 0.2, is_synced=True, in_sync=2),
    "a slave's syncs are lying": plan_with(
        "lying", 4.0, 0.8, is_synced=True, replicas=2, in_sync=2, mode=SYNC_MASTER, controllers=0
    ),
    "unconfirmed": plan_with("unconfirmed", 16.0, 0.5),
    "relieved": plan_with("relieved", 30.0, 0.5, delayed=0.3, transactions=0.15, messages=160, pause_s=0.3),
    "young": plan_with(
        "young", 8.0, 0.1, replicas=1, mode="", controllers=0, consumers={"push": 2, "orderly": 2, "pop": 1, "lite": 2}
    ),
    "gone-back": plan_with("gone-back", 6.0, 0.2, replicas=2),
}


@pytest.mark.parametrize("name", PLANS)
def test_script(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--seed", to_json(PLANS[name]), "--trace", str(trace)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = trace.read_text().splitlines()
    (begin,) = [number for number, line in enumerate(lines) if f" fault 4.00 s: {name.split()[-1]} of" in line]
    (end,) = [number for number, line in enumerate(lines) if f" over 4.00 s: {name.split()[-1]} of" in line]
    assert any(" send producer-" in line for line in lines[begin:end])
