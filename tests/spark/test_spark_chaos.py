"""Tests that no read is silently incomplete while servers stop and start and topics are created again.

The tests run without Spark. They make the same calls to readers and writers as Spark, in random order.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mortal_cluster import NAMES, MortalCluster
from wait_until import wait_until

from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.filters import PushedFilters
from gantrymq.arrow.name_server_client import NoBrokers
from gantrymq.arrow.planning import CLOCK_MARGIN_MS, plan_batch
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.arrow.rows import read_ranges
from gantrymq.errors import NoRouteInfo, RemotingError
from gantrymq.spark.half_messages import HalfMessages, HalfSender
from gantrymq.spark.options import ReadOptions, WriteOptions
from gantrymq.spark.reader import RocketMQStreamReader
from gantrymq.spark.versions import ReadAllAvailable, ReadMaxRows
from gantrymq.spark.writer import RocketMQBatchWriter, RowsSent

TOPIC = "chaos"
STEPS = 40
BODY = pa.schema([("body", ARROW_TYPES["body"])])
ALL = ReadAllAvailable()


class Stream:
    """A query with a checkpoint. Its driver can die between the planning and the end of a micro-batch."""

    def __init__(self, options: ReadOptions) -> None:
        self.began = time.time()
        self.found: Counter[int] = Counter()
        self._options = options
        self._reader = RocketMQStreamReader(options, BODY)
        self._place = self._reader.initialOffset()
        self._planned: dict[str, Any] | None = None

    def micro_batch(self, most: int | None, *, dies: bool = False) -> bool:
        """Runs a micro-batch and returns whether it had rows. If the driver dies, the next call repeats the batch."""
        end = self._planned
        if end is None:
            end = self._reader.latestOffset(self._place, ALL if most is None else ReadMaxRows(most))
        if end == self._place:
            return False
        found: list[bytes] = []
        try:
            if dies:
                raise RemotingError("the driver is dead", "driver")
            for partition in self._reader.partitions(self._place, end):
                for batch in self._reader.read(partition):
                    found += batch.column("body").to_pylist()
        except RemotingError:
            # The batch may have been planned while all brokers were up.
            self._planned = json.loads(json.dumps(end))
            self.restart()
            return True
        self.found.update(map(int, found))
        self._place, self._planned = json.loads(json.dumps(end)), None
        return True

    def restart(self) -> None:
        self._reader.stop()
        self._reader = RocketMQStreamReader(self._options, BODY)

    def stop(self) -> None:
        self._reader.stop()


class Chaos:
    """Runs random steps.

    `sent` has the messages of the current topic with their send times, `gone` those of earlier topics with this name.
    """

    def __init__(self, cluster: MortalCluster, seed: int, *, topics_die: bool) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.topics_die = topics_die
        self.sent: dict[int, float] = {}
        self.gone: dict[int, float] = {}
        self.next = 0
        self.complete_reads = self.refused_reads = 0
        self.streams = [Stream(self.options(startingoffsets="earliest"))]

    def options(self, **more: str) -> ReadOptions:
        given = {"nameserver": self.cluster.name_server, "subscribe": TOPIC, "retrytimeoutms": "200"}
        if self.topics_die and "expectedbrokers" not in more:
            given["failondataloss"] = "false"
        return ReadOptions.parse(given | more)

    def step(self) -> None:
        actions = [self.send, self.send, self.read, self.micro_batch, self.micro_batch, self.die, self.begin]
        if self.topics_die:
            actions.append(self.make_again)
        else:
            actions += [self.stop, self.start, self.stop, self.start, self.restart_name_server]
        self.random.choice(actions)()

    def numbers(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))

    # -- events -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        if self.cluster.alive:
            numbers = self.numbers(self.random.randrange(1, 30))
            self.cluster.send(TOPIC, numbers)
            self.sent |= dict.fromkeys(numbers, time.time())

    def stop(self) -> None:
        if len(self.cluster.alive) == len(NAMES):
            self.cluster.stop_broker(self.random.choice(NAMES))

    def start(self) -> None:
        for name in sorted(set(NAMES) - self.cluster.alive):
            self.cluster.start_broker(name)

    def restart_name_server(self) -> None:
        alive = sorted(self.cluster.alive)
        for name in alive:
            self.cluster.stop_broker(name)
        self.cluster.stop_name_server()
        self.cluster.start_name_server()
        self.read()
        self.micro_batch()
        for name in alive:
            self.cluster.start_broker(name)

    def make_again(self) -> None:
        self.cluster.delete_topic(TOPIC)
        self.cluster.create_topic(TOPIC)
        self.gone |= self.sent
        self.sent = {}

    # -- reads ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Reads the topic. The result is complete, or an error is raised."""
        options = self.options(expectedbrokers=",".join(NAMES))

        async def plan() -> list[list[Any]]:
            async with ClusterClient(options.name_servers, options.retry_timeout_ms) as brokers:
                return await plan_batch(brokers, options, PushedFilters())

        try:
            partitions = run(plan())
        except (BrokersAway, NoRouteInfo, NoBrokers):
            assert self.cluster.alive != set(NAMES)
            self.refused_reads += 1
            return
        found = [n for ranges in partitions for b in read_ranges(ranges, options, BODY) for n in b["body"].to_pylist()]
        assert sorted(map(int, found)) == sorted(self.sent)
        self.complete_reads += 1

    def begin(self) -> None:
        if self.cluster.alive and len(self.streams) < 4:
            self.streams.append(Stream(self.options(startingoffsets="latest")))

    def micro_batch(self) -> None:
        self.random.choice(self.streams).micro_batch(self.random.choice([None, 7, 50]))

    def die(self) -> None:
        self.random.choice(self.streams).micro_batch(20, dies=True)

    def check_streams(self) -> None:
        """Checks the rows that each stream has at the end."""
        everything = self.gone | self.sent
        for stream in self.streams:
            # A micro-batch that was planned before the driver died can be empty.
            stream.restart()
            stream.micro_batch(None)
            while stream.micro_batch(None):
                pass
            stream.stop()
            assert stream.found.total() == len(stream.found), "more than once"
            is_first = stream is self.streams[0]
            wanted = {n for n, sent in self.sent.items() if is_first or sent > stream.began}
            assert wanted <= stream.found.keys()
            earliest = stream.began - CLOCK_MARGIN_MS / 1000 - 0.05
            assert is_first or all(everything[n] > earliest for n in stream.found)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("topics_die", [False, True], ids=["brokers", "topics"])
