"""Renders bench/results/*.json as docs/measurements.md.

    .venv/bin/python tools/measurements.py

A result has its program, machine, versions, date and commit. A value that a run did not record is null, and the page
says "not recorded". A cell of a table is a number, a text, or the list [median, minimum, maximum].
"""

from __future__ import annotations

import json
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import goals

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "measurements.md"

Json = Mapping[str, Any]

_INTRODUCTION = """# Measurements

The newest results of the benchmarks, rendered from the files in [bench/results](../bench/results) by
`tools/measurements.py`. [bench/README.md](../bench/README.md) describes how to run each benchmark and what its rows
mean. [Performance](performance.md) explains what the figures mean for capacity and tuning.

- **Rely on ratios.** They compare two systems that ran in turn on the same machine. The CPU time of one program differs
  by a factor of two between machines of the same kind.
- **CPU** is the user and system time of a process with all its threads. Load and servers share the processors, so the
  CPU time says more than the rate.
- **Brackets** contain the minimum and the maximum of the rounds. The figure beside them is the median.
- **"not in steady state"**: the last three rounds differed by 5 % or more, so small differences mean nothing.
- [Conditions](#conditions) has the command, the machine and the versions of each run.
"""

_GOALS = (
    "The goals of all benchmarks, with the newest results. Goals apply to the median; brackets contain minimum and "
    'maximum. An "at most" goal is met if *measured : goal* is 1 or less, an "at least" goal if it is 1 or more. A '
    "result holds for the machine, the versions and the commit in [Conditions](#conditions)."
)


class Section(NamedTuple):
    """A part of the page: a heading, the file of its results, and what a reader must know about them."""

    title: str
    file: str
    note: str = ""


SECTIONS = (
    Section(
        "Brokers",
        "broker.json",
        "Apache's Java clients put the same load on both brokers in turn. The starts include the compilation "
        "of the modules, because `PYTHONDONTWRITEBYTECODE` was set. The table of several processes is of "
        "`gantry broker --processes`, with 128 sends in flight. Its CPU times are those of all brokers.",
    ),
    Section(
        "Replication",
        "replication.json",
        "Java's broker had received 500,000 messages when the rounds began. In sync mode, about 12 messages travel "
        "together, and most of the cost is the round trip that wakes up master, slave and client.",
    ),
    Section(
        "Clients",
        "client.json",
        "Both clients put the load on one GantryMQ broker in turn. This machine runs Python half as fast as "
        "others of its kind.",
    ),
    Section(
        "Calls of the client",
        "client_micro.json",
        "`SyncProducer` sends to a broker process, so its figures contain the system calls. The other calls have no "
        "socket.",
    ),
    Section(
        "Instructions of the hot paths",
        "instructions.json",
        "Counted by valgrind, without sockets: the baseline of `./dev bench --instructions`. Another interpreter gives "
        "other counts.",
    ),
    Section("NameServers", "namesrv.json", "The last column is GantryMQ's figure divided by Java's."),
    Section("The store", "store.json", "The disk did 5,160 fdatasync calls per second. Messages have 1 KiB."),
    Section(
        "Light queues",
        "light_queues.json",
        "CPU time of a broker without sockets. A message has 128 B and names one light queue. "
        "[The decision](decisions/light-queues.md) explains why sends miss their goal.",
    ),
    Section("Catching up", "catching_up.json", "A slave copies the log of its master. Messages have 1 KiB."),
    Section(
        "Proxies",
        "proxy.json",
        "Both proxies serve one GantryMQ broker in turn. Messages have 1,000 bytes. 64 sends and 8 receives are "
        "in flight, and each message is acknowledged separately.",
    ),
    Section(
        "Arrow",
        "arrow.json",
        "`gantrymq.arrow` beside confluent-kafka, whose messages are converted to Arrow batches in Python. "
        "`scan_store` reads the files of a running broker, up to a preallocated file of 1 GiB.",
    ),
    Section(
        "Spark: reads",
        "spark_reads.json",
        '"Ready-made" is a Python data source that returns the same Arrow batch again and again. It is the upper '
        "limit of Spark's Python API. The machine of the runs on each Spark 4 is half as fast as that of the "
        "first table. The machine of the run without native code was not recorded: compare only the rates within "
        "that table.",
    ),
    Section(
        "Spark: writes",
        "spark_writes.json",
        "Rows have 128 B and a key. The 100,000,000 rows have 16 B and no key. The machine of the run without native "
        "code was not recorded: do not compare its rates with those of the other tables.",
    ),
    Section("Long runs", "soak.json"),
    Section(
        "Faults of real processes",
        "faults.json",
        "A check of correctness. Other programs used the rest of the processor time, most with a lower priority. "
        "[Failover](#failover) has times without such a load.",
    ),
    Section("Simulator", "simulator.json"),
    Section(
        "Fuzzing",
        "fuzz.json",
        "A finding is an undocumented error, more than 1 s of CPU time for an input, or 64 MiB of growth. "
        "Each target runs alone, by `./dev fuzz TARGET --minutes 10 --jobs 1`, and its row has the commit of its run. "
        "Targets without a row have no recorded run. [Fuzzing](testing.md#fuzzing) describes the targets.",
    ),
    Section(
        "Failover",
        "failover.json",
        "Time without service in seconds, the worst value and the median of each fault. "
        "`controllerHeartBeatTimeoutMills` is 3 s. With its default, 10 s, faults that close no connection "
        "(SIGSTOP, no network) can take 7 s longer.",
    ),
    Section(
        "Start times of commands",
        "start_times.json",
        "Processor times are the least of ten runs. Without compiled modules, `gantry consume` takes 0.2 s more.",
    ),
    Section(
        "Mechanisms and their alternatives",
        "decisions.json",
        "CPU time per message in µs: the minimum of several runs (the median).",
    ),
    Section(
        "How cost grows",
        "scale.json",
        "The cost in a broker and a NameServer if one number grows by three orders of magnitude.",
    ),
)

