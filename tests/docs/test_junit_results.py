"""The results of Apache's integration tests count only if the JVM has run all tests of a class."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

ONE = '{"name":"testOne","state":"passed","reason":""}\n'
TWO = '{"name":"testTwo","state":"failed","reason":"no"}\n'
END = '{"tests":2}\n'


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "interop"))
    import junit_results

    return junit_results


def test_the_tests_of_a_class(results: ModuleType) -> None:
    found = results.tests_of(f"a line of a library\n{ONE}{TWO}{END}", 0)
    assert [(test["name"], test["state"]) for test in found] == [("testOne", "passed"), ("testTwo", "failed")]


@pytest.mark.parametrize(
    ("output", "exit_code"),
    [("", 0), (ONE, 0), (ONE + TWO, 0), (ONE + END, 0), (ONE + TWO + END, 137), ('{"tests":0}\n', 0)],
    ids=["nothing", "one test", "no last line", "a lost line", "exit code", "no tests"],
)
def test_a_run_that_ended_early_is_an_error(output: str, exit_code: int, results: ModuleType) -> None:
    with pytest.raises(ValueError, match="has not printed the results of all tests"):
        results.tests_of(output, exit_code)
