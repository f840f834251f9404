"""Runs the tests of the Spark package on every Spark 4 version, and writes the results to a table in docs/versions.md.

    ./dev spark-matrix               run only changed tests, on every version
    ./dev spark-matrix 4.0 4.2       only these versions
    ./dev spark-matrix --anew 4.3    run everything again
    ./dev spark-matrix --kills       also run the tests that kill a driver with 20 kills

Environments: each version has one under .venv-spark, with the locked packages and the newest patch release of PySpark.
If cargo can build gantrymq-native, the environment has it, too. A client of Spark Connect has a separate environment
with pyspark-client. Lake formats come from Maven Central (mvn must be on PATH). Each format has a separate directory
that only its tests use.

Runs: test files run one after the other, each in its own process. A file that passed does not run again while the
package, the file and the environment are unchanged. A stopped run therefore continues where it stopped.

Results are in tests/spark/matrix_results.json. The table contains all of them and their commits.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".venv-spark"
DOCUMENT = ROOT / "docs" / "versions.md"
RESULTS = ROOT / "tests" / "spark" / "matrix_results.json"
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
FILE_TIMEOUT_S = 3600
#: Timeout of tests that have none of their own.
TEST_TIMEOUT_S = 600
#: Exit codes of pytest if all tests passed, if some failed, and if there were none.
_TO_THE_END = (0, 1, 5)
#: Maven coordinates of the lake formats of each Spark version.
LAKES = {
    "4.0": {
        "delta": "io.delta:delta-spark_4.0_2.13:4.4.0",
        "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    },
    "4.1": {
        "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
    "4.2": {"delta": "io.delta:delta-spark_4.2_2.13:4.4.0"},
}
#: Version of pyspark-client to test with Spark Connect of each Spark version: the same, or the newest that exists.
CLIENTS = {"4.0": "4.0", "4.1": "4.1", "4.2": "4.2", "4.3": "4.2"}
#: Files that have tests with the mark `many_kills`, and the name of such a run.
KILL_FILES = ("test_spark_delta.py", "test_spark_exactly_once_kill.py", "test_spark_iceberg.py")
MANY_KILLS = "many_kills"
#: Test files of each row of the table. The last row has the files that no other row names.
ROWS = {
    "batch read": (
        "test_spark_read.py",
        "test_spark_read_live.py",
        "test_spark_million.py",
        "test_spark_filters.py",
        "test_spark_compaction_topics.py",
    ),
    "stream": (
        "test_spark_stream.py",
        "test_spark_stream_reader.py",
        "test_spark_sizes.py",
        "test_spark_retention.py",
        "test_spark_failover.py",
        "test_spark_versions.py",
    ),
    "write": ("test_spark_write.py",),
    "write, exactly once": (
        "test_spark_exactly_once.py",
        "test_spark_exactly_once_kill.py",
        "test_spark_speculation.py",
    ),
    "write, transactional": ("test_spark_write_transaction.py", "test_spark_transaction_ranges.py"),
    "SQL": ("test_spark_sql.py",),
    "bodies as columns": (
        "test_spark_bodies.py",
        "test_spark_body_avro.py",
        "test_spark_body_encoding.py",
        "test_spark_body_inference.py",
        "test_spark_body_json.py",
        "test_spark_body_protobuf.py",
        "test_spark_body_registry.py",
    ),
    "rocketmq-store": ("test_spark_store.py",),
    "progress, metrics, lineage": ("test_spark_query_metrics.py", "test_spark_metrics.py", "test_spark_lineage.py"),
    "pipelines": ("test_pipeline.py",),
    "Spark Connect": ("test_spark_connect.py",),
    "standalone cluster": ("test_spark_standalone.py",),
    "Delta Lake": ("test_spark_delta.py", "test_example_medallion.py", "test_example_medallion_kill.py"),
    "Apache Iceberg": ("test_spark_iceberg.py",),
    "20 kills: Delta Lake": (f"test_spark_delta.py {MANY_KILLS}",),
    "20 kills: Apache Iceberg": (f"test_spark_iceberg.py {MANY_KILLS}",),
    "20 kills: write, exactly once": (f"test_spark_exactly_once_kill.py {MANY_KILLS}",),
    "examples and docs": ("test_examples.py", "test_example_programs.py", "test_spark_docs.py"),
}
REST = "everything else"
BEGIN, END = "<!-- written by ./dev spark-matrix -->", "<!-- end of what it wrote -->"


@dataclass
class FileResult:
    """The result of a run of one test file.

    `inputs` is the hash of everything that the run depends on, and `commit` the commit of the checkout.
    """

    inputs: str = ""
    commit: str = ""
    passed: int = 0
    failed: int = 0
    #: Reasons of skipped tests.
    skipped: list[str] = field(default_factory=list)


@dataclass
class VersionResult:
    version: str = ""
    files: dict[str, FileResult] = field(default_factory=dict)


def load(path: Path) -> dict[str, VersionResult]:
    """Returns the stored results of each Spark version that has some, in the order of VERSIONS."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    return {
        version: VersionResult(
            stored[version]["version"],
            {name: FileResult(**result) for name, result in stored[version]["files"].items()},
        )
        for version in VERSIONS
        if version in stored
    }


