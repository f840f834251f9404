"""Tests that every `gantry` command line in the documents has existing commands and options."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from gantrymq.cli.app import app

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

from code_blocks import code_blocks  # noqa: E402

DOCUMENTS = (
    "README.md",
    "README.zh-CN.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
)
#: Tokens after which a shell's next command begins.
_END = {"|", "&", ";", "<", ">", "<<<", "&&", "||"}


def command_lines() -> list[tuple[str, str]]:
    """Returns (document, line) of each command in shell code blocks, with continued lines joined."""
    found = []
    for document in DOCUMENTS:
        for block in code_blocks((ROOT / document).read_text(), "sh"):
            found += [
                (document, line) for line in block.replace("\\\n", " ").splitlines() if line.startswith("gantry ")
            ]
    return found


def test_there_are_some() -> None:
    assert len(command_lines()) > 20


@pytest.mark.parametrize(
    ("document", "line"), [pytest.param(d, t, id=f"{d}-{n}") for n, (d, t) in enumerate(command_lines())]
)
def test_a_command_line_is_understood(document: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[: next((n for n, word in enumerate(words) if word in _END), len(words))]
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        found = command.get_command(typer.Context(command), name)
        assert found is not None, f"{document}: no command {name} in {line}"
        command = found
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"-h", "--help"}
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            assert word.partition("=")[0] in known, f"{document}: no option {word} in {line}"