def test_no_read_is_silently_partial(tmp_path: Path, seed: int, topics_die: bool) -> None:
    """Brokers or topics die, never both: a restarted broker recovers messages of deleted topics from its log."""
    with MortalCluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC)
        chaos = Chaos(cluster, seed, topics_die=topics_die)
        for _ in range(STEPS):
            chaos.step()
        chaos.start()
        chaos.read()
        chaos.check_streams()
        assert chaos.complete_reads
        assert topics_die or chaos.refused_reads


def test_a_transaction_is_whole_though_a_broker_dies_in_its_commit(tmp_path: Path) -> None:
    """The broker comes back after the transaction's timeout."""
    with MortalCluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC)
        options = WriteOptions([cluster.name_server], TOPIC, transactional=True, transaction_timeout_s=1)
        rows = pa.RecordBatch.from_pydict({"body": [str(n) for n in range(40)]})

        async def store() -> list[HalfMessages]:
            async with ClusterClient(options.name_servers, 5000) as brokers:
                sender = HalfSender(brokers, 0, options.transaction_timeout_s)
                await sender.send(RowEncoder(options, "write-0").encode(rows))
                return sender.halves

        halves = run(store())
        stored = time.time()
        cluster.stop_broker("broker-b")
        writer = RocketMQBatchWriter(options)
        failures: list[BaseException] = []

        def commit() -> None:
            try:
                writer.commit([RowsSent(40, stored, halves)])
            except BaseException as e:
                failures.append(e)

        committing = threading.Thread(target=commit)
        committing.start()
        wait_until(lambda: time.time() > stored + 1.2)
        cluster.start_broker("broker-b")
        committing.join()
        assert not failures
        chaos = Chaos(cluster, 0, topics_die=False)
        chaos.sent = dict.fromkeys(range(40), stored)
        chaos.read()
        chaos.check_streams()
