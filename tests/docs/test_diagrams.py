"""Tests that each diagram has a title and a description, loads nothing, and is the same drawing in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
CHINESE = sorted(path.name for path in IMAGES.glob("*.zh.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def text(name: str) -> str:
    return (IMAGES / name).read_text(encoding="utf-8")


def test_there_are_some() -> None:
    assert len(CHINESE) >= 3


@pytest.mark.parametrize("chinese", CHINESE)
def test_a_diagram_is_the_same_in_both_languages(chinese: str) -> None:
    drawings = [re.sub(r">[^<]+</(text|title|desc)>", "", text(name)) for name in (chinese, chinese.replace(".zh", ""))]
    assert drawings[0] == drawings[1]


@pytest.mark.parametrize("name", [*CHINESE, *(name.replace(".zh", "") for name in CHINESE)])
def test_a_diagram_can_be_read_without_other_files(name: str) -> None:
    root = ElementTree.fromstring(text(name))
    assert [root.findtext(f"{SVG}{part}", "") != "" for part in ("title", "desc")] == [True, True]
    assert not re.findall(r"<(?:image|script|foreignObject)|url\((?!#)|@import|href=", text(name))
    assert bool(re.search(r"[\u4e00-\u9fff]", text(name))) == (".zh." in name)
    assert "prefers-color-scheme: dark" in text(name)
