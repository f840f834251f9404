"""Whole runs with disks that lie or have flipped bits: only messages that the fault can affect are lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PLAN: dict[str, Any] = {
    "seed": "1",
    "name_servers": 1,
    "brokers": 1,
    "producers": 1,
    "consumers": {"push": 1, "orderly": 1, "pop": 0, "lite": 1},
    "is_synced": True,
    "messages": 50,
    "pause_s": 0.2,
    "ordered": 0.3,
    "delayed": 0.0,
    "batches": 0.0,
    "transactions": 0.0,
    "failures": 0.0,
    "tiny_reads": 0.0,
    "extras": [],
}


def trace_of(directory: Path, **fault: Any) -> str:
    """Returns the trace of a run with this fault. The run must have no problems."""
    plan = PLAN | {"faults": [{"whom": "broker-0"} | fault]}
    path = directory / "trace"
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--seed", json.dumps(plan), "--trace", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return path.read_text()


def test_a_message_that_rots_before_it_is_read_is_not_served(tmp_path: Path) -> None:
    # The strength selects the byte that flips: in the size, in the checksum or in the body.
    groups: set[str] = set()
    for strength in (0.1, 0.42, 0.8):
        trace = trace_of(tmp_path, kind="rot-unread", at=8.0, lasts=2.0, strength=strength)
        match = re.search(r"^ *([\d.]+) (\S+) rots at", trace, re.MULTILINE)
        assert match is not None
        readers = re.findall(rf"^ *[\d.]+ (\w+) has {re.escape(match[2])} by", trace, re.MULTILINE)
        # The members of one group were suspended; the other groups had received the message before.
        assert len(set(readers)) == 2, strength
        groups |= {"push", "orderly", "lite"} - set(readers)
    assert groups == {"push", "orderly", "lite"}


def test_syncs_that_lie_lose_what_came_since(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, kind="lies", at=3.0, lasts=4.0, strength=1.0)
    begin, end = (float(at) for at in re.findall(r"^ *([\d.]+) (?:fault|over) .*lies of broker-0", trace, re.MULTILINE))
    stored = {name: float(at) for at, name in re.findall(r"^ *([\d.]+) stored (\S+)", trace, re.MULTILINE)}
    for group in ("push", "orderly", "lite"):
        lost = stored.keys() - set(re.findall(rf"{group} has (\S+) by", trace))
        # In most cases only the last message is lost: the groups have received the earlier ones by then.
        assert all(begin <= stored[name] <= end for name in lost)
    assert "broker-0#2 WARNING: the last user of the store didn't close it" in trace


def test_a_slow_disk_has_senders_wait(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, kind="slow-disk", at=3.0, lasts=4.0, strength=0.8)
    begin, end = (float(at) for at in re.findall(r"^ *([\d.]+) (?:fault|over) .*slow-disk of", trace, re.MULTILINE))
    asked = {name: float(at) for at, name in re.findall(r"^ *([\d.]+) send (\S+)", trace, re.MULTILINE)}
    took = [
        (asked[name], float(at) - asked[name])
        for at, name in re.findall(r"^ *([\d.]+) stored (\S+)", trace, re.MULTILINE)
    ]
    assert max(took_s for at, took_s in took if begin < at < end) > 0.3
    assert max(took_s for at, took_s in took if at < begin or at > end + 2) < 0.1


def test_reads_and_writes_fail_and_are_tried_again(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, kind="io-errors", at=3.0, lasts=20.0, strength=1.0)
    assert "Input/output error" in trace
