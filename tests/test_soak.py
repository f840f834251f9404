"""Tests the counts of lost and unordered messages in bench/soak.py, and runs it briefly."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import soak

    return soak


def test_late_is_not_lost(soak: ModuleType) -> None:
    sent, received = soak.Sent(), soak.Received()
    received.take([(key, 0) for key in range(soak.KEYS)])
    sent.take([(7, 1), (7, 2), (7, 3), (9, 1)])
    assert received.missing(sent) == 4
    received.take([(7, 3)])
    assert received.missing(sent) == 3
    received.take([(7, 1), (9, 1), (7, 1)])
    assert received.missing(sent) == 1
    received.take([(7, 2)])
    assert (received.missing(sent), received.again, received.total) == (0, 1, soak.KEYS + 5)
    assert received.gaps == ["key 7: 3 after 0"]
    # A message can be received before its acknowledgement is recorded.
    received.take([(9, 2)])
    assert received.missing(sent) == 0


def test_records_are_read_whole(soak: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "records"
    records = soak.RecordFile(path)
    data = b"".join(soak.RECORD.pack(key, 1_000_000 + key) for key in range(3))
    with path.open("ab", buffering=0) as file:
        found = []
        for byte in data:
            file.write(bytes([byte]))
            found += records.new()
    assert found == [(0, 1_000_000), (1, 1_000_001), (2, 1_000_002)]


@pytest.mark.slow
def test_it_runs() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "soak.py", "--minutes", "0.1", "--rate", "200"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("concurrent", "orderly", "pop"):
        assert re.search(rf"^{kind}: [\d,]+ received of [\d,]+ sent", done.stdout, re.MULTILINE)
    assert "nothing lost" in done.stdout
