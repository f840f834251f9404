"""Tests that tools/late_assignment.py reports only assignments to attributes of other objects."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

import late_assignment  # noqa: E402

SOURCE = """
class Feature:
    def __init__(self, part, *, other):
        {in_init}

    def change(self, entry):
        {in_method}
"""


@pytest.mark.parametrize(
    ("in_init", "in_method", "reported"),
    [
        ("part.listener = self.change", "pass", ["part.listener"]),
        ("other.begin, other.end = 1, 2", "pass", ["other.begin", "other.end"]),
        ("pass", "self.part.listener = None", ["self.part.listener"]),
        ("pass", "self.part.tally.count += 1", ["self.part.tally.count"]),
        ("self.part = part", "entry.count = 1", []),
        ("header = part.header(); header.code = 1", "entry.counts[1] = 2", []),
    ],
)
def test_what_is_reported(in_init: str, in_method: str, reported: list[str]) -> None:
    tree = ast.parse(SOURCE.format(in_init=in_init, in_method=in_method))
    assert [ast.unparse(target) for target in late_assignment.late_assignments(tree)] == reported
