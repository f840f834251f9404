"""Tests the table of complete test runs in docs/testing.md, and the tool that writes it."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import complete_runs
    finally:
        sys.path.pop(0)
    return complete_runs


def test_the_pages_equal_the_data(tool: ModuleType) -> None:
    runs = json.loads(tool.RESULTS.read_text())["runs"]
    assert runs
    for page, (columns, failed_tests) in tool.PAGES.items():
        text = page.read_text(encoding="utf-8")
        assert text == tool.with_table(text, tool.rendered(runs, columns, failed_tests)), page


def test_a_report_is_counted(tool: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "out.xml"
    report.write_text(
        '<testsuites><testsuite time="125.0" timestamp="2026-01-02T03:04:05+00:00">'
        '<testcase classname="tests.test_a" name="test_one"/>'
        '<testcase classname="tests.test_a" name="test_two"><failure/></testcase>'
        '<testcase classname="tests.test_a" name="test_three"><error/></testcase>'
        '<testcase classname="tests.test_a" name="test_four"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    run = tool.read_run([report])
    assert (run["passed"], run["skipped"], run["failed"]) == (1, 1, 2)
    assert run["failures"] == ["tests.test_a::test_two", "tests.test_a::test_three"]
    assert (run["minutes"], run["date"], run["python"]) == (2, "2026-01-02", platform.python_version())
    text = tool.rendered([run], tool.PAGES[ROOT / "docs" / "testing.md"][0], "Failed tests")
    assert f"- {platform.python_version()}: `tests.test_a::test_three`" in text


def test_the_last_result_of_a_test_counts(tool: ModuleType, tmp_path: Path) -> None:
    reports = [tmp_path / "whole.xml", tmp_path / "again.xml"]
    for report, failure in zip(reports, ("<failure/>", ""), strict=True):
        case = f'<testcase classname="tests.test_a" name="test_one">{failure}</testcase>'
        report.write_text(f'<testsuites><testsuite time="60" timestamp="2026-01-02">{case}</testsuite></testsuites>')
    run = tool.read_run(reports)
    assert (run["passed"], run["failed"], run["failures"], run["minutes"]) == (1, 0, [], 2)


def test_a_report_without_tests_is_refused(tool: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "out.xml"
    report.write_text('<testsuites><testsuite time="1" timestamp="2026-01-02"/></testsuites>')
    with pytest.raises(ValueError, match="has no tests"):
        tool.read_run([report])


def test_a_run_replaces_that_of_the_same_minor_version(tool: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    for version in ("3.12.1", "3.9.2", "3.12.4"):
        tool.add_run(path, {"python": version})
    assert [run["python"] for run in json.loads(path.read_text())["runs"]] == ["3.9.2", "3.12.4"]
