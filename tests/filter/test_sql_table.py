"""Tests that every expression of sql_table.jsonl gives the same result as Apache's filter.

The table's first line has sets of properties. Each further line is `[expression, outcomes]`, with one letter for each
set: T and F, N for unknown, E if Java's evaluation failed. `outcomes` is empty if Java rejected the expression.
`interop/test_sql_filter.py` compares the table with Java again.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from gantrymq.errors import ClientError
from gantrymq.filter.program import evaluate
from gantrymq.filter.sql import compile_sql, parse_sql
from gantrymq.filter.values import NotComparable
from gantrymq.protocol.properties import encode_properties

LINES = [json.loads(line) for line in (Path(__file__).parent / "sql_table.jsonl").read_text().splitlines()]
PROPERTIES = [encode_properties(properties) for properties in LINES[0]]
TABLE: list[tuple[str, str]] = [(expression, outcomes) for expression, outcomes in LINES[1:]]
LETTERS = {True: "T", False: "F", None: "N"}


def outcomes_here(expression: str) -> str:
    program = parse_sql(expression).program
    letters = ""
    for raw in PROPERTIES:
        try:
            value = evaluate(program, raw)
            assert value is None or isinstance(value, bool)
            letters += LETTERS[value]
        except NotComparable:
            letters += "E"
    return letters


def test_the_table_is_whole() -> None:
    assert len(TABLE) > 2000
    assert {len(outcomes) for _, outcomes in TABLE} == {0, len(PROPERTIES)}
    assert set("".join(outcomes for _, outcomes in TABLE)) == set("TFNE")


def test_what_both_take_means_the_same() -> None:
    different, refused_here = [], []
    for expression, outcomes in TABLE:
        try:
            here = outcomes_here(expression)
        except ClientError:
            here = ""
        if outcomes and not here:
            refused_here.append((expression, outcomes))
        elif here != outcomes:
            different.append((expression, here, outcomes))
    assert different == []
    # Java parsed only the beginning of these expressions and ignored the rest.
    assert 0 < len(refused_here) < 100
    for expression, outcomes in refused_here:
        assert outcomes in beginnings(expression), expression


def beginnings(expression: str) -> set[str]:
    """Returns the outcomes of all valid prefixes of this expression."""
    found = set()
    for end in range(1, len(expression)):
        with contextlib.suppress(ClientError):
            found.add(outcomes_here(expression[:end]))
    return found


@pytest.mark.parametrize("place", [0, 1, 2])
def test_only_true_matches(place: int) -> None:
    for expression, outcomes in TABLE[::7]:
        try:
            matches = compile_sql(expression)
        except ClientError:
            continue
        assert matches(PROPERTIES[place]) is (outcomes[place] == "T")
