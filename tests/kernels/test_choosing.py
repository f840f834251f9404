"""Tests when native code is used, and that a failed build of it does not prevent anything else.

Native code is used if it is installed, has a matching interface and is not switched off.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gantrymq.kernels import native
from gantrymq.kernels.interface import INTERFACE

NATIVE = Path(__file__).parent.parent.parent / "native"
needs_sources = pytest.mark.skipif(not (NATIVE / "build").exists(), reason="the sources of gantrymq-native aren't here")


def chosen(*path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Starts a Python with these directories first on its path and prints the native module that it loads."""
    code = f"import sys; sys.path[:0] = {[str(p) for p in path]}; from gantrymq.kernels import native; print(native)"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


@pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")
def test_native_is_chosen() -> None:
    assert "gantrymq_native" in chosen(GANTRYMQ_NATIVE="1").stdout


def test_native_can_be_switched_off() -> None:
    assert chosen(GANTRYMQ_NATIVE="0").stdout == "None\n"


def test_one_of_another_interface_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "gantrymq_native.py").write_text("INTERFACE = 0\n")
    done = chosen(tmp_path, GANTRYMQ_NATIVE="1")
    assert done.stdout == "None\n"
    assert "its interface is 0" in done.stderr


def test_one_that_does_not_load_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "gantrymq_native.py").write_text("raise ImportError('wrong ELF class')\n")
    assert chosen(tmp_path, GANTRYMQ_NATIVE="1").stdout == "None\n"


@needs_sources
def test_what_is_published_together_says_the_same() -> None:
    cargo, project, ours = (
        tomllib.loads(path.read_text())
        for path in (NATIVE / "Cargo.toml", NATIVE / "pyproject.toml", NATIVE.parent / "pyproject.toml")
    )
    version = cargo["package"]["version"]
    assert project["project"]["version"] == version
    assert ours["project"]["optional-dependencies"]["native"] == [f"gantrymq-native=={version}"]
    assert f"INTERFACE: u32 = {INTERFACE};" in (NATIVE / "src/python/mod.rs").read_text()
    wanted = [spec["version"] if isinstance(spec, dict) else spec for spec in cargo["dependencies"].values()]
    assert all(re.fullmatch(r"=[0-9.]+", text) for text in wanted), "no Cargo.lock is kept: versions are exact ones"


def build(tmp_path: Path, cargo: str | None, maturin: str = "exit 1") -> str:
    """Returns the output of `native/build` with these scripts as cargo and maturin."""
    sources, programs, venv = tmp_path / "native", tmp_path / "programs", tmp_path / "venv"
    if not sources.exists():
        shutil.copytree(NATIVE, sources, ignore=shutil.ignore_patterns("target"))
        programs.mkdir()
        (venv / "bin").mkdir(parents=True)
    for path, script in ((programs / "cargo", cargo), (venv / "bin/maturin", maturin), (venv / "bin/python", "exit 1")):
        path.unlink(missing_ok=True)
        if script is not None:
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
    done = subprocess.run(
        [sources / "build", "venv"],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr


@needs_sources
def test_an_old_cargo_is_named_and_left_alone(tmp_path: Path) -> None:
    said = build(tmp_path, "echo cargo 1.63.0", maturin="touch built")
    assert f"{tmp_path}/programs/cargo is of version 1.63.0, and 1.85 is needed" in said
    assert not (tmp_path / "native/built").exists()


@needs_sources
def test_without_a_cargo_nothing_fails_and_it_is_said_once(tmp_path: Path) -> None:
    # rustup's own cargo fails like this if no toolchain is installed.
    assert "no cargo on PATH" in build(tmp_path, "exit 1")
    assert build(tmp_path, "exit 1") == ""


@needs_sources
def test_what_can_not_be_built_is_said_once_and_tried_with_the_next_cargo(tmp_path: Path) -> None:
    assert "maturin failed" in build(tmp_path, "echo cargo 1.85.0")
    assert build(tmp_path, "echo cargo 1.85.0") == ""
    assert "maturin failed" in build(tmp_path, "echo cargo 2.0.1")
