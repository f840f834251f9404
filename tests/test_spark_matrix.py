"""Tests how tools/spark_matrix.py reports results. The runs themselves are started with ./dev spark-matrix."""

from __future__ import annotations

import importlib.util
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_matrix", ROOT / "tools" / "spark_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up in `sys.modules`.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REPORT = """<testsuites><testsuite name="pytest">
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><failure message="no"/></testcase>
<testcase name="d"><error message="no"/></testcase>
<testcase name="e"><skipped message="since 4.1"/></testcase>
<testcase name="f"><skipped message="collection skipped">('/a/test_f.py', 14, 'Skipped: since 4.2')</skipped></testcase>
</testsuite></testsuites>"""


def test_a_report(matrix: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    found = matrix.read_report(tmp_path / "report.xml", 1)
    assert (found.passed, found.failed, found.skipped) == (2, 2, ["since 4.1", "since 4.2"])
    # A run without a report, or with an exit code for an early end, has failed.
    assert matrix.read_report(tmp_path / "none.xml", 0).failed == 1
    assert matrix.read_report(tmp_path / "report.xml", 2).failed == 3


def test_the_table_takes_the_place_of_the_one_before(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "versions.md"
    document.write_text(f"before\n\n{matrix.BEGIN}\nold\n{matrix.END}\n\nafter\n")
    monkeypatch.setattr(matrix, "DOCUMENT", document)
    result = matrix.VersionResult("4.0.5")
    result.files["test_spark_write.py"] = matrix.FileResult(passed=7)
    result.files["test_spark_filters.py"] = matrix.FileResult(skipped=["since 4.1"])
    result.files["test_spark_stream.py"] = matrix.FileResult(passed=2, failed=1)
    result.files["test_of_tomorrow.py"] = matrix.FileResult(passed=1, failed=2, commit="abc1234")
    rest = len(matrix.test_runs().keys() - {name for names in matrix.ROWS.values() for name in names})
    for _ in range(2):
        matrix.write_table({"4.0": result})
        text = document.read_text()
        assert text.startswith(f"before\n\n{matrix.BEGIN}\n| tests of | 4.0.5 |\n")
        assert text.endswith(f"{matrix.END}\n\nafter\n")
        assert "old" not in text
        assert "| write | 7 passed |\n" in text
        assert "| batch read | none: since 4.1 |\n" in text
        assert f"| stream | 2 passed, 1 failed (1 of {len(matrix.ROWS['stream'])} files) |\n" in text
        assert "| write, transactional | not run |\n" in text
        assert f"| everything else | 1 passed, 2 failed (1 of {rest} files) |\n" in text
        assert "- 4.0.5: since 4.1\n" in text
        assert "- 4.0.5: abc1234\n" in text


def test_results_are_kept(matrix: ModuleType, tmp_path: Path) -> None:
    assert matrix.load(tmp_path / "results.json") == {}
    result = matrix.VersionResult("4.0.5", {"test_a.py": matrix.FileResult("hash", "abc1234", 1, 2, ["why"])})
    matrix.save({"4.1": matrix.VersionResult("4.1.4"), "4.0": result}, tmp_path / "results.json")
    found = matrix.load(tmp_path / "results.json")
    assert list(found.items()) == [("4.0", result), ("4.1", matrix.VersionResult("4.1.4"))]


def test_runs_at_the_same_time_lose_no_results(
    matrix: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "HOME", tmp_path / "environments")
    matrix.HOME.mkdir()

    def run(number: int) -> None:
        with matrix.changes(tmp_path / "results.json") as results:
            result = results.setdefault(matrix.VERSIONS[number % 2], matrix.VersionResult())
            result.files[f"test_{number}.py"] = matrix.FileResult(passed=1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(run, range(80)))
    found = matrix.load(tmp_path / "results.json")
    assert [len(result.files) for result in found.values()] == [40, 40]


@pytest.mark.parametrize("page", ["docs/versions.md", "docs/zh/versions.md"])
def test_the_pages_name_the_tested_versions_of_lakes(matrix: ModuleType, page: str) -> None:
    lakes = {(version, lake): name for version, of in matrix.LAKES.items() for lake, name in of.items()}
    text = (ROOT / page).read_text()
    found = {}
    for lake, group in (("delta", "io.delta"), ("iceberg", "org.apache.iceberg")):
        (row,) = re.findall(rf"^\|.*`{group}:.*$", text, re.MULTILINE)
        for version, cell in zip(matrix.VERSIONS, row.split("|")[2:-1], strict=True):
            if "`" in cell:
                found[version, lake] = cell.strip(" `")
    assert found == lakes


def test_the_documented_commands_use_tested_versions_of_lakes(matrix: ModuleType) -> None:
    tested = {name for of in matrix.LAKES.values() for name in of.values()}
    files = [ROOT / "docs" / "spark" / "lakes.md", *(ROOT / "examples").rglob("*.py")]
    used = {name for file in files for name in re.findall(r"--packages (\S+_2\.13:\S+)", file.read_text())}
    assert used
    assert used <= tested


def test_environments_get_the_locked_packages_but_for_spark(matrix: ModuleType) -> None:
    names = {entry.split("==")[0] for entry in matrix.locked_packages()}
    assert {"pyarrow", "numpy", "pytest", "uv", "hatchling"} <= names
    assert not names & {"pyspark", "py4j"}


def test_rows_name_files_that_there_are(matrix: ModuleType) -> None:
    named = {name for names in matrix.ROWS.values() for name in names}
    assert named <= matrix.test_runs().keys()
