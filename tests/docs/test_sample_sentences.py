"""Tests of tools/sample_sentences.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def sample(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    import sample_sentences

    return sample_sentences


def test_paragraphs_have_no_code_tables_and_headings(sample: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Title of a page here\n\nA broker stores messages\nin a log. Consumers read them later.\n\n"
        "```python\n# It is not a sentence of text.\n```\n\n| a cell of some table here. |\n\n"
        "- The first item has five words.\n- And the second item, too.\n"
    )
    assert [(line, text) for _, line, text in sample.sentences(list(sample.paragraphs(page)))] == [
        (3, "A broker stores messages in a log."),
        (12, "The first item has five words."),
        (13, "And the second item, too."),
    ]


def test_docstrings_and_comments(sample: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""The docstring of a module."""\n\n#: A comment that has\n#: two lines of text.\nX = 1  # noqa: E501\n\n\n'
        'def f():\n    """Returns one. The value never changes at all."""\n    return X\n'
    )
    assert [text for *_, text in sample.sentences(list(sample.docstrings(module)))] == [
        "The docstring of a module.",
        "The value never changes at all.",
    ]
    assert [(line, text) for _, line, text in sample.sentences(list(sample.comments(module)))] == [
        (3, "A comment that has two lines of text.")
    ]


def test_a_seed_gives_the_same_sentences() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, TOOLS / "sample_sentences.py", "--seed", "3", "--count", "6"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    }
    assert [len(output.splitlines()) for output in outputs] == [6]
