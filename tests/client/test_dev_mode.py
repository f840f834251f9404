"""Python's development mode and asyncio's debug mode report nothing for a program that uses every client."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from gantrymq.testing.processes import ProcessCluster

SCRIPT = Path(__file__).parent / "every_client.py"
#: Asyncio's report about slow callbacks on a busy machine.
SLOW = re.compile(r"Executing <.* took \d+\.\d+ seconds")


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_nothing_is_said(loop: str, tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-X", "dev", "-W", "error", SCRIPT, cluster.namesrv_addr, loop),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONASYNCIODEBUG": "1"},
        )
        said, complained = await program.communicate()
    lines = [line for line in complained.decode().splitlines() if not SLOW.match(line)]
    assert lines == []
    assert said == b"done\n"
    assert program.returncode == 0