def save(results: dict[str, VersionResult], path: Path) -> None:
    """Replaces the stored results. A stopped run leaves a complete file."""
    stored = {version: asdict(results[version]) for version in VERSIONS if version in results}
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(stored, indent=1) + "\n")
    temporary.replace(path)


@contextmanager
def changes(path: Path) -> Iterator[dict[str, VersionResult]]:
    """Yields the stored results, and stores them with the caller's changes. Other processes wait meanwhile."""
    with (HOME / "results.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = load(path)
        yield results
        save(results, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev spark-matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(VERSIONS)}; default all")
    parser.add_argument("--anew", action="store_true", help="run what has passed too")
    parser.add_argument("--files", default="", help="only files whose names contain this")
    parser.add_argument("--kills", action="store_true", help="run the tests that kill a driver with 20 kills, too")
    given = parser.parse_args()
    if unknown := set(given.versions) - set(VERSIONS):
        parser.error(f"no version {', '.join(sorted(unknown))}; there are {', '.join(VERSIONS)}")
    HOME.mkdir(exist_ok=True)
    for version in given.versions or VERSIONS:
        run_version(version, given.files, anew=given.anew, kills=given.kills)
    results = load(RESULTS)
    write_table(results)
    failed = [
        f"{version} {name}"
        for version, result in results.items()
        for name, of_file in result.files.items()
        if of_file.failed
    ]
    if failed:
        sys.exit(f"spark-matrix: failed: {', '.join(failed)}")


# -- environments -----------------------------------------------------------------------------------------------


def environment(version: str) -> Path:
    """Returns the interpreter of a version. Creates or updates its environment if necessary."""
    home = HOME / version
    python = home / "bin" / "python"
    lakes = LAKES.get(version, {})
    stamp = f"{digest([ROOT / 'requirements.lock', ROOT / 'pyproject.toml'])} {lakes} {CLIENTS[version]}"
    if (home / "stamp").exists() and (home / "stamp").read_text() == stamp:
        return python
    say(f"Spark {version}: making its environment")
    uv = Path(sys.executable).parent / "uv"
    if not python.exists():
        run([uv, "venv", "--quiet", "--python", sys.executable, "--seed", home])
    packages = HOME / f"{version}.txt"
    packages.write_text("".join(f"{line}\n" for line in locked_packages()))
    # Spark often starts Python. Without precompiled modules, a start exceeds Spark's timeout for a worker.
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    run([*install, "-r", packages, f"pyspark=={version}.*"])
    run([*install, "--no-deps", "--no-build-isolation", "-e", ROOT])
    for lake, coordinates in lakes.items():
        fetch_lake(coordinates, home / "lakes" / lake)
    make_client(uv, home / "client", f"pyspark-client=={CLIENTS[version]}.*", packages)
    (home / "stamp").write_text(stamp)
    return python


def make_client(uv: Path, home: Path, spark: str, packages: Path) -> None:
    """Creates an environment with the packages that docs/spark/operations.md requires of a Spark Connect client."""
    python = home / "bin" / "python"
    if not python.exists():
        run([uv, "venv", "--quiet", "--python", sys.executable, home])
    install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, "--constraint", packages]
    run([*install, "--editable", ROOT, spark, "pyarrow", "numpy", "pandas"])