#: The faults of bench/failover.py in the order of the page.
FAULTS = {
    "killed": "SIGKILL of the master",
    "ended": "SIGTERM of the master",
    "stopped": "SIGSTOP of the master",
    "cut off": "master without network",
    "handed over": "planned change of master (`electMaster`)",
    "slave killed": "SIGKILL of a slave",
    "slave ended": "SIGTERM of a slave",
    "slave stopped": "SIGSTOP of a slave",
    "slave cut off": "slave without network",
    "controller killed": "SIGKILL of the leading controller",
    "controller stopped": "SIGSTOP of the leading controller",
    "controller away": "leading controller down for 16 to 22 s",
    "controller and master killed": "SIGKILL of master and leading controller",
    "link to controller cut": "link master to controller cut",
    "link to controller half-open": "link master to controller half-open",
    "link to slave cut": "link master to slave cut",
    "link to slave half-open": "link master to slave half-open",
    "link to NameServer cut": "link master to NameServer cut",
    "link to NameServer half-open": "link master to NameServer half-open",
    "member killed": "SIGKILL of an etcd member",
    "two members killed": "SIGKILL of two etcd members",
}

_SCALE_TERMS = """\
- **Memory** is that of the process itself. Pages of mapped files are extra; the kernel can take them back.
- **Start** is the time from the start of the process to the open port. The runs compile the package at each start
  (0.3 s), because `PYTHONDONTWRITEBYTECODE` is set.
- **Longest wait** is that of another client, which sends, pulls and requests a route every 20 ms, while the load is
  created.
"""
#: The headings of bench/scale.py's tables.
SCALE_TITLES = {
    "messages": "Messages",
    "topics": "Topics",
    "queues": "Queues of one topic",
    "groups": "Consumer groups",
    "connections": "Connections",
    "size": "Size of a message",
    "brokers": "Brokers of a NameServer",
}
#: What a reader must know about them.
SCALE_NOTES = {
    "messages": (
        "A start does not read the log, and no send or pull searches it. Only a query by key reads more files of the "
        "index."
    ),
    "topics": (
        "Each topic has 8 queues. Messages go to the first queue of each topic in turn, so each send writes to "
        "another file. With many topics, the page of that file is not in the processor's cache, and each file is "
        "flushed separately. If more than 32,768 queue files are in use in turn, each send maps one file and unmaps "
        "another. At shutdown, the broker flushes each queue with new messages, 16 queues at a time."
    ),
    "groups": (
        "All groups share 20 connections, as they do behind proxies. Each has one member with committed offsets of 8 "
        "queues."
    ),
    "connections": (
        "Each connection is a consumer with its own queue; 8 consumers form a group. It always has a pull that waits "
        "for up to 15 s. Sends and pulls use 8 queues, over each connection in turn."
    ),
    "brokers": (
        "Each broker registers the same 1,000 topics. The NameServer encodes the response to a route query once. With "
        "more brokers, the response gets longer, and the kernel needs more time to copy it."
    ),
}


