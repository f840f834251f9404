"""Tests that docs/troubleshooting.md quotes texts that the source code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"


@cache
def texts() -> str:
    """Returns all string literals of the package. A placeholder of an f-string is one character."""
    found = []
    for path in sorted((ROOT / "src" / "gantrymq").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.ClassDef):
                found.append(node.name)
    return "\n".join(found)


def quoted() -> list[str]:
    """Returns the texts in the first column of the tables, and in the paragraph about routes."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]*`[^|]*) \|[^|]*\|[^|]*\|$", page, re.MULTILINE)
    paragraph = page.partition("The text ")[2].partition("means that")[0]
    return [text for part in [*rows, paragraph] for text in re.findall(r"`([^`]+)`", part)]


def test_there_are_some() -> None:
    assert len(quoted()) > 25


@pytest.mark.parametrize("text", quoted())
def test_the_source_has_the_text(text: str) -> None:
    assert text in texts()


def test_both_languages_quote_the_same_texts() -> None:
    chinese = (PAGE.parent / "zh" / PAGE.name).read_text(encoding="utf-8")
    assert [text for text in quoted() if f"`{text}`" not in chinese] == []
