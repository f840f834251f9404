"""Tests that writes with exactlyOnce store each row once, even if tasks or batches run again."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from constants import change_constant
from exactly_once_support import driver, numbers
from killable_cluster import Killable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_support import WAIT_S, create_topic
from wait_until import wait_until

from gantrymq.arrow import batch_bodies
from gantrymq.arrow.cluster_client import BrokersAway, ClusterClient, run
from gantrymq.arrow.idempotent_sender import IdempotentSender, find_write_queues, queues_of_earlier_attempt
from gantrymq.arrow.row_messages import RowEncoder
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, ClientError, ConfigError, IllegalMessage, NoRouteInfo
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.datasource import RocketMQDataSource
from gantrymq.spark.options import WriteOptions
from gantrymq.spark.writer import RocketMQBatchWriter, RowsSent
from gantrymq.testing.embedded import EmbeddedCluster

NewTopic = Callable[..., str]


def options_for(cluster: EmbeddedCluster, topic: str, **changed: object) -> WriteOptions:
    return WriteOptions([cluster.name_server], topic, exactly_once=True, **changed)  # type: ignore[arg-type]


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"exactlyOnce": "true"}, None, "exactlyOnce needs the option topic"),
        ({"topic": "t", "exactlyOnce": "true", "transactional": "true"}, None, "excludes transactional"),
        ({"topic": "t", "txnAppId": "a", "txnVersion": "1"}, False, "txnAppId has no meaning in a write without"),
        ({"topic": "t", "exactlyOnce": "true", "txnAppId": "a", "txnVersion": "1"}, True, "no meaning in a stream"),
        ({"topic": "t", "exactlyOnce": "true", "txnAppId": "a"}, False, "txnAppId and txnVersion go together"),
        ({"topic": "t", "exactlyOnce": "true", "txnAppId": "a b", "txnVersion": "1"}, False, "txnAppId has 1 to 100"),
        ({"topic": "t", "expectedBrokers": "a"}, None, "expectedBrokers has no meaning in a write without"),
    ],
)
def test_options_that_dont_go_together(given: dict[str, str], streaming: bool | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WriteOptions.parse({"nameServer": "a:1"} | given, streaming=streaming)


def test_delayed_rows_are_refused() -> None:
    encoder = RowEncoder(WriteOptions(["a:1"], "t", exactly_once=True), "w-0-0")
    with pytest.raises(IllegalMessage, match="rows of exactlyOnce can't be delayed"):
        encoder.encode(pa.RecordBatch.from_pydict({"body": ["a"], "delayLevel": [1]}))


# -- attempts of a task -----------------------------------------------------------------------------------------------

Rows = Sequence[tuple[str, str | None]]


def rows(count: int, *, keyed: int = 3) -> Rows:
    """Returns rows with the bodies `0`, `1`, ... Every `keyed`th row has a sharding key; 0 means none."""
    return [(str(n), f"key-{n % 7}" if keyed and n % keyed == 0 else None) for n in range(count)]


async def attempt(
    cluster: ClusterClient,
    options: WriteOptions,
    queues: list[MessageQueue],
    given: Rows,
    cut: int,
    write: str = "w-0-5",
) -> IdempotentSender:
    """Runs one attempt of a task, with Arrow batches of `cut` rows."""
    encoder, sender = RowEncoder(options, write), IdempotentSender(cluster, queues, 5)
    for start in range(0, len(given), cut):
        bodies, keys = zip(*given[start : start + cut], strict=True)
        columns = {"body": pa.array(bodies, pa.string())}
        if any(keys):
            columns["shardingKey"] = pa.array(keys, pa.string())
        await sender.send(encoder.encode(pa.RecordBatch.from_pydict(columns)))
    return sender


def attempts(options: WriteOptions, *of_each: tuple[Rows, int]) -> list[IdempotentSender]:
    """Runs several attempts in sequence."""

    async def send() -> list[IdempotentSender]:
        # The driver's part.
        async with ClusterClient(options.name_servers, 5000) as cluster:
            queues = await find_write_queues(cluster, options)
        async with ClusterClient(options.name_servers, 5000) as cluster:
            return [await attempt(cluster, options, queues, given, cut) for given, cut in of_each]

    return run(send())


def max_offsets(cluster: Killable, queues: Sequence[MessageQueue]) -> int:
    """Returns the total number of messages in the queues."""

    async def count() -> int:
        async with ClusterClient([cluster.namesrv_addr], 5000) as brokers:
            return sum([await brokers.max_offset(queue) for queue in queues])

    return run(count())


@pytest.mark.parametrize("keyed", [3, 0])
def test_attempts_that_died_midway(cluster: EmbeddedCluster, new_topic: NewTopic, keyed: int) -> None:
    topic = new_topic(2)
    given = rows(9_000, keyed=keyed)
    senders = attempts(
        options_for(cluster, topic), (given[:2_500], 400), (given[:7_001], 10_000), (given, 3_000), (given, 10_000)
    )
    for sender in senders[2:]:
        sender.finish()
    assert numbers(cluster.name_server, topic) == list(range(9_000))


def test_attempts_with_and_without_native_code(
    cluster: EmbeddedCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    options, given = options_for(cluster, topic), rows(9_000, keyed=0)
    attempts(options, (given[:3_300], 400))
    with monkeypatch.context() as without:
        without.setattr(batch_bodies, "native", None)
        attempts(options, (given[:6_001], 3_000))
    (sender,) = attempts(options, (given, 10_000))
    sender.finish()
    assert numbers(cluster.name_server, topic) == list(range(9_000))


def test_speculative_copies_at_the_same_time(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    options, given = options_for(cluster, topic), rows(20_000)

    async def send() -> None:
        async with ClusterClient(options.name_servers, 5000) as one, ClusterClient(options.name_servers, 5000) as other:
            queues = await find_write_queues(one, options)
            tasks = [
                attempt(one, options, queues, given, 1_100),
                attempt(other, options, queues, given, 700),
                # Another writer at the same time.
                attempt(other, options, queues, [(str(-1 - n), key) for n, (_, key) in enumerate(given)], 900, "w-0-6"),
            ]
            for sender in await asyncio.gather(*tasks):
                sender.finish()

    run(send())
    assert numbers(cluster.name_server, topic) == list(range(-20_000, 20_000))


@pytest.mark.parametrize("order", ["another order", "other rows"])
def test_rows_that_are_others_the_second_time(cluster: EmbeddedCluster, new_topic: NewTopic, order: str) -> None:
    given = rows(3_000)
    others = list(given)
    if order == "another order":
        random.Random(3).shuffle(others)
    else:
        others[1_234] = ("x", others[1_234][1])
    with pytest.raises(BrokerError, match="other rows, or in another order"):
        attempts(options_for(cluster, new_topic(2)), (given, 1_000), (others, 1_000))


@pytest.mark.parametrize("natively", [True, False])
def test_rows_that_were_read_from_such_a_topic(
    cluster: EmbeddedCluster, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, natively: bool
) -> None:
    """The rows carry the GANTRY_SEQ property of their source topic."""
    if not natively:
        monkeypatch.setattr(batch_bodies, "native", None)
    elif batch_bodies.native is None:
        pytest.skip("gantrymq-native isn't there")
    source, target = new_topic(1), new_topic(1)
    attempts(options_for(cluster, source), (rows(2_000, keyed=0), 2_000))
    found = RocketMQDataSource({"nameserver": cluster.name_server, "subscribe": source, "includeproperties": "true"})
    reader = found.reader(found.schema())
    table = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    kept = [[item for item in row if item[0] == "GANTRY_SEQ"] for row in table["properties"].to_pylist()]
    assert all(kept)
    given = pa.RecordBatch.from_pydict(
        {
            "body": table["body"].combine_chunks(),
            "properties": pa.array(kept, pa.map_(pa.string(), pa.string())),
        }
    )
    options = options_for(cluster, target)

    async def send() -> None:
        async with ClusterClient(options.name_servers, 5000) as brokers:
            sender = IdempotentSender(brokers, await find_write_queues(brokers, options), 0)
            encoded = RowEncoder(options, "w-0-0").encode(given)
            assert (encoded[target].plain is not None) is natively
            await sender.send(encoded)
            sender.finish()

    run(send())
    assert numbers(cluster.name_server, target) == list(range(2_000))


@pytest.mark.parametrize("keyed", [3, 0])
def test_attempts_send_to_the_same_queues(cluster: EmbeddedCluster, keyed: int, tmp_path: Path) -> None:
    """The topic has more queues when the driver restarts."""
    topic, given = f"grows-{keyed}", rows(9_000, keyed=keyed)
    create_topic(cluster, topic, 2)
    options = options_for(cluster, topic)

    async def write(first_rows: Rows) -> Sequence[MessageQueue]:
        async with ClusterClient(options.name_servers, 5000) as brokers:
            found = await find_write_queues(brokers, options)
            queues = await queues_of_earlier_attempt(brokers, found, "w-0", 5)
            (await attempt(brokers, options, list(queues), first_rows, 1_000)).finish()
            return queues

    first = run(write(given[:3_500]))
    create_topic(cluster, topic, 4)
    wait_until(lambda: len(run(found_queues(options))) == 8)
    assert run(write(given)) == first
    assert numbers(cluster.name_server, topic) == list(range(9_000))


async def found_queues(options: WriteOptions) -> list[MessageQueue]:
    async with ClusterClient(options.name_servers, 5000) as brokers:
        return await find_write_queues(brokers, options)


def test_an_attempt_that_goes_to_other_queues_is_refused(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """Such an attempt belongs to a driver that still runs and that chose its queues before the first row was stored."""
    options = options_for(cluster, new_topic(2))
    given = rows(3_000)

    async def write() -> None:
        async with ClusterClient(options.name_servers, 5000) as brokers:
            queues = await find_write_queues(brokers, options)
            await attempt(brokers, options, queues, given, 1_000)
            await attempt(brokers, options, queues[:3], given, 1_000)

    with pytest.raises(
        BrokerError, match=r"goes to the queues broker-a:2;broker-b:1, and went to broker-a:2;broker-b:2"
    ):
        run(write())


def test_fewer_rows_the_second_time(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    given = rows(3_000)
    complete, short = attempts(options_for(cluster, new_topic(2)), (given, 1_000), (given[:2_900], 1_000))
    complete.finish()
    with pytest.raises(ClientError, match="must have the same rows in the same order"):
        short.finish()


def test_a_broker_that_keeps_no_account(
    cluster: EmbeddedCluster,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Simulates a Java broker, which treats the request as an ordinary send."""
    change_constant(monkeypatch, "batches.AFTER_MARK", b"\xff nothing has this")
    topic = new_topic(1)
    options = options_for(cluster, topic)
    with caplog.at_level(logging.WARNING):
        senders = attempts(options, (rows(3_000), 1_000), (rows(3_000), 1_000))
        RocketMQBatchWriter(options).commit(
            [RowsSent(1, 0.0, at_least_once=sender.at_least_once) for sender in senders]
        )
    for broker in senders[0].at_least_once:
        assert len([text for text in caplog.messages if f"{broker} doesn't track rows" in text]) == 2
    assert [text for text in caplog.messages if "they are stored at least once" in text]
    assert numbers(cluster.name_server, topic) == sorted(2 * list(range(3_000)))


