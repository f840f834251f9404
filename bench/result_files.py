"""Result files of bench/results: tools/measurements.py renders them.

A benchmark prints its results as a Markdown table, or as lines with a name and a figure. With `--out`, `recorded` also
adds the printed tables to a result file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from checkouts import ROOT

from gantrymq.kernels import native

#: Above this load average of the last minute, other programs run beside the benchmark.
_QUIET_LOAD = 0.5
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}) +\(({_NUMBER}) to ({_NUMBER})\)")
#: A name, at least two spaces, and its figure.
_NAMED_FIGURE = re.compile(r"(\S.*?) {2,}(\S.*)")

#: Columns and rows.
Table = tuple[list[str], list[list[Any]]]


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
        "commit": commit(),
    }


def options() -> str:
    """Returns the options of this process, without those of the result file: `--out` and `--name`."""
    kept = []
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument in ("--out", "--name"):
            next(arguments, None)
        elif not argument.startswith(("--out=", "--name=")):
            kept.append(argument)
    return shlex.join(kept)


def add_out(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `recorded`."""
    parser.add_argument("--out", type=Path, help="add the printed results to this result file of bench/results")
    parser.add_argument("--name", help="name of the run in --out; a run of the same name is replaced (the program's)")


@contextmanager
def recorded(args: argparse.Namespace, program: str) -> Iterator[None]:
    """Adds the tables that are printed in this context to the file `--out`, if it is given and nothing fails.

    Args:
        args: Options with `out` and `name`. `rounds` or `repeat` is the number of rounds.
        program: Path of the benchmark in the repository.

    Raises:
        SystemExit: The file is not a result file with runs.
    """
    if args.out is None:
        yield
        return
    try:
        read_result(args.out)
    except ValueError as e:
        raise SystemExit(f"--out: {e}") from e
    run = conditions() | {"program": program, "options": options(), "native": native is not None}
    run["rounds"] = getattr(args, "rounds", getattr(args, "repeat", 1))
    printed = _Copy(sys.stdout)
    with redirect_stdout(printed):
        yield
    if "pyspark" in sys.modules:
        run["versions"]["spark"] = sys.modules["pyspark"].__version__
    if "confluent_kafka" in sys.modules:
        run["versions"]["confluent-kafka"] = sys.modules["confluent_kafka"].__version__
    name = args.name or Path(program).stem.replace("_", " ")
    for number, (columns, rows) in enumerate(tables(printed.getvalue()), 1):
        of_table = {"name": name if number == 1 else f"{name}, table {number}", "columns": columns, "rows": rows}
        put_run(args.out, run | of_table)


class _Copy(io.StringIO):
    """Prints text, and keeps a copy."""

    def __init__(self, stdout: Any) -> None:
        super().__init__()
        self._stdout = stdout

    def write(self, text: str) -> int:
        self._stdout.write(text)
        return super().write(text)

    def flush(self) -> None:
        self._stdout.flush()


def tables(text: str) -> list[Table]:
    """Returns the Markdown tables of a text, and one of all lines with a name and a figure."""
    found: list[Table] = []
    figures: list[list[Any]] = []
    in_table = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if cells and not in_table:
            found.append((["" if cell == "-" else cell for cell in cells], []))
        elif cells and not re.fullmatch(r"[|\s:-]+", line):
            found[-1][1].append([_value(cell) for cell in cells])
        elif not cells and (named := _NAMED_FIGURE.fullmatch(line.strip())):
            figures.append([named[1], _value(named[2])])
        in_table = bool(cells)
    return [*found, (["what", "figure"], figures)] if figures else found


def _value(text: str) -> Any:
    """Returns the value of a cell: None, a number, [median, minimum, maximum], or the text."""
    if found := _RANGE.fullmatch(text):
        return [_number(each) for each in found.groups()]
    return _number(text) if re.fullmatch(_NUMBER, text) else text or None


def _number(text: str) -> float:
    plain = text.replace(",", "")
    return int(plain) if re.fullmatch(r"-?\d+", plain) else float(plain)


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


def recorder(path: Path | None, program: str, columns: list[str]) -> Callable[[str, list[list[Any]]], None]:
    """Returns a function that adds the rows of a run, by its name, to a result file.

    Call this before the program begins, because it records the conditions.

    Args:
        path: Result file. None: the function does nothing.
        program: The command, such as "./dev sim". Its options are those of this process.
        columns: Names of the columns.

    Raises:
        ValueError: The file is not a result file with runs.
        OSError: The file can't be read.
    """
    if path is None:
        return lambda name, rows: None
    read_result(path)
    run = conditions() | {
        "program": program,
        "options": options(),
        "native": native is not None,
        "rounds": 1,
        "columns": columns,
    }
    return lambda name, rows: put_run(path, run | {"name": name, "rows": rows})


def _processor() -> str | None:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found and found[1]


def commit() -> str:
    """Returns the abbreviated commit of this checkout, with "+" if files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=8", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
