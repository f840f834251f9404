"""Tests that a build of native/ without a toolchain says what it needs, and downloads nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parent.parent / "native"
HOOKS = ("get_requires_for_build_wheel", "prepare_metadata_for_build_wheel", "build_wheel", "build_sdist")

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("maturin") is None, reason="maturin builds gantrymq-native"),
    pytest.mark.skipif(not NATIVE.is_dir(), reason="the sdist has no native/"),
    pytest.mark.skipif(sys.platform == "win32", reason="the test's programs are shell scripts"),
]


def run_hook(
    hook: str, directory: Path, programs: dict[str, str], variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Calls a hook of the backend with a PATH that has only the given shell scripts."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    for name, script in programs.items():
        (bin_directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_directory / name).chmod(0o755)
    code = (
        f"import backend; print('requires', backend.{hook}({'' if hook.startswith('get') else repr(str(directory))}))"
    )
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("CC", "HOST_CC", "TARGET_CC"))
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=NATIVE,
        env={**environment, "PATH": str(bin_directory), "PYTHONDONTWRITEBYTECODE": "1", **(variables or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("hook", HOOKS)
def test_no_cargo(hook: str, tmp_path: Path) -> None:
    done = run_hook(hook, tmp_path, {"cc": "exit 0"})
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(
        "gantrymq-native is built from source here, which needs cargo 1.85 or later and a C compiler"
    )
    assert "(found: no cargo on PATH)" in sentence


@pytest.mark.parametrize(
    ("programs", "cause"),
    [
        ({"cargo": "echo cargo 1.84.1 '(abc 2026-01-01)'", "cc": "exit 0"}, "cargo 1.84"),
        ({"cargo": "echo error: rustup has no toolchain >&2; exit 1", "cc": "exit 0"}, "no cargo on PATH"),
        ({"cargo": "echo cargo 1.85.0"}, "no C compiler on PATH"),
    ],
)
def test_tools_that_are_not_enough(programs: dict[str, str], cause: str, tmp_path: Path) -> None:
    done = run_hook(HOOKS[0], tmp_path, programs)
    assert done.returncode == 1
    assert f"(found: {cause})" in done.stderr


def test_no_download_is_required(tmp_path: Path) -> None:
    done = run_hook(HOOKS[0], tmp_path, {"cargo": "echo cargo 1.90.0", "cc": "exit 0"})
    assert done.stdout == "requires []\n", done.stderr


@pytest.mark.parametrize(
    ("variable", "is_compiler"),
    [
        ("CC", True),
        ("HOST_CC", True),
        ("TARGET_CC", True),
        ("CC_x86_64_unknown_linux_musl", True),
        ("CCACHE_DIR", False),
    ],
)
def test_a_variable_with_the_compiler(variable: str, is_compiler: bool, tmp_path: Path) -> None:
    done = run_hook(HOOKS[0], tmp_path, {"cargo": "echo cargo 1.90.0"}, {variable: "/opt/bin/cc"})
    assert ("no C compiler on PATH" not in done.stderr) is is_compiler
    assert (done.returncode == 0) is is_compiler
