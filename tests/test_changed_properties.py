"""Tests that changes to a configuration file keep its comments and order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.config import changed_properties, format_properties, parse_properties

FILE = """# Broker of the first rack.
brokerName = broker-a

! Long retention: the auditors ask.
fileReservedTime: \\
    72
listenPort 10911
brokerName=broker-b
last=1"""


def test_order_and_comments_stay() -> None:
    assert changed_properties(FILE, {"fileReservedTime": "48", "listenPort": "10912"}) == (
        FILE.replace(": \\\n    72", "=48").replace("listenPort 10911", "listenPort=10912")
    )


def test_the_last_of_equal_keys_counts_and_new_ones_come_last() -> None:
    changed = changed_properties(FILE, {"brokerName": "broker-c", "new": "a\\b", "a new": "x"})
    assert changed.startswith("# Broker of the first rack.\nbrokerName=broker-c\n\n! Long")
    assert changed.endswith("brokerName=broker-c\nlast=1\na\\ new=x\nnew=a\\\\b\n")
    assert parse_properties(changed, source="x")["new"] == "a\\b"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_other_ends_of_lines(end: str) -> None:
    text = f"# a{end}a=1{end}{end}b=2{end}"
    assert parse_properties(changed_properties(text, {"a": "3"}), source="x") == {"a": "3", "b": "2"}
    assert changed_properties(text, {}) == text
    if end != "\r":
        assert changed_properties(text, {"b": "3"}) == text.replace("b=2", "b=3")


TEXT = st.text(st.sampled_from("ab =:\\\n\r\t#!\u00fc"), max_size=60)
ENTRIES = st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=4)


@given(TEXT, ENTRIES)
def test_what_is_read_is_what_was_read_with_the_changes(text: str, changes: dict[str, str]) -> None:
    before = parse_properties(text, source="x")
    after = parse_properties(changed_properties(text, changes), source="x")
    # A lone backslash is an entry before a blank line, but not at the end.
    after.pop("", None), before.pop("", None)
    assert after == before | changes
    assert parse_properties(format_properties(changes), source="x") == changes
