"""Runs the cluster examples of docs/spark/operations.md: their commands, an environment to ship, a small cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import distribution
from pathlib import Path

import pyspark
from packaging.requirements import Requirement
from spark_java import VARIABLES
from wait_until import wait_until

from gantrymq.spark.session import java_home

ROOT = Path(__file__).parent.parent.parent
SPARK_HOME = Path(pyspark.__file__).parent
START_S = 120
END_S = 20
#: The placeholder for the program in the documented commands.
PROGRAM = "lake_ingest.py --topic orders ..."


def documented_command(heading: str, replaced: Mapping[str, str], first: str = "export ") -> str:
    """Returns the shell command under `**heading.**`, from `first` on, with replacements.

    Fails if the command does not contain each key of `replaced`.
    """
    section = (ROOT / "docs" / "spark" / "operations.md").read_text().split(f"**{heading}.**")[1].split("**")[0]
    block = "\n".join(re.findall(r"^    (.*)$", section, re.MULTILINE))
    command = block[block.index(first) :]
    for old, new in replaced.items():
        assert old in command, f"{old} is not in: {command}"
        command = command.replace(old, new)
    return command


def lake_ingest(name_server: str, topic: str, directory: Path) -> str:
    """Returns the program of the documented commands with its arguments. It writes the table `directory`/table."""
    program = ROOT / "examples" / "pipelines" / "lake_ingest.py"
    where = f"--out {directory / 'table'} --checkpoint {directory / 'checkpoint'}"
    return f"{program} --name-server {name_server} --topic {topic} {where} --once"


def pack_environment(directory: Path) -> None:
    """Creates `directory`/environment and packs it into environment.tar.gz.

    Its Python imports the packages of this process from their original location.
    """
    home = make_environment(directory, sysconfig.get_path("purelib"), ROOT / "src")
    with tarfile.open(directory / "environment.tar.gz", "w:gz") as archive:
        archive.add(home, ".")


def install_environment(directory: Path) -> None:
    """Creates `directory`/environment with the package's wheel and copies of the dependencies of gantrymq[spark].

    The result is like that of pip, except that Spark's jars are links.
    """
    home = make_environment(directory)
    (packages,) = home.glob("lib/python*/site-packages")
    wheels = directory / "wheels"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=START_S)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    source = Path(sysconfig.get_path("purelib"))
    for name in needed_packages("gantrymq", {"spark"}):
        for file in distribution(name).files or []:
            is_part = not file.parts[0].startswith("..") and "__pycache__" not in file.parts
            if not is_part or file.parts[:2] == ("pyspark", "jars"):
                continue
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, target)
    (packages / "pyspark" / "jars").symlink_to(SPARK_HOME / "jars")
    for script in (packages / "pyspark" / "bin").iterdir():
        script.chmod(0o755)


def needed_packages(name: str, extras: set[str]) -> set[str]:
    """Returns the package's dependencies with these extras, direct and indirect."""
    found: set[str] = set()

    def look(name: str, extras: set[str]) -> None:
        for text in distribution(name).requires or []:
            needed = Requirement(text)
            is_needed = needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in extras or {""}
            )
            if is_needed and needed.name not in found:
                found.add(needed.name)
                look(needed.name, needed.extras)

    look(name, extras)
    return found


def make_environment(directory: Path, *paths: str | Path) -> Path:
    """Creates `directory`/environment, whose Python finds packages in `paths`, but no editable ones of this process."""
    home = directory / "environment"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text("".join(f"{path}\n" for path in paths))
    for script in ("bin/spark-submit", "bin/find-spark-home", "find_spark_home.py"):
        (home / "bin" / Path(script).name).symlink_to(SPARK_HOME / script)
    return home


def environment(**more: str) -> dict[str, str]:
    """Returns a user's shell variables, without those of Spark that a session in this process may have set."""
    of_spark = ("SPARK_", "PYSPARK_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(of_spark)}
    return own | VARIABLES | {"JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"} | more


@contextmanager
def started(
    command: Sequence[str | Path], ready: str, log: Path, variables: Mapping[str, str]
) -> Iterator[re.Match[str]]:
    """Runs a process until the block ends, then stops it with all its children.

    Yields the match of the regular expression `ready` in its log.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:

        def is_ready() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()[-4000:]
            return re.search(ready, log.read_text())

        yield wait_until(is_ready, START_S)
    finally:
        _end(process)


def run(command: Sequence[str | Path], directory: Path, variables: Mapping[str, str], timeout_s: float) -> str:
    """Runs a command that must succeed, and returns its output."""
    log = directory / "command.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=directory, env=variables, stdout=output, stderr=output, start_new_session=True
        )
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        code = None
        _end(process)
    printed = log.read_text()
    assert code == 0, f"{code or 'not ended'}: {printed[-6000:]}"
    return printed


def _end(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM first, so that the process stops executors and containers, which have their own sessions."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def gantry(*arguments: str) -> list[str | Path]:
    return [sys.executable, "-m", "gantrymq.cli", *arguments]
