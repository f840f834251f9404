"""The build backend: maturin's hooks, after a check that the tools for a build are installed.

Without cargo, maturin would download a Rust toolchain (puccinialin). This module ends the build with one sentence
instead, in whichever hook a build starts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from maturin import (  # type: ignore[import-untyped,unused-ignore]
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def check_tools() -> None:
    """Ends the process with one sentence if cargo is missing or too old, or if there is no C compiler."""
    needed = tomllib.loads((Path(__file__).parent / "Cargo.toml").read_text(encoding="utf-8"))["package"][
        "rust-version"
    ]
    found = _cargo_version()
    if found is None:
        cause = "no cargo on PATH"
    elif found < tuple(int(part) for part in needed.split(".")):
        cause = f"cargo {'.'.join(map(str, found))}"
    elif not _has_c_compiler():
        cause = "no C compiler on PATH"
    else:
        return
    sys.exit(
        f"gantrymq-native is built from source here, which needs cargo {needed} or later and a C compiler "
        f"(found: {cause}): install them, or use gantrymq without the extra 'native', which only makes it faster"
    )


def _cargo_version() -> tuple[int, int] | None:
    try:
        done = subprocess.run(["cargo", "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"cargo (\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else None


def _has_c_compiler() -> bool:
    if sys.platform == "win32":
        # The MSVC tools are not on PATH; the cc crate finds them in the registry.
        return True
    return any(shutil.which(name) for name in ("cc", "gcc", "clang")) or any(
        name in ("CC", "HOST_CC", "TARGET_CC") or name.startswith("CC_") for name in os.environ
    )


check_tools()
