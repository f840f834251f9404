"""Our brokers with Apache's controller: the master is killed, stopped or cut off under load, ten times.

Times are shortened: the heartbeat timeout is 3 s (Java: 10), and its check runs each second (Java: 5).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from servers import HERE

pytestmark = pytest.mark.interop(feature="controller", servers="java gantry")

FAILOVER = HERE.parent / "bench" / "failover.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="the proxy needs all of 127.0.0.0/8")
def test_ten_failovers(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    options = ["--controller=java", "--rounds=10", "--rate=300", "--seed=7", f"--json={figures}"]
    done = subprocess.run([sys.executable, FAILOVER, *options], capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = json.loads(figures.read_text())["rounds"]
    assert {one["fault"] for one in rounds} == {"killed", "stopped", "cut off"}
    # The heartbeat timeout, its check, the time of a send, and as much again.
    assert max(one["silent_s"] for one in rounds) < 15