def test_the_write_waits_for_expected_brokers(cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    options = options_for(cluster, new_topic(1), expected_brokers=frozenset({"far"}), retry_timeout_ms=1)
    with pytest.raises(BrokersAway, match="is also on far, away now"):
        RocketMQBatchWriter(options)


def test_the_topic_must_be_there(cluster: EmbeddedCluster) -> None:
    """A topic that the first row creates is on one broker only, so a restarted driver would find fewer queues."""
    began = time.monotonic()
    with pytest.raises(NoRouteInfo, match="made-by-a-row") as raised:
        RocketMQBatchWriter(options_for(cluster, "made-by-a-row", retry_timeout_ms=60_000))
    assert "gantry admin updateTopic" in raised.value.__notes__[-1]
    assert time.monotonic() - began < 30
    # The topic may be on a broker that is down.
    options = options_for(cluster, "made-by-a-row", retry_timeout_ms=1, expected_brokers=frozenset({"far"}))
    with pytest.raises(NoRouteInfo) as raised:
        RocketMQBatchWriter(options)
    assert any("retried" in note for note in raised.value.__notes__)


def test_a_broker_is_killed_and_comes_back(tmp_path: Path) -> None:
    """The killed broker's rows wait for it. A driver that starts meanwhile does not take the other queues for all."""
    given, topic = rows(16_000), "killed"

    with Killable(tmp_path, brokers=2) as brokers:
        options = WriteOptions([brokers.namesrv_addr], topic, exactly_once=True, retry_timeout_ms=60_000)

        async def prepare() -> list[MessageQueue]:
            async with AdminClient(brokers.namesrv_addr) as admin:
                await admin.ensure_topic(topic, queues=2)
            async with ClusterClient(options.name_servers, 5000) as cluster:
                return await find_write_queues(cluster, options)

        async def write() -> IdempotentSender:
            async with ClusterClient(options.name_servers, options.retry_timeout_ms) as cluster:
                return await attempt(cluster, options, queues, given, 1_000)

        queues = run(prepare())
        assert len(queues) == 4
        with ThreadPoolExecutor(2) as threads:
            writes = [threads.submit(run, write())]
            wait_until(lambda: max_offsets(brokers, queues) > 3_000)
            brokers.kill()
            writes.append(threads.submit(run, write()))
            with pytest.raises(BrokersAway, match="broker-b, away now"):
                RocketMQBatchWriter(replace(options, retry_timeout_ms=1))
            brokers.start_again()
            for sender in [written.result(WAIT_S) for written in writes]:
                sender.finish()
        assert max_offsets(brokers, queues) == len(given)
        assert numbers(brokers.namesrv_addr, topic) == list(range(16_000))


# -- in Spark ---------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_batch_that_is_written_again_by_its_name(
    spark: SparkSession, cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic(2)

    def write(number: int, first: int) -> None:
        (
            spark.range(first, first + 5_000, 1, 3)
            .select(F.col("id").cast("string").alias("body"))
            .write.format("rocketmq")
            .options(nameServer=cluster.name_server, topic=topic, exactlyOnce="true")
            .options(txnAppId="nightly", txnVersion=str(number))
            .mode("append")
            .save()
        )

    for number, first in ((1, 0), (1, 0), (2, 5_000), (2, 5_000)):
        write(number, first)
    assert numbers(cluster.name_server, topic) == list(range(10_000))
    with pytest.raises(Exception, match=r"batch 1 of the writer nightly-\d+ comes after its batch 2"):
        write(1, 0)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_tasks_that_fail_and_are_run_again(cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path) -> None:
    """Each task's first attempt fails after most of its rows are sent."""
    topic = new_topic(2)
    with driver(["failing", cluster.name_server, topic, "-", "0", tmp_path], tmp_path) as process:
        assert process.wait(WAIT_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert "fails on purpose" in (tmp_path / "driver.log").read_text()
    assert numbers(cluster.name_server, topic) == list(range(20_000))
