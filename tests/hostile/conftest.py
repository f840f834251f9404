"""Fixture `under_attack`, and the figures of all attacks at the end of a test run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import hostile_support
import pytest
from hostile_support import UnderAttack

_FIGURES = "hostile"


@pytest.fixture
def under_attack(tmp_path: Path, record_property: Callable[[str, object], None]) -> UnderAttack:
    """Returns `hostile_support.under_attack`. The summary of the test run shows its figures."""
    return partial(hostile_support.under_attack, tmp_path, report=partial(record_property, _FIGURES))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = [
        f"{report.nodeid.rpartition('::')[2]}: {value}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == _FIGURES
    ]
    if lines:
        terminalreporter.section("what an innocent client felt of each attack")
        for line in lines:
            terminalreporter.line(line)
