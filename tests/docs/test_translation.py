"""Tests that docs/zh has the same pages and the same code as docs/, and that the Chinese site has all of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS / "zh").as_posix() for path in DOCS.glob("zh/**/*.md"))


@pytest.fixture(scope="module", autouse=True)
def tool() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import translated_code  # noqa: F401
    finally:
        sys.path.pop(0)


def test_there_are_some() -> None:
    assert "index.md" in PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_code_of_the_english_one(page: str) -> None:
    from translated_code import blocks

    assert (DOCS / page).exists()
    english, chinese = (blocks((directory / page).read_text(encoding="utf-8")) for directory in (DOCS, DOCS / "zh"))
    assert chinese == english, f"python tools/translated_code.py {page} copies the English page's code"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "measurements.md"])
def test_a_page_has_the_sections_of_the_english_one(page: str) -> None:
    """Compares the levels of the headings. The Chinese page of the measurements links to the English tables."""
    english, chinese = (heading_levels(directory / page) for directory in (DOCS, DOCS / "zh"))
    assert chinese == english


def heading_levels(page: Path) -> list[int]:
    without_code = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [len(marks) for marks in re.findall(r"^(#+) ", without_code, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_chinese(page: str) -> None:
    assert re.search(r"^# .*", (DOCS / "zh" / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert re.search(r"[\u4e00-\u9fff]", (DOCS / "zh" / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("configuration", "directory"), [("mkdocs.yml", DOCS), ("mkdocs.zh.yml", DOCS / "zh")])
def test_the_sites_have_all_pages(configuration: str, directory: Path) -> None:
    listed = re.findall(r"([\w/-]+\.md)$", (ROOT / configuration).read_text(encoding="utf-8"), re.MULTILINE)
    there = {path.relative_to(directory).as_posix() for path in directory.glob("**/*.md")}
    there = {page for page in there if not page.startswith("zh/")}
    made = {"reference/configuration.md", "reference/metrics.md", "reference/errors.md"}
    assert sorted(listed) == sorted(there | made)
