"""Reads the output of RunClass, which runs the JUnit tests of one class."""

from __future__ import annotations

import json

#: The tests of a class: the lines of RunClass.
Tests = list[dict[str, str]]


def tests_of(output: str, exit_code: int) -> Tests:
    """Returns the tests. Raises ValueError if the JVM ended before the last test, or if the class has no tests."""
    lines = [json.loads(line) for line in output.splitlines() if line.startswith(('{"name":', '{"tests":'))]
    if exit_code or not lines or lines.pop() != {"tests": len(lines)} or not lines:
        raise ValueError(f"the JVM ended with exit code {exit_code} and has not printed the results of all tests")
    return lines
