"""Makes an environment for the examples whose libraries requirements.lock does not have.

    python tools/example_environments.py examples/outbox/requirements.txt

prints the interpreter of an environment with these requirements and this checkout. The environments are in
`~/.cache/gantrymq/examples`, or in the directory that `GANTRY_EXAMPLE_ENVIRONMENTS` names.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


class EnvironmentUnavailable(Exception):
    """The registry does not serve a package, or cannot be reached."""


def environment(requirements: Path) -> Path:
    """Returns the interpreter of the environment for a requirements file. Makes it if it does not exist.

    Raises:
        EnvironmentUnavailable: The packages cannot be installed.
    """
    inputs = [
        str(ROOT).encode(),
        sys.version.encode(),
        requirements.read_bytes(),
        (ROOT / "pyproject.toml").read_bytes(),
    ]
    key = hashlib.sha256(b"\0".join(inputs)).hexdigest()[:16]
    home = Path(os.environ.get("GANTRY_EXAMPLE_ENVIRONMENTS") or Path.home() / ".cache" / "gantrymq" / "examples") / key
    python, done = home / "bin" / "python", home / "done"
    home.mkdir(parents=True, exist_ok=True)
    # Test processes that run at the same time use the same environment.
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _run("venv", "--quiet", "--allow-existing", "--python", sys.executable, home)
            _run("pip", "install", "--quiet", "--python", python, "-r", requirements, "--editable", ROOT)
            done.touch()
    return python


def _run(*arguments: str | Path) -> None:
    command = [Path(sys.executable).parent / "uv", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise EnvironmentUnavailable(result.stderr.strip())


if __name__ == "__main__":
    print(environment(Path(sys.argv[1])))