def locked_packages() -> list[str]:
    """Returns name==version of each locked package, except for PySpark and the packages that it pins."""
    entries = re.findall(
        r"^([A-Za-z0-9._-]+==\S+(?: ;[^\\\n]*)?)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    return [entry.strip() for entry in entries if not entry.startswith(("pyspark==", "py4j=="))]


def fetch_lake(coordinates: str, directory: Path) -> None:
    """Downloads a jar and its dependencies of the same group to `directory`."""
    if shutil.which("mvn") is None:
        say(f"no mvn on PATH: the tests of {coordinates} will be skipped")
        return
    group, artifact, version = coordinates.split(":")
    # Otherwise old jars would also be on the class path.
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    project = directory / "pom.xml"
    project.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>org.gantrymq</groupId><artifactId>lake</artifactId><version>1</version><dependencies><dependency>"
        f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        "</dependency></dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "-f", project, "dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    # Spark contains all its other dependencies.
    run([*command, f"-DincludeGroupIds={group}"])


# -- tests ------------------------------------------------------------------------------------------------------


def run_version(version: str, wanted: str, *, anew: bool, kills: bool) -> None:
    python = environment(version)
    run([ROOT / "native" / "build", HOME / version])
    known_files = load(RESULTS).get(version, VersionResult()).files
    spark_version = output([python, "-c", "import pyspark; print(pyspark.__version__)"])
    stamps = "".join((HOME / version / name).read_text() for name in ("stamp", "native-stamp"))
    of_all = digest(common_inputs()) + stamps + spark_version
    commit = output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])
    runs = test_runs()
    for name, file in runs.items():
        with_many = name != file.name
        inputs = hashlib.sha256((of_all + digest([file])).encode()).hexdigest()[:16]
        known = known_files.get(name)
        is_known = known is not None and known.inputs == inputs and not known.failed
        if wanted not in file.name or (is_known and not anew) or (with_many and not kills):
            continue
        started = time.monotonic()
        of_file = run_file(python, version, file, many_kills=with_many)
        of_file.inputs, of_file.commit = inputs, commit
        # Another process may run other files or versions.
        with changes(RESULTS) as results:
            files = results[version].files if version in results else {}
            files = {name: known for name, known in files.items() if name in runs} | {name: of_file}
            results[version] = VersionResult(spark_version, files)
        say(f"Spark {spark_version}: {name}: {cell([of_file])} in {time.monotonic() - started:.0f} s")


def test_runs() -> dict[str, Path]:
    """Returns the test file of each run by its name. A file in KILL_FILES has a second run."""
    files = test_files()
    return {file.name: file for file in files} | {
        f"{file.name} {MANY_KILLS}": file for file in files if file.name in KILL_FILES
    }


def test_files() -> list[Path]:
    """Returns the test files in the order of the rows of the table."""
    found = sorted(path for name in ("spark", "pipeline") for path in (ROOT / "tests" / name).glob("test_*.py"))
    rows = [name for names in ROWS.values() for name in names]
    return sorted(found, key=lambda path: rows.index(path.name) if path.name in rows else len(rows))


def common_inputs() -> list[Path]:
    """Returns the files that every test depends on: the package's code for Spark, the examples and shared test code."""
    source = ROOT / "src" / "gantrymq"
    packages = [source / "spark", source / "arrow", source / "codecs", *(ROOT / "src").glob("pyspark_*")]
    return [
        *sorted(path for package in packages for path in package.rglob("*.py")),
        *sorted(path for path in (source / "pipeline").rglob("*") if path.suffix in (".py", ".yml", ".md")),
        *sorted((ROOT / "examples").rglob("*.py")),
        *sorted(path for path in (ROOT / "tests" / "spark").glob("*.py") if not path.name.startswith("test_")),
    ]