def page() -> str:
    """Returns the whole page."""
    parts = [_INTRODUCTION, "## Goals\n", wrapped(_GOALS), table(goals.COLUMNS, goals.rows(RESULTS))]
    rows: list[list[str]] = []
    for section in SECTIONS:
        result = json.loads((RESULTS / section.file).read_text(encoding="utf-8"))
        parts.append(f"## {section.title}\n")
        if section.note:
            parts.append(wrapped(section.note))
        parts += _RENDERERS.get(section.file, _tables)(result)
        if section.file != "scale.json":
            rows += [conditions(run) for run in runs_of(section.title.lower(), result)]
    parts += ["## Conditions\n", table(_CONDITIONS, rows)]
    return "\n".join(parts)


def runs_of(title: str, result: Json) -> list[Json]:
    """Returns each run of a result with its conditions."""
    if isinstance(result.get("runs"), list):
        return [{**result, **run} for run in result["runs"]]
    commit = result.get("commit") or ", ".join(result.get("commits", ())) or None
    rounds = len(result["rounds"]) if "rounds" in result else result.get("runs")
    return [
        {
            **result,
            "name": title,
            "rounds": rounds,
            "commit": commit,
            "versions": result.get("versions") or {"python": result["python"]},
        }
    ]


def _tables(result: Json) -> Iterator[str]:
    """Yields the tables of a result with `runs`."""
    runs = result["runs"]
    for run in runs:
        if len(runs) > 1:
            yield f"**{run['name'][0].upper()}{run['name'][1:]}**\n"
        yield table(run["columns"], run["rows"])


def wrapped(text: str) -> str:
    """Returns a paragraph."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


_CONDITIONS = ("run", "command", "rounds", "machine", "versions", "gantrymq-native", "date", "commit")


def conditions(run: Json) -> list[str]:
    """Returns a row of the table of conditions."""
    command = " ".join(part for part in (run.get("program"), run.get("options")) if part)
    values = [
        command and f"`{command}`",
        run.get("rounds"),
        machine_text(run.get("machine") or {}),
        ", ".join(f"{_NAMES[name]} {version}" for name, version in run["versions"].items() if version),
        {True: "yes", False: "no"}.get(run.get("native")),
        run.get("date"),
        run.get("commit"),
    ]
    return [run["name"], *(str(value or "not recorded") for value in values)]


_NAMES = {
    "python": "Python",
    "java": "OpenJDK",
    "rocketmq": "RocketMQ",
    "spark": "Spark",
    "kafka": "Kafka",
    "confluent-kafka": "confluent-kafka",
    "valgrind": "Valgrind",
}
_OTHERS = {"none": "no other programs", "some": "beside other programs"}


def machine_text(machine: Json) -> str | None:
    parts = [
        machine.get("processor"),
        f"{machine['processors']} processors" if machine.get("processors") else None,
        f"{machine['memory_gib']} GiB" if machine.get("memory_gib") else None,
        machine.get("note") or _OTHERS.get(machine.get("other_programs") or ""),
    ]
    return ", ".join(part for part in parts if part) or None


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(value: object) -> str:
    """Returns the text of a cell: [median, minimum, maximum], a number, or a text."""
    match value:
        case None:
            return ""
        case [median, least, most]:
            return f"{cell(median)} ({cell(least)} to {cell(most)})"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def _failover(result: Json) -> Iterator[str]:
    rows = []
    for fault, name in FAULTS.items():
        found = [each for each in result["rounds"] if each["fault"] == fault]
        clients = [[each["silent_s"] for each in found]]
        clients += [[each["unserved_s"][kind] for each in found] for kind in ("push", "pop", "lite")]
        rows.append([name, *(f"{max(times):.1f} ({statistics.median(times):.1f})" for times in clients)])
    yield table(["fault", "producers", "push consumers", "POP consumers", "lite pull consumers"], rows)


def _decisions(result: Json) -> Iterator[str]:
    def least(pair: Sequence[float]) -> str:
        return f"{pair[0]:g} ({pair[1]:g})"

    rows = [[name, least(each["store_us"]), least(each["commit_us"])] for name, each in result["transactions"].items()]
    yield table(["half messages of 128 B", "store", "commit"], rows)
    sizes = result["decoders_us"]
    names = list(next(iter(sizes.values())))
    rows = [[name, *(least(sizes[size][name]) for size in sizes)] for name in names]
    yield table(["decoder of pulled messages", *sizes], rows)


def _scale(result: Json) -> Iterator[str]:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        import scale
    finally:
        sys.path.pop(0)
    yield _SCALE_TERMS
    for name, each in result.items():
        yield f"### {SCALE_TITLES[name]}\n"
        if name in SCALE_NOTES:
            yield wrapped(SCALE_NOTES[name])
        yield f"![Cost by {scale.DIMENSIONS[name].x}](images/scale-{name}.svg)\n"
        yield scale.table(name, each)


_RENDERERS = {
    "failover.json": _failover,
    "decisions.json": _decisions,
    "scale.json": _scale,
}


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
