"""tools/image_steps.py: it reads a Containerfile, and its steps run. Running them needs root and a package index."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools" / "image_steps.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("image_steps", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stages_and_steps(tool: Any) -> None:
    build, image = tool.stages_of((ROOT / "deploy" / "Containerfile").read_text())
    assert build.name == "build"
    assert build.image == image.image
    assert [step.name for step in build.steps] == ["COPY", "RUN", "COPY", "RUN"]
    of_image = {step.name: step.text for step in image.steps}
    assert of_image["USER"] == "10001"
    assert "healthcheck.py" in of_image["HEALTHCHECK"]
    with pytest.raises(ValueError, match="precedes FROM"):
        tool.stages_of("RUN true")


def test_the_context_has_the_sources_alone(tool: Any) -> None:
    files = {str(path) for path in tool.context_files((ROOT / ".dockerignore").read_text())}
    assert {"pyproject.toml", "deploy/healthcheck.py", "src/gantrymq/cli/main.py"} <= files
    assert not any(path.startswith((".git", "tests", ".venv")) or "__pycache__" in path for path in files)


def can_mount() -> bool:
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    return not subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    ).returncode


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not can_mount(), reason="needs root and the right to mount")
def test_the_steps_run() -> None:
    done = subprocess.run([sys.executable, TOOL], capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all steps of the image have run\n")
