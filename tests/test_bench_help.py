"""Tests that the commands in bench/README.md use options of bench/run.py and of bench/instructions.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent.parent / "bench"


def test_documented_options_exist() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "run.py", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"COLUMNS": "500"},
    )
    commands = re.findall(r"^    \./dev bench(.*?)(?:#.*)?$", (BENCH / "README.md").read_text(), re.MULTILINE)
    instructions = [command for command in commands if command.startswith(" --instructions")]
    commands = [command for command in commands if command not in instructions]
    assert len(commands) >= 4
    for option in re.findall(r"--[\w-]+", " ".join(commands)):
        assert option in done.stdout
    of_instructions = subprocess.run(
        [sys.executable, BENCH / "instructions.py", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert len(instructions) >= 2
    for option in re.findall(r"--[\w-]+", " ".join(each.removeprefix(" --instructions") for each in instructions)):
        assert option in of_instructions.stdout
    table = (BENCH / "README.md").read_text().partition("| `--only` |")[2].partition("\n\n")[0]
    documented = set(re.findall(r"^\| ([a-z-]+) \|", table, re.MULTILINE))
    known = re.search(r"--only KIND \[KIND \.\.\.\]\s+([a-z, -]+) \(all\)", done.stdout)
    assert known is not None
    assert documented == set(re.findall(r"[a-z-]+", known[1]))
