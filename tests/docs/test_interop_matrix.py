"""Tests that each module of interop/ declares its coverage, and that docs/compatibility.md has the results."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
INTEROP = ROOT / "interop"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for directory in ("tools", "interop"):
        monkeypatch.syspath_prepend(str(ROOT / directory))
    import interop_matrix

    return interop_matrix


@pytest.fixture
def coverage(tool: ModuleType) -> ModuleType:
    import coverage_matrix

    return coverage_matrix


def test_the_readme_lists_each_module() -> None:
    rows = [
        line.split("`")[1] for line in (INTEROP / "README.md").read_text().splitlines() if line.startswith("| `test_")
    ]
    assert sorted(rows) == sorted(path.name for path in INTEROP.glob("test_*.py"))


def test_the_pages_have_the_results(tool: ModuleType) -> None:
    """If this fails, run ./dev interop --list."""
    results = tool.load()
    for language in (tool.ENGLISH, tool.CHINESE):
        text = language.page.read_text(encoding="utf-8")
        assert text == tool.with_section(text, tool.section(results, language)), language.page


@pytest.mark.parametrize("module", sorted(path.name for path in INTEROP.glob("test_*.py")))
def test_each_module_has_the_marker(module: str, tool: ModuleType) -> None:
    """If the results lack a module, run ./dev interop --list."""
    tree = ast.parse((INTEROP / module).read_text())
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert any("pytest.mark.interop(" in mark for mark in marks), f"{module} has no pytestmark with the marker interop"
    assert module in tool.load()["modules"]


TESTS = """
import pytest

@pytest.mark.interop(feature="TLS", clients="java", servers="{kind}", version="{version}")
@pytest.mark.parametrize("version", ["4.9"])
@pytest.mark.parametrize("kind", ["java-gantry", "java", "java@5.4"])
def test_passes(kind, version): pass

@pytest.mark.interop(feature="TLS", clients="grpc-node", servers="gantry")
class TestClass:
    def test_skips(self): pytest.skip("no Node.js")

    @pytest.mark.interop(feature="POP")
    def test_fails(self): assert False

@pytest.mark.interop(feature="TLS", clients="suite", servers="gantry")
@pytest.mark.parametrize("suite_class", ["a.OneIT"])
def test_suite(suite_class, record_property):
    record_property("parts", {"passed": 2, "failed": 0, "not_run": {"no RocksDB": 1}})
"""


def run(pytester: pytest.Pytester, text: str) -> pytest.RunResult:
    """Runs pytest with this test module and the hooks of interop/."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(text)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    # A second pytest in this process would take over faulthandler, and a later crash would leave no trace.
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:faulthandler", "--matrix=outcomes.json")


def of_conftest(node: ast.stmt) -> bool:
    """Returns whether a statement of interop/conftest.py is an import or a hook."""
    return isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", "").startswith("pytest_")


CONFTEST = "\n".join(map(ast.unparse, filter(of_conftest, ast.parse((INTEROP / "conftest.py").read_text()).body)))


def test_outcomes_by_feature_pair_and_version(tool: ModuleType, pytester: pytest.Pytester) -> None:
    done = run(pytester, TESTS)
    tests = json.loads((pytester.path / "outcomes.json").read_text())
    result = tool.result_of(tests)
    assert done.ret == 1
    assert result["total"] == {"passed": 4, "failed": 1, "not_run": {"no Node.js": 1}}
    assert result["classes"] == [{"name": "a.OneIT", "passed": 2, "failed": 0, "not_run": {"no RocksDB": 1}}]
    assert {tool.case_of(case): (case["passed"], case["failed"], case["not_run"]) for case in result["cases"]} == {
        ("TLS", "java>gantry", "4.9.7"): (1, 0, {}),
        ("TLS", "together", "4.9.7"): (1, 0, {}),
        ("TLS", "control", "4.9.7"): (1, 0, {}),
        ("TLS", "control", "5.4.0"): (1, 0, {}),
        ("TLS", "grpc-node>gantry", "5.5.0"): (0, 0, {"no Node.js": 1}),
        ("POP", "grpc-node>gantry", "5.5.0"): (0, 1, {}),
        ("TLS", "suite>gantry", "5.5.0"): (1, 0, {}),
    }


@pytest.mark.parametrize(
    "marker",
    [
        "",
        "@pytest.mark.interop(feature='TLS')",
        "@pytest.mark.interop(feature='magic', servers='gantry')",
        "@pytest.mark.interop(feature='TLS', servers='gantry', version='3.0')",
        "@pytest.mark.interop(feature='TLS', servers='{cluster}')",
        "@pytest.mark.interop(feature='TLS', servers='kafka')",
    ],
)
def test_a_test_without_a_valid_marker_is_not_collected(
    marker: str, coverage: ModuleType, pytester: pytest.Pytester
) -> None:
    done = run(pytester, f"import pytest\n{marker}\ndef test_it(): pass\n")
    assert done.ret == 4
    assert "the marker 'interop'" in str(done.stderr)


