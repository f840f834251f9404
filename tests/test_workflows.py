"""Tests that the workflows run commands of ./dev and pinned actions, and that actionlint accepts them."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="the sdist has no workflows")


def load(path: Path) -> dict[str, Any]:
    # YAML 1.1 reads the key `on` as True.
    loaded: dict[str, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    return loaded


def steps() -> list[Any]:
    return [
        pytest.param(step, id=f"{path.stem}-{name}-{number}")
        for path in WORKFLOWS
        for name, job in load(path)["jobs"].items()
        for number, step in enumerate(job.get("steps", []))
    ]


def test_there_are_all() -> None:
    assert {path.stem for path in WORKFLOWS} == {"dependencies", "docs", "interop", "release", "tests", "wheels"}


@pytest.mark.parametrize("step", steps())
def test_a_step_runs_a_command_of_dev_or_a_pinned_action(step: dict[str, Any]) -> None:
    if "uses" in step:
        assert re.fullmatch(r"[\w-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])
        return
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, timeout=60, check=True).stdout
    (line,) = step["run"].strip().splitlines()
    program, command, *_ = line.split()
    assert program == "./dev"
    assert re.search(rf"^  {command}\b", usage, re.MULTILINE), f"./dev has no command {command}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_can_write_only_where_a_job_asks_for_it(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    writing = {
        name: job["permissions"] for name, job in workflow["jobs"].items() if "write" in str(job.get("permissions"))
    }
    expected = {"tag": {"contents": "write"}, "publish": {"id-token": "write"}} if path.stem == "release" else {}
    assert writing == expected


def test_every_supported_python_is_tested() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    supported = [text.rpartition(" ")[2] for text in classifiers if "Python :: 3." in text]
    (tests,) = [path for path in WORKFLOWS if path.stem == "tests"]
    assert load(tests)["jobs"]["linux"]["strategy"]["matrix"]["python"] == supported


def test_dependabot_reads_directories_that_exist() -> None:
    updates = load(ROOT / ".github" / "dependabot.yml")["updates"]
    assert [update["package-ecosystem"] for update in updates] == ["github-actions", "cargo", "docker"]
    assert all((ROOT / update["directory"].lstrip("/")).is_dir() for update in updates)


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_accepts_the_workflows() -> None:
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
