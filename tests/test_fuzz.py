"""Every fuzz target runs over its corpus and some mutations, and notices faults."""

from __future__ import annotations

import pytest
from fuzz import targets
from fuzz.engine import Hang, check, run
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_targets(name: str) -> None:
    result = run(name, seed=0, cases=50 if name == "recovery" else 200)
    assert result.finding is None, result.finding
    assert result.cases > 50


def test_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(data: bytes) -> None:
        while data:
            pass
        raise KeyError

    monkeypatch.setitem(targets.TARGETS, "fails", fails)
    assert isinstance(check("fails", b""), KeyError)
    assert isinstance(check("fails", b"x"), Hang)