def test_pairs(coverage: ModuleType) -> None:
    assert coverage.pairs_of(["java", "gantry"], ["gantry"]) == ("java>gantry", "gantry>gantry")
    assert coverage.pairs_of(["java", "gantry"], ["java"]) == ("gantry>java",)
    assert coverage.pairs_of([], ["gantry", "java"]) == ("together",)
    assert coverage.pairs_of([], ["gantry"]) == ("gantry>gantry",)
    assert coverage.pairs_of(["java"], ["java"]) == ("control",)


def case(passed: int = 0, failed: int = 0, **not_run: int) -> dict[str, object]:
    counts = {"passed": passed, "failed": failed, "not_run": not_run}
    return {"feature": "TLS", "pair": "java>gantry", "version": "5.5.0", **counts}


def test_a_part_keeps_its_commit_and_new_cases_have_not_run(tool: ModuleType) -> None:
    origin = {"commit": "abc", "date": "2026-01-02", "machine": {}, "versions": {"java": "17"}}
    known = {"total": {"passed": 3, "failed": 0, "not_run": {}}, "cases": [case(3)], "conditions": origin}
    test = {"feature": "TLS", "pairs": ["java>gantry", "control"], "version": "5.5.0", "state": "not run"}
    collected = {name: [test | {"reason": tool.NEVER_RUN}] for name in ("test_a.py", "test_b.py")}
    results = tool.merged_declared({"modules": {"test_a.py": known, "test_gone.py": known}}, collected)
    assert list(results["modules"]) == ["test_a.py", "test_b.py"]
    rendered = tool.section(results, tool.ENGLISH)
    # The new case, the new module, and the result that was known.
    assert "| TLS | 3 passed, 1 not run | no test |" in rendered
    assert "| TLS | no test | no test | no test | no test | 2 not run |" in rendered
    assert "| `test_a.py` | 3 passed |  | abc | 2026-01-02 |" in rendered
    assert "| `test_b.py` | 1 not run | never run |  |  |" in rendered
    assert "- abc:\n" in rendered


def test_a_new_test_of_a_known_case_has_not_run(tool: ModuleType) -> None:
    counts = {"passed": 1, "failed": 1, "not_run": {"no Rust": 1, tool.NEVER_RUN: 2}}
    known = {"total": counts, "cases": [case() | counts]}
    test = {"feature": "TLS", "pairs": ["java>gantry"], "version": "5.5.0", "state": "not run"}
    for number, never_run in ((6, {tool.NEVER_RUN: 3}), (4, {tool.NEVER_RUN: 1}), (3, {}), (2, {})):
        collected = {"test_a.py": [test | {"reason": tool.NEVER_RUN}] * number}
        module = tool.merged_declared({"modules": {"test_a.py": known}}, collected)["modules"]["test_a.py"]
        assert module["total"] == {"passed": 1, "failed": 1, "not_run": {"no Rust": 1} | never_run}, number
        assert module["cases"] == [case() | module["total"]], number


def test_a_failure_is_in_the_table(tool: ModuleType) -> None:
    module = {"total": {"passed": 1, "failed": 1, "not_run": {"no | Rust": 2}}, "cases": [case(1, 1, x=2)]}
    rendered = tool.section({"modules": {"test_a.py": module}}, tool.CHINESE)
    assert "| TLS | 1 通过, 1 失败, 2 未运行 |" in rendered
    assert r"| `test_a.py` | 1 通过, 1 失败, 2 未运行 | no \| Rust |" in rendered


def test_each_class_of_a_suite_has_a_row(tool: ModuleType) -> None:
    test = {"feature": "TLS", "pairs": ["suite>gantry"], "version": "5.5.0", "state": "passed", "reason": ""}
    tests = [
        test | {"suite_class": "a.OneIT", "parts": {"passed": 3, "failed": 0, "not_run": {"no RocksDB": 2}}},
        test | {"suite_class": "a.TwoIT", "parts": None, "state": "not run", "reason": "static | topics"},
        test | {"suite_class": None, "parts": None},
    ]
    module = tool.result_of(tests)
    assert module["total"] == {"passed": 2, "failed": 0, "not_run": {"static | topics": 1}}
    rendered = tool.section({"modules": {"test_a.py": module}}, tool.ENGLISH)
    assert "| `a.OneIT` | 3 passed, 2 not run | no RocksDB |" in rendered
    assert r"| `a.TwoIT` | 1 not run | static \| topics |" in rendered
    assert "None" not in rendered
    # A new test does not remove the rows.
    again = tool.merged_declared({"modules": {"test_a.py": module}}, {"test_a.py": tests})
    assert again["modules"]["test_a.py"]["classes"] == module["classes"]
