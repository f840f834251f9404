"""Tests that tools/prose.py reports the problems that it documents, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "tools"))

import prose


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("The broker stores the message.\n", []),
        ("word " * 31 + "\n", ["sentence", "line"]),
        ("word " * 16 + "\n" + "word " * 16 + "\n", ["sentence"]),
        ("- " + "word " * 16 + "\n- " + "word " * 16 + "\n", []),
        ("word " * 16 + ". " + "word " * 16 + "\n", ["line"]),
        ("```\n" + "code " * 40 + "\n```\n", []),
        ("| " + "cell " * 40 + "|\n", []),
        ("It is faster than before, and no longer slow.\n", ["history", "history"]),
        ("Measured on 2026-11-22. `now_ms` is a function.\n", ["history"]),
    ],
)
def test_docs(text: str, rules: list[str]) -> None:
    assert sorted(finding.rule for finding in prose.in_docs("docs/page.md", text)) == sorted(rules)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('"""Stores messages."""\nclass Store:\n    """The store."""\n', []),
        ('"""Of one broker."""\n', ["docstring"]),
        ('def f():\n    """What is stored."""\n', ["docstring"]),
        ("#: The client that is told.\nx = 1\n", ["phrase"]),
        ("class LogRoom:\n    pass\n", ["name"]),
        ("def tell_all():\n    pass\n", ["name"]),
        ("log.warning('broker %s is not told', name)\n", ["message"]),
        ("raise StoreError('nobody can append')\n", ["message"]),
        ("text = 'nobody can append'\n", []),
        ("def mushroom():\n    text = 'who has it is told'\n", []),
    ],
)
def test_sources(text: str, rules: list[str]) -> None:
    assert [finding.rule for finding in prose.in_source("src/gantrymq/module.py", text)] == rules


def test_a_module_s_name() -> None:
    assert [finding.rule for finding in prose.in_source("src/gantrymq/held_units.py", "")] == ["name"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("src/gantrymq/store/commit_log.py", []),
        ("src/gantrymq/store/held_units.py", ["held"]),
        ("tests/broker/test_held_tables.py", ["held"]),
        ("src/gantrymq/proxy/sending/transactions.py", ["sending"]),
        ("native/src/python/room.rs", ["room"]),
    ],
)
def test_the_name_of_a_module(path: str, words: list[str]) -> None:
    assert [(finding.rule, finding.text) for finding in prose.in_module_name(path)] == [
        ("module", word) for word in words
    ]
