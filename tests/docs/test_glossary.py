"""The glossary of the architecture page lists classes and modules that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = {"docs/architecture.md": "## Glossary", "docs/zh/architecture.md": "## 术语对照"}


def rows(page: str) -> list[list[str]]:
    """Returns the names in backticks in the middle column, for each row of the glossary."""
    section = (ROOT / page).read_text().partition(PAGES[page] + "\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [re.findall(r"`([^`]+)`", line.split("|")[2]) for line in lines]


def test_classes_and_modules_exist() -> None:
    glossary = rows("docs/architecture.md")
    assert len(glossary) >= 25
    for names in glossary:
        modules = [name for name in names if name.endswith(".py")]
        classes = set(names) - set(modules)
        trees = [ast.parse((ROOT / "src" / "gantrymq" / module).read_text()) for module in modules]
        defined = [{node.name for node in tree.body if isinstance(node, ast.ClassDef)} for tree in trees]
        assert classes, f"{names}: no class"
        assert classes <= set().union(*defined), f"{names}: a class is not in these modules"
        for module, found in zip(modules, defined, strict=True):
            assert classes & found, f"{module} has none of the classes {classes}"


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_list_the_same(page: str) -> None:
    assert rows(page) == rows("docs/architecture.md")
