"""Loads from Java clients. Each function measures one kind on all clusters in turn."""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measures import Figures, Measure, alternate
from programs import command_line
from servers import call
from systems import Cluster

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.fastjson import encode_json

CLIENT_TIMEOUT_S = 900.0
_CLIENT_OPTIONS = ["-Xms512m", "-Xmx1g", "-XX:+UseG1GC"]
#: Number of consumer threads, as in Apache's benchmark consumer.
_CONSUMER_THREADS = 20
_BATCH = 32
_BATCH_SIZE = 128
#: Warm-up of the latency runs, in seconds.
_LATENCY_WARM_UP_S = 10


@dataclass(frozen=True)
class Ran:
    """The last line of a load program, and the broker's CPU seconds until then and until it was idle again."""

    line: str
    cpu_s: float
    settled_cpu_s: float


def sends(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures Apache's benchmark producer."""
    measures = []
    for size in args.sizes:
        for cluster in clusters:
            cluster.make_topics([f"bench{size}"], args.queues)
        measures += alternate(
            clusters, args, f"{size} B sends", lambda cluster, _, size=size: _send(cluster, args, size)
        )
    return measures


def sync_flush_sends(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures the same with brokers that respond after the message is on disk."""
    size = args.sizes[0]
    for cluster in clusters:
        cluster.make_topics([f"bench{size}"], args.queues)
    return alternate(clusters, args, f"{size} B sends, SYNC_FLUSH", lambda cluster, _: _send(cluster, args, size))


def _send(cluster: Cluster, args: argparse.Namespace, size: int) -> Figures:
    options = [f"bench{size}", str(args.threads), str(size), str(args.warm_up), str(args.count)]
    ran = run_load("LoadProducer", cluster, options, args.serialize, "[Complete]")
    complete = re.search(
        r"Send Total: (\d+) \| Send TPS: (\d+) .*Send Failed: (\d+) \| Response Failed: (\d+)", ran.line
    )
    if complete is None:
        raise RuntimeError(f"the run was too short for the benchmark's rate, raise --count: {ran.line}")
    total, rate, *failed = map(int, complete.groups())
    if total != args.count or any(failed):
        raise RuntimeError(f"sends failed: {ran.line}")
    return _rate_and_cpu(rate, ran, args.count)


def batches(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures sends of many small messages per request."""
    for cluster in clusters:
        cluster.make_topics(["batches0"], args.queues)
    name = f"sends of {_BATCH} x {_BATCH_SIZE} B"
    return alternate(clusters, args, name, lambda cluster, _: _send_round_robin(cluster, args, "batches", 1, _BATCH))


def topics(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures sends to many topics in turn."""
    measures = []
    for count in args.topics:
        prefix = f"topics{count}-"
        for cluster in clusters:
            cluster.make_topics([f"{prefix}{i}" for i in range(count)], 1)
        measures += alternate(
            clusters,
            args,
            f"{_BATCH_SIZE} B sends to {count:,} topics",
            lambda cluster, _, prefix=prefix, count=count: _send_round_robin(cluster, args, prefix, count, 1),
        )
    return measures


def _send_round_robin(cluster: Cluster, args: argparse.Namespace, prefix: str, topic_count: int, batch: int) -> Figures:
    # Sends to each topic at least once, so that all routes are cached and all queues exist.
    warm_up = max(args.warm_up, topic_count * batch * 2)
    options = [prefix, *map(str, (topic_count, args.threads, _BATCH_SIZE, batch, warm_up, args.count))]
    ran = run_load("LoadTopics", cluster, options, args.serialize, "DONE")
    return _rate_and_cpu(args.count / float(ran.line.split()[1]), ran, args.count)


def _rate_and_cpu(rate: float, ran: Ran, count: int) -> Figures:
    return {
        ("broker CPU", "µs/message"): ran.cpu_s / count * 1e6,
        ("broker CPU incl. index", "µs/message"): ran.settled_cpu_s / count * 1e6,
        ("rate", "/s"): rate,
    }


def reads(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures a push consumer that reads the messages of `sends`."""
    measures = []
    for size in args.sizes:
        measures += alternate(
            clusters,
            args,
            f"{size} B reads",
            lambda cluster, number, size=size: _read(
                cluster, args.count, f"bench{size}", f"bench_{number}", args.serialize
            ),
        )
    return measures


def pops(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures the same with POP and an acknowledgement for each message."""
    size = args.sizes[0]

    def pop(cluster: Cluster, number: int) -> Figures:
        topic, group = f"bench{size}", f"bench_pop_{number}"
        for name in (group, f"{group}_warm_up"):
            body = {"topic": topic, "consumerGroup": name, "mode": "POP", "popShareQueueNum": -1}
            response = call(cluster.broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_json(body))
            if response.code:
                raise RuntimeError(f"{cluster.system.name} doesn't let the group pop: {response.remark}")
        # The fields of POP do not fit binary headers. Java's own client does not pop with them.
        return _read(cluster, args.count, topic, group, "JSON", "pop")

    return alternate(clusters, args, f"{size} B reads by POP", pop)


def _read(cluster: Cluster, count: int, topic: str, group: str, serialize_type: str, *mode: str) -> Figures:
    options = [topic, group, str(_CONSUMER_THREADS), str(count), *mode]
    ran = run_load("LoadConsumer", cluster, options, serialize_type, "DONE")
    return {
        ("broker CPU", "µs/message"): ran.cpu_s / count * 1e6,
        ("rate", "/s"): count / float(ran.line.split()[1]),
    }


def latencies(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures the time from a message's scheduled send, at a fixed rate, to the consumer's listener."""

    def run(cluster: Cluster, number: int) -> Figures:
        topic = f"latency_{number}"
        cluster.make_topics([topic], args.queues)
        options = [topic, *map(str, (args.latency_rate, args.sizes[0], _LATENCY_WARM_UP_S, args.latency_s))]
        ran = run_load("LoadLatency", cluster, options, args.serialize, "DONE")
        p50, p99, p999 = map(float, ran.line.split()[1:])
        count = args.latency_rate * args.latency_s
        return {
            ("broker CPU incl. index", "µs/message"): ran.settled_cpu_s / count * 1e6,
            ("p50", "ms"): p50,
            ("p99", "ms"): p99,
            ("p99.9", "ms"): p999,
        }

    return alternate(clusters, args, f"end to end at {args.latency_rate:,}/s", run)


def run_load(program: str, cluster: Cluster, options: Sequence[str], serialize_type: str, last_line: str) -> Ran:
    """Runs a load program from its READY to the line that begins with `last_line`. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as home:
        command = command_line(
            f"org.gantrymq.interop.{program}",
            cluster.namesrv.address,
            *options,
            home=Path(home),
            serialize_type=serialize_type,
            options=_CLIENT_OPTIONS,
        )
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        overdue = threading.Timer(CLIENT_TIMEOUT_S, process.kill)
        overdue.start()
        try:
            _await_line(process, "READY")
            before = cluster.settled_cpu_seconds()
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line = _await_line(process, last_line)
            loaded = cluster.cpu_seconds()
        finally:
            overdue.cancel()
            process.kill()
            process.wait()
        return Ran(line, loaded - before, cluster.settled_cpu_seconds() - before)


def _await_line(process: subprocess.Popen[str], beginning: str) -> str:
    """Returns the next line with this beginning. Raises RuntimeError if the program ends before."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if line.startswith(beginning):
            return line
        seen.append(line)
    raise RuntimeError(
        f"the load program ended (or took {CLIENT_TIMEOUT_S} s) without {beginning}:\n{''.join(seen[-20:])}"
    )
