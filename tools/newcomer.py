"""Measures the time of a newcomer's first steps: installation, first message, first test and first Spark row.

    python tools/newcomer.py            # a new virtual environment, from this checkout; needs a package index
    python tools/newcomer.py --spark    # Spark, too (Java comes from a wheel where the machine has none)
    python tools/newcomer.py --python .venv/bin/python    # an environment that is there: nothing is installed

It runs the code examples of the site's home page (docs/index.md) unchanged, except for the ports of the cluster that
`gantry up` starts. The exit code is 1 if a step fails or exceeds its time limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from code_blocks import code_blocks

ROOT = Path(__file__).parent.parent
ADDRESS = "127.0.0.1:9876"
#: Time limits of the steps, in seconds from the start, including the installation.
FIRST_MESSAGE_S, FIRST_TEST_S, FIRST_ROW_S = 60, 120, 240
#: A command that takes longer fails.
STEP_TIMEOUT_S = 300


class Step(NamedTuple):
    """A finished step. `at_s` is the time from the start to its end, and `limit_s` its limit (0: none)."""

    name: str
    at_s: float
    limit_s: int = 0


class Walk:
    """Runs the steps one after the other in `directory`."""

    def __init__(self, directory: Path, python: Path | None, *, spark: bool) -> None:
        self.steps: list[Step] = []
        self._directory = directory
        self._given = python
        self._python = python or directory / "env" / "bin" / "python"
        self._spark = spark
        self._began = time.monotonic()

    def walk(self) -> None:
        """Runs all steps. Raises RuntimeError or SubprocessError if one fails."""
        if self._given is None:
            venv.create(self._directory / "env", with_pip=True)
            self._install(str(ROOT))
            self._done("installed")
        with self._cluster() as address:
            self._done("a cluster runs")
            self._run_until_line(self._code("await producer.send(", address), "broker-")
            self._run_until_line(self._code("PushConsumer(", address), "greeting-")
            self._done("first message received", FIRST_MESSAGE_S)
            if self._given is None:
                self._install("pytest")
            test = self._directory / "test_first.py"
            test.write_text(self._block("def test_an_order_is_sent"))
            self._run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))
            self._done("first test passed", FIRST_TEST_S)
            if self._spark:
                if self._given is None:
                    self._install(f"{ROOT}[spark{'' if _has_java() else ',jdk'}]")
                self._run_until_line(self._code("spark.read.", address), "hello")
                self._done("first row of Spark", FIRST_ROW_S)

    def _done(self, name: str, limit_s: int = 0) -> None:
        self.steps.append(Step(name, time.monotonic() - self._began, limit_s))
        print(f"{self.steps[-1].at_s:6.1f} s  {name}", file=sys.stderr, flush=True)

    def _install(self, *packages: str) -> None:
        self._run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)

    def _run(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._python), *arguments],
            cwd=self._directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=STEP_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")

    def _run_until_line(self, code: str, expected: str) -> None:
        """Runs code until its output has a line with `expected`. Raises RuntimeError if the output ends first."""
        script = self._directory / "first.py"
        script.write_text(code)
        log = self._directory / "first.log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [str(self._python), "-u", str(script)], cwd=self._directory, stdout=subprocess.PIPE, stderr=errors
            )
        try:
            assert process.stdout is not None
            if not any(expected.encode() in line for line in process.stdout):
                raise RuntimeError(f"no {expected!r} came of\n{code}\n{log.read_text()}")
        finally:
            process.terminate()
            process.communicate()

    @contextmanager
    def _cluster(self) -> Iterator[str]:
        """Runs `gantry up --brokers 2` on free ports, and yields the address of the NameServer."""
        process = subprocess.Popen(
            [str(self._python), "-m", "gantrymq.cli", "up", "--brokers", "2", "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                found = re.match(r"ready: NameServer at (\S+);", line)
                if found:
                    break
            else:
                raise RuntimeError("gantry up did not start")
            yield found[1]
        finally:
            process.terminate()
            process.communicate(timeout=60)

    def _code(self, part: str, address: str) -> str:
        return self._block(part).replace(ADDRESS, address)

    def _block(self, part: str) -> str:
        """Returns the first Python example of the home page that contains `part`."""
        text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
        return next(block for block in code_blocks(text, "python") if part in block)


def _has_java() -> bool:
    return "JAVA_HOME" in os.environ or shutil.which("java") is not None


def main() -> int:
    parser = argparse.ArgumentParser(description="A newcomer's path, timed.")
    parser.add_argument("--python", type=Path, help="an environment that is there; without it a new one is made")
    parser.add_argument("--spark", action="store_true", help="the first row of Spark, too")
    parser.add_argument("--no-limits", action="store_true", help="a step may take longer than its time limit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as directory:
        python = options.python.absolute() if options.python else None
        path = Walk(Path(directory), python, spark=options.spark)
        try:
            path.walk()
        except (RuntimeError, subprocess.SubprocessError) as e:
            print(e, file=sys.stderr)
            return 1
    print(json.dumps([step._asdict() for step in path.steps], indent=2))
    late = [step for step in path.steps if step.limit_s and step.at_s > step.limit_s and not options.no_limits]
    for step in late:
        print(f"{step.name} after {step.at_s:.0f} s: more than {step.limit_s}", file=sys.stderr)
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
