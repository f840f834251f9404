"""Renders tests/complete_runs.json, the counts of complete test runs, in docs/testing.md and docs/zh/testing.md.

    .venv/bin/python tools/complete_runs.py                  renders the table
    .venv/bin/python tools/complete_runs.py --add out.xml    first adds the run of a report (pytest --junitxml=out.xml)

--add replaces the run of the same minor version of Python. Call the tool with the interpreter that ran the tests, in
the checkout that they ran in. If a test is in several reports, its result in the last one counts: give the report of
corrected tests after the report of the whole run.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measurements import table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "complete_runs.json"
BEGIN, END = "<!-- written by tools/complete_runs.py -->", "<!-- end of what it wrote -->"
#: The pages and the columns of their tables.
PAGES = {
    ROOT / "docs" / "testing.md": (
        ["Python", "passed", "skipped", "failed", "minutes", "date", "commit"],
        "Failed tests",
    ),
    ROOT / "docs" / "zh" / "testing.md": (["Python", "通过", "跳过", "失败", "分钟", "日期", "提交"], "失败的测试"),
}

Run = dict[str, Any]


def read_run(reports: Sequence[Path]) -> Run:
    """Returns the counts of the tests in JUnit XML reports. Raises ValueError if a report has no tests."""
    results: dict[str, str] = {}
    seconds = 0.0
    date = ""
    for report in reports:
        found: dict[str, str] = {}
        for suite in ElementTree.parse(report).iter("testsuite"):
            seconds += float(suite.get("time", 0))
            date = max(date, suite.get("timestamp", "")[:10])
            found |= {f"{case.get('classname')}::{case.get('name')}": _result(case) for case in suite.iter("testcase")}
        if not found:
            raise ValueError(f"{report} has no tests")
        results |= found
    counts = Counter(results.values())
    return {
        "python": platform.python_version(),
        **{result: counts[result] for result in ("passed", "skipped", "failed")},
        "failures": [name for name, result in results.items() if result == "failed"],
        "minutes": round(seconds / 60),
        "date": date,
        "commit": _commit(),
    }


def _result(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def add_run(path: Path, run: Run) -> None:
    """Adds a run to the file. It replaces the run of the same minor version of Python."""
    runs: list[Run] = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = [each for each in runs if _minor(each) != _minor(run)]
    runs = sorted([*runs, run], key=_minor)
    path.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


def rendered(runs: Sequence[Run], columns: Sequence[str], failed_tests: str) -> str:
    """Returns the table and the names of the tests that failed."""
    names = ("python", "passed", "skipped", "failed", "minutes", "date", "commit")
    lines = [table(columns, [[each[name] for name in names] for each in runs]).rstrip("\n")]
    failures = [f"- {each['python']}: `{failure}`" for each in runs for failure in each["failures"]]
    if failures:
        lines += ["", f"{failed_tests}:", "", *failures]
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """Returns the page with another table between the markers."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"


def _minor(run: Run) -> tuple[int, ...]:
    return tuple(int(part) for part in run["python"].split(".")[:2])


def _commit() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", type=Path, nargs="+", metavar="REPORT", help="JUnit XML reports of one run")
    options = parser.parse_args()
    if options.add:
        add_run(RESULTS, read_run(options.add))
    runs = json.loads(RESULTS.read_text())["runs"]
    for page, (columns, failed_tests) in PAGES.items():
        page.write_text(with_table(page.read_text(), rendered(runs, columns, failed_tests)))
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
