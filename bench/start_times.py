"""Measures the processor time of commands of `gantry`, and how long the first test of a project takes.

    python bench/start_times.py [--runs 10] [--compare COMMIT] [--out bench/results/start_times.json]

Each command runs --runs times, in turn with the others, so that load of the machine affects all alike. The result is
the smallest user and system time of a command. The modules are compiled before: `pip install` does this, too. With
--compare, the commands of another commit also run in turn with them.

The second table has the processor time of pytest with one test, with and without the fixture `gantry_cluster`. Before a
first run, the modules that pytest has rewritten are deleted. It also has the time until a cluster has started, as the
fixture starts it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checkouts import checkout, python_of
from measures import spread
from result_files import add_out, recorded

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent
GANTRY = ["-m", "gantrymq.cli"]


def commands(name_server: str) -> dict[str, list[str]]:
    return {
        "gantry --help": ["--help"],
        "gantry --version": ["--version"],
        "gantry admin --help": ["admin", "--help"],
        "gantry consume --help": ["consume", "--help"],
        "gantry consume TOPIC -c 1": ["consume", "orders", "-c", "1", "-n", name_server],
        "gantry produce TOPIC": ["produce", "orders", "-n", name_server],
        "gantry admin topicList": ["admin", "topicList", "-n", name_server],
    }


def processor_s(
    arguments: list[str], environment: dict[str, str], directory: Path = ROOT, python: Path | str = sys.executable
) -> float:
    """Runs a command of Python to its end. Returns its user and system time, s."""
    process = subprocess.Popen(
        [python, *arguments],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"python {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime


def first_test_s(directory: Path, environment: dict[str, str], runs: int) -> dict[str, float]:
    """Returns the smallest times of pytest with an empty test, and with an empty test that uses `gantry_cluster`."""
    (directory / "test_empty.py").write_text("def test_it():\n    pass\n")
    (directory / "test_cluster.py").write_text("def test_it(gantry_cluster):\n    pass\n")
    pytest = ["-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    times: dict[str, list[float]] = {"empty test": [], "gantry_cluster, first run": [], "gantry_cluster": []}
    for _ in range(runs):
        for rewritten in directory.rglob("gantrymq/**/*-pytest-*.pyc"):
            rewritten.unlink()
        for name, arguments in zip(
            times, (["-p", "no:gantrymq", "test_empty.py"], ["test_cluster.py"], ["test_cluster.py"]), strict=True
        ):
            times[name].append(processor_s([*pytest, *arguments], environment, directory))
    return {name: round(min(of_name), 3) for name, of_name in times.items()}


def cluster_start_s(runs: int) -> list[float]:
    """Returns median, least and most wall time of the start of a cluster in this process."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        with EmbeddedCluster():
            times.append(time.perf_counter() - began)
    return spread(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", dest="rounds", type=int, default=10, help="runs of each command (%(default)s)")
    parser.add_argument("--compare", metavar="COMMIT", help="measure the commands of this commit also")
    add_out(parser)
    options = parser.parse_args()
    with recorded(options, "bench/start_times.py"):
        measure(options.rounds, options.compare)


def measure(runs: int, base: str | None) -> None:
    pythons: dict[str, Path | str] = {"this commit": sys.executable}
    if base is not None:
        pythons = {base: python_of(checkout(base)), **pythons}
    with tempfile.TemporaryDirectory() as directory, EmbeddedCluster() as cluster:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": f"{directory}/compiled"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with SyncProducer(Producer(cluster.name_server, "bench")) as producer:
            producer.send(Message("orders", b"one"))
        of_commands = commands(cluster.name_server)
        times: dict[str, dict[str, list[float]]] = {name: {commit: [] for commit in pythons} for name in of_commands}
        for run in range(runs + 1):
            for name, arguments in of_commands.items():
                for commit, python in pythons.items():
                    seconds = processor_s([*GANTRY, *arguments], environment, python=python)
                    if run:  # The first run compiles the modules.
                        times[name][commit].append(seconds)
        of_first_test = first_test_s(Path(directory), environment, runs)
    print(f"| command | {' | '.join(f'{commit}, s' for commit in pythons)} |\n{'|---' * (len(pythons) + 1)}|")
    for name, of_name in times.items():
        print(f"| `{name}` | {' | '.join(f'{min(seconds):.3f}' for seconds in of_name.values())} |")
    print("\n| what | s |\n|---|---|")
    for name, seconds in of_first_test.items():
        print(f"| pytest, {name}: processor time | {seconds} |")
    median, least, most = cluster_start_s(runs)
    print(f"| start of a cluster in the process: time | {median:.3f} ({least:.3f} to {most:.3f}) |")


if __name__ == "__main__":
    main()
