"""Measures the processor time of commands of `gantry`, and how long the first test of a project takes.

    python bench/start_times.py [--runs 10] [--out bench/results/start_times.json]

Each command runs --runs times, in turn with the others, so that load of the machine affects all alike. The result is
the smallest user and system time of a command. The modules are compiled before: `pip install` does this, too.

"first_test_processor_s" is the processor time of pytest with one test. The difference is the cost of the fixture
`gantry_cluster`. Before a first run, the modules that pytest has rewritten are deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from result_files import conditions

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


def processor_s(arguments: list[str], environment: dict[str, str], directory: Path = ROOT) -> float:
    """Runs a command of Python to its end. Returns its user and system time, s."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    before = conditions()
    with tempfile.TemporaryDirectory() as directory, EmbeddedCluster() as cluster:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": f"{directory}/compiled"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with SyncProducer(Producer(cluster.name_server, "bench")) as producer:
            producer.send(Message("orders", b"one"))
        of_commands = commands(cluster.name_server)
        for arguments in of_commands.values():
            processor_s([*GANTRY, *arguments], environment)
        rounds = [
            {
                name: processor_s(["-m", "gantrymq.cli", *arguments], environment)
                for name, arguments in of_commands.items()
            }
            for _ in range(options.runs)
        ]
        of_first_test = first_test_s(Path(directory), environment, options.runs)
    result = {
        "program": "bench/start_times.py",
        **before,
        "runs": options.runs,
        "processor_s": {name: round(min(one[name] for one in rounds), 3) for name in of_commands},
        "first_test_processor_s": of_first_test,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
