"""Checkouts of other commits, each with a virtual environment, to compare a change with the commit before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Checkouts stay here, one directory per commit, because native code takes minutes to build.
CHECKOUTS = ROOT / "bench" / "target" / "checkouts"


def checkout(commit: str) -> Path:
    """Returns the directory of a checkout of `commit`, and makes it if it is missing. Raises RuntimeError.

    Its `.venv` has the commit's own gantrymq and native code, and the other packages of this interpreter.
    """
    sha = _output("git", "rev-parse", "--verify", "--short", f"{commit}^{{commit}}")
    directory = CHECKOUTS / sha
    if not directory.exists():
        CHECKOUTS.mkdir(parents=True, exist_ok=True)
        _output("git", "worktree", "prune")
        _output("git", "worktree", "add", "--detach", str(directory), sha)
    if not python_of(directory).exists():
        _make_environment(directory)
    _output(str(directory / "native" / "build"), str(directory / ".venv"))
    _check_imports(directory)
    return directory


def python_of(directory: Path) -> Path:
    """Returns the interpreter of a checkout."""
    return directory / ".venv" / "bin" / "python"


def import_path_of(directory: Path) -> str:
    """Returns the value of PYTHONPATH with which another interpreter uses the code of a checkout."""
    site_packages = next((directory / ".venv").glob("lib/python3.*/site-packages"))
    return os.pathsep.join([str(directory / "src"), str(site_packages)])


def _make_environment(directory: Path) -> None:
    venv = directory / ".venv"
    _output(sys.executable, "-m", "venv", "--without-pip", str(venv))
    site_packages = next(venv.glob("lib/python3.*/site-packages"))
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "checkout.pth").write_text("\n".join([str(directory / "src"), *packages]) + "\n")
    # native/build needs maturin and pip; pip is found through the .pth file.
    (venv / "bin" / "maturin").symlink_to(Path(sys.executable).parent / "maturin")


def _check_imports(directory: Path) -> None:
    """Raises RuntimeError if the checkout uses code of another commit."""
    program = (
        "import gantrymq; from gantrymq.kernels import native; print(gantrymq.__file__, native and native.__file__)"
    )
    package, _, native = _output(str(python_of(directory)), "-c", program).partition(" ")
    if not package.startswith(str(directory)) or not native.startswith((str(directory), "None")):
        raise RuntimeError(f"{directory} uses other code: {package}, native code {native}")


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout.strip()
