"""Renders tools/trust.toml and bench/results/*.json as docs/trust.md and docs/zh/trust.md.

    .venv/bin/python tools/trust.py

The texts of the claims are in tools/trust.toml. Figures, dates and commits are those of the results.
"""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import goals
import measurements

ROOT = Path(__file__).parent.parent
CLAIMS = ROOT / "tools" / "trust.toml"

Claim = Mapping[str, Any]


class Language(NamedTuple):
    """The texts of the page in one language, and the pages with the claims."""

    page: Path
    readme: Path
    guarantees: Path
    introduction: str
    titles: tuple[str, str]
    columns: tuple[str, ...]
    text: str
    missing: str
    each_change: str
    not_measured: str
    not_recorded: str
    without_service: str


ENGLISH = Language(
    page=ROOT / "docs" / "trust.md",
    readme=ROOT / "README.md",
    guarantees=ROOT / "docs" / "guarantees.md",
    introduction="""# How far to trust it

Check the claims of the README and of [Guarantees](guarantees.md) yourself. For each claim, this page lists the command
that checks it, the measured figure, and what the check does not show. `tools/trust.py` renders the page from
[bench/results](../bench/results).

- **"passes or fails"**: the claim has tests and no figure. The tests in `interop` need Java.
- **"not recorded"**: the result does not contain the date or the commit.
- [Guarantees](guarantees.md) has the conditions of each promise, and [Measurements](measurements.md#conditions) the
  conditions of each run.
""",
    titles=("Claims of the README", "Guarantees"),
    columns=("claim", "figure", "command", "date, commit", "not shown"),
    text="text",
    missing="missing",
    each_change="passes or fails",
    not_measured="not measured",
    not_recorded="not recorded",
    without_service="producers without service: {most:.1f} s at most, median {median:.1f} s, {rounds} rounds",
)
CHINESE = Language(
    page=ROOT / "docs" / "zh" / "trust.md",
    readme=ROOT / "README.zh-CN.md",
    guarantees=ROOT / "docs" / "zh" / "guarantees.md",
    introduction="""# 可信程度

README 和[保证](guarantees.md)中的每一项说法都可以自行验证。本页列出其命令、数值以及没有证明的内容，
由 `tools/trust.py` 根据 [bench/results](../../bench/results) 生成。

- **“通过或失败”**：该说法有测试，没有数值。`interop` 中的测试需要 Java。
- **“未记录”**：结果中没有日期或提交。
- 每项保证的条件见[保证](guarantees.md)，每次运行的条件见[测量结果](../measurements.md#conditions)。
""",
    titles=("README 的说法", "保证"),
    columns=("说法", "数值", "命令", "日期、提交", "没有证明的内容"),
    text="zh",
    missing="missing_zh",
    each_change="通过或失败",
    not_measured="未测量",
    not_recorded="未记录",
    without_service="生产者没有服务的时间：最长 {most:.1f} 秒，中位数 {median:.1f} 秒，{rounds} 轮",
)


def claims() -> list[Claim]:
    """Returns all claims."""
    found: list[Claim] = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"]
    return found


def promises(page: Path) -> list[str]:
    """Returns the first cell of each row of the page's tables, without the table of tests at its end."""
    tables = page.read_text(encoding="utf-8").split("\n\n")
    rows = [table.splitlines()[2:] for table in tables if table.startswith("|")]
    return [re.split(r" \| ", row[2:])[0] for each in rows[:-1] for row in each]


def page(language: Language) -> str:
    """Returns the whole page in this language."""
    translated = dict(zip(promises(ENGLISH.guarantees), promises(language.guarantees), strict=True))
    # The links of a README are relative to another directory.
    readme = [
        _row(each, re.sub(r"\[(.*?)\]\(.*?\)", r"\1", each[language.text]), language)
        for each in claims()
        if "text" in each
    ]
    promised = [_row(each, translated[each["row"]], language) for each in claims() if "row" in each]
    parts = [language.introduction]
    for title, rows in zip(language.titles, (readme, promised), strict=True):
        parts += [f"## {title}\n", measurements.table(language.columns, rows)]
    return "\n".join(parts)


def _row(claim: Claim, text: str, language: Language) -> list[str]:
    figure, command, origin = evidence(claim, language)
    return [text, figure, command and f"`{command}`", origin, claim[language.missing]]


def evidence(claim: Claim, language: Language) -> tuple[str, str, str]:
    """Returns the figure, the command, and the date and commit. Raises LookupError or OSError if they do not exist."""
    if "tests" in claim:
        return language.each_change, f"./dev test {' '.join(claim['tests'])}", ""
    if "result" not in claim:
        if not claim.get("unproven"):
            raise LookupError(f"{_name(claim)}: it has neither tests nor a result, and is not marked as unproven")
        return language.not_measured, "", ""
    result = json.loads((measurements.RESULTS / claim["result"]).read_text(encoding="utf-8"))
    if "fault" in claim:
        rounds = [each for each in result["rounds"] if each["fault"] == claim["fault"]]
        if not rounds:
            raise LookupError(f"{_name(claim)}: {claim['result']} has no fault {claim['fault']!r}")
        times = [each["silent_s"] for each in rounds]
        figure = language.without_service.format(most=max(times), median=statistics.median(times), rounds=len(times))
        commits = ", ".join(dict.fromkeys(each["commit"] for each in rounds))
        return figure, _runnable(result["program"]), f"{result['date']}, {commits}"
    run = next((each for each in measurements.runs_of("", result) if each["name"] == claim["run"]), None)
    if run is None:
        raise LookupError(f"{_name(claim)}: {claim['result']} has no run {claim['run']!r}")
    figure = "; ".join(_figure(run, row, column) for row, column in claim["cells"])
    recorded = " ".join(part for part in (run["program"], run.get("options")) if part)
    command = claim.get("command") or _runnable(recorded)
    origin = ", ".join(str(part) for part in (run["date"], run["commit"]) if part)
    return figure, command, origin or language.not_recorded


def _name(claim: Claim) -> str:
    return str(claim.get("text") or claim.get("row"))


def _runnable(program: str) -> str:
    """Returns the command that runs this program of bench/."""
    if program.startswith("./dev "):
        return program
    name = "bench/run.py"
    return program.replace(name, "./dev bench", 1) if program.startswith(name) else f".venv/bin/python {program}"


def _figure(run: measurements.Json, row: str, column: str) -> str:
    cells = next((each for each in run["rows"] if str(each[0]).replace(goals.UNSTEADY, "") == row), None)
    if cells is None or column not in run["columns"]:
        raise LookupError(f"run {run['name']!r} has no cell {row!r}, {column!r}")
    value = cells[run["columns"].index(column)]
    text = measurements.cell(value)
    if isinstance(value, str):
        return text
    return f"{row}: {text}" if column == "figure" else f"{row}, {column}: {text}"


def main() -> None:
    for language in (ENGLISH, CHINESE):
        language.page.write_text(page(language), encoding="utf-8")
        print(language.page.relative_to(ROOT))


if __name__ == "__main__":
    main()
