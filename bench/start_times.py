"""Measures the processor time of commands of `gantry`, from their start to their end.

    python bench/start_times.py [--runs 10] [--out bench/results/start_times.json]

Each command runs --runs times, in turn with the others, so that load of the machine affects all alike. The result is
the smallest user and system time of a command. The modules are compiled before: `pip install` does this, too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent


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


def processor_s(arguments: list[str], environment: dict[str, str]) -> float:
    """Runs a command to its end. Returns its user and system time, s."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"gantry {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, EmbeddedCluster() as cluster:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": f"{directory}/compiled"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with SyncProducer(Producer(cluster.name_server, "bench")) as producer:
            producer.send(Message("orders", b"one"))
        of_commands = commands(cluster.name_server)
        for arguments in of_commands.values():
            processor_s(arguments, environment)
        rounds = [
            {name: processor_s(arguments, environment) for name, arguments in of_commands.items()}
            for _ in range(options.runs)
        ]
    result = {
        "program": "bench/start_times.py",
        "machine": {"processors": os.cpu_count()},
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip(),
        "runs": options.runs,
        "processor_s": {name: round(min(one[name] for one in rounds), 3) for name in of_commands},
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