def run_file(python: Path, version: str, file: Path, *, many_kills: bool) -> FileResult:
    name = f"{version}-{file.stem}{f'-{MANY_KILLS}' if many_kills else ''}"
    report = HOME / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "pytest", file, "-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    # On a busy machine, Spark takes minutes to start. If a timeout interrupts that, all later tests fail, too.
    command.append(f"--timeout={TEST_TIMEOUT_S}")
    if many_kills:
        command += ["-m", MANY_KILLS]
    code = -1
    with (HOME / f"{name}.log").open("wb") as log:
        try:
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=FILE_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            say(f"{file.name} takes longer than {FILE_TIMEOUT_S} s")
    return read_report(report, code)


def read_report(report: Path, code: int) -> FileResult:
    """Returns the counts of pytest's report. A missing report or an unfinished run counts as one more failure."""
    result = FileResult()
    if code not in _TO_THE_END or not report.exists():
        result.failed = 1
    if not report.exists():
        return result
    for case in ET.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            # If a whole file is skipped, only the text has the reason, at its end.
            of_file = re.search(r"'Skipped: (.*)'\)$", skipped.text or "")
            result.skipped.append(of_file.group(1) if of_file else skipped.get("message", ""))
        elif case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        else:
            result.passed += 1
    return result


# -- the table --------------------------------------------------------------------------------------------------


def write_table(results: dict[str, VersionResult]) -> None:
    """Writes the table between its two marks in docs/versions.md."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table(results)}{END}{after}")


def table(results: dict[str, VersionResult]) -> str:
    named = {name for names in ROWS.values() for name in names}
    rest = len(test_runs().keys() - named)
    lines = [
        f"| tests of | {' | '.join(result.version for result in results.values())} |",
        f"|---|{'---|' * len(results)}",
    ]
    for row, names in {**ROWS, REST: ()}.items():
        cells = []
        for result in results.values():
            of_row = [of for name, of in result.files.items() if (name in names if names else name not in named)]
            cells.append(cell(of_row, len(names) or rest))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += ["", "Reasons for skipped tests:", ""]
    reasons: dict[str, list[str]] = {}
    for result in results.values():
        for reason in sorted({reason for of_file in result.files.values() for reason in of_file.skipped}):
            reasons.setdefault(reason, []).append(result.version)
    lines += [f"- {', '.join(versions)}: {reason}" for reason, versions in sorted(reasons.items())]
    commits: dict[str, list[str]] = {}
    for result in results.values():
        for commit in sorted({of_file.commit for of_file in result.files.values() if of_file.commit}):
            commits.setdefault(commit, []).append(result.version)
    lines += ["", "Commits:", "", *(f"- {', '.join(versions)}: {commit}" for commit, versions in commits.items())]
    return "\n".join(lines) + "\n"


def cell(results: Iterable[FileResult], files: int = 0) -> str:
    """Returns the numbers of passed, failed and skipped tests, or the reasons if all were skipped.

    `files` is the number of test files in a row of the table.
    """
    found = list(results)
    reasons = sorted({reason for result in found for reason in result.skipped})
    if reasons and not any(result.passed or result.failed for result in found):
        return f"none: {'; '.join(reasons)}"
    counts = {
        "passed": sum(result.passed for result in found),
        "failed": sum(result.failed for result in found),
        "skipped": sum(len(result.skipped) for result in found),
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    if told and len(found) < files:
        told += f" ({len(found)} of {files} files)"
    return told or "not run"


# -- helpers ----------------------------------------------------------------------------------------------------


def digest(paths: Iterable[Path]) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()[:16]


def run(command: list[str | Path]) -> None:
    subprocess.run(command, check=True)


def output(command: list[str | Path]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def say(text: str) -> None:
    print(f"spark-matrix: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
