"""Result files of bench/results: tools/measurements.py renders them."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkouts import ROOT

#: Above this load average of the last minute, other programs run beside the benchmark.
_QUIET_LOAD = 0.5


def conditions() -> dict[str, Any]:
    """Returns the machine, its load, the version of Python, the date and the commit. Call it before the benchmark."""
    load = os.getloadavg()[0]
    return {
        "machine": {
            "processor": _processor(),
            "processors": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
            "load": round(load, 2),
            "other_programs": "none" if load < _QUIET_LOAD else "some",
        },
        "versions": {"python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
    }


def read_result(path: Path) -> dict[str, Any]:
    """Returns the contents of a result file with runs, or of a new file. Raises ValueError for any other file."""
    if not path.exists():
        if not path.parent.is_dir():
            raise ValueError(f"{path.parent} is not a directory")
        return {"runs": []}
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        if isinstance(result["runs"], list):
            return result
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{path} is not a result file with runs")


def put_run(path: Path, run: Mapping[str, Any]) -> None:
    """Adds a run to a result file, or replaces the run of the same name. Creates the file if it does not exist.

    Args:
        path: Result file.
        run: Name, options, rounds, columns, rows and conditions of the run.

    Raises:
        ValueError: The file is not a result file with runs.
    """
    result = read_result(path)
    names = [each["name"] for each in result["runs"]]
    if run["name"] in names:
        result["runs"][names.index(run["name"])] = dict(run)
    else:
        result["runs"].append(dict(run))
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _processor() -> str | None:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found and found[1]


def _commit() -> str:
    """Returns the abbreviated commit, with "+" if files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=8", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
