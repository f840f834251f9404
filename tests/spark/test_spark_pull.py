"""Tests, without Spark, how a range is pulled: brokers that die, lost data."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from constants import change_constant
from spark_support import BULK_TRANSFER, create_topic, send_numbers
from wait_until import wait_until

from gantrymq.arrow import pull
from gantrymq.arrow.cluster_client import ClusterClient, run
from gantrymq.arrow.columns import ARROW_TYPES
from gantrymq.arrow.connection_pool import task_connections
from gantrymq.arrow.offsets import OffsetRange
from gantrymq.arrow.rows import read_ranges
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.broker_api import PullResult
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ClientError, DataLost, RecordError, RemotingError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.record import Record
from gantrymq.spark.options import ReadOptions
from gantrymq.store.config import StoreConfig
from gantrymq.store.offline import OfflineLog
from gantrymq.testing.embedded import EmbeddedCluster

BODY = pa.schema([("body", ARROW_TYPES["body"])])


def bodies(wanted: OffsetRange, options: ReadOptions) -> Iterator[list[bytes]]:
    for batch in read_ranges([wanted], options, BODY):
        yield batch.column("body").to_pylist()


def options_for(name_server: str, topic: str, **more: str) -> ReadOptions:
    return ReadOptions.parse({"nameserver": name_server, "subscribe": topic, "retrytimeoutms": "10000"} | more)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.fixture
def one_queue(cluster: EmbeddedCluster) -> MessageQueue:
    """Returns a queue with 1,000 numbered messages in order."""
    topic = "spark-pull"
    create_topic(cluster, topic, 1, brokers=[0])
    queue = MessageQueue(topic, "broker-a", 0)
    if run(_last_offset(cluster, queue)) == 0:
        send_numbers(cluster, topic, range(1000))
    return queue


async def _last_offset(cluster: EmbeddedCluster, queue: MessageQueue) -> int:
    async with ClusterClient([cluster.name_server], 5000) as brokers:
        return await brokers.max_offset(queue)


def test_exactly_the_range(cluster: EmbeddedCluster, one_queue: MessageQueue) -> None:
    options = options_for(cluster.name_server, one_queue.topic)
    assert list(chain(*bodies(OffsetRange(one_queue, 0, 1000), options))) == numbered(1000)
    assert list(chain(*bodies(OffsetRange(one_queue, 17, 19), options))) == [b"17", b"18"]


def test_small_pulls_make_large_batches(
    cluster: EmbeddedCluster, one_queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "pull.PULL_BYTES", 500)
    change_constant(monkeypatch, "pull.BATCH_ROWS", 400)
    found = list(bodies(OffsetRange(one_queue, 0, 1000), options_for(cluster.name_server, one_queue.topic)))
    assert all(300 < len(batch) <= 400 for batch in found[:-1])
    assert list(chain(*found)) == numbered(1000)


def test_tags_leave_out_the_others(cluster: EmbeddedCluster, one_queue: MessageQueue) -> None:
    options = options_for(cluster.name_server, one_queue.topic, tags="Odd || None")
    found = list(chain(*bodies(OffsetRange(one_queue, 100, 200), options)))
    assert found == [b"%d" % n for n in range(101, 200, 2)]


async def others() -> set[asyncio.Task[Any]]:
    """Returns the other pending tasks of the event loop."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def test_an_abandoned_read_leaves_nothing_under_way(
    cluster: EmbeddedCluster, one_queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "pull.PULL_BYTES", 500)
    change_constant(monkeypatch, "pull.BATCH_ROWS", 10)
    options = options_for(cluster.name_server, one_queue.topic)

    with task_connections(options) as brokers:
        for read in range(3):
            batches = pull.pull_batches([OffsetRange(one_queue, 0, 1000)], options)
            for _ in range(read + 1):
                next(batches)
            assert brokers.submit(others()).result()
            batches.close()
            assert not brokers.submit(others()).result()


def test_what_a_broker_never_had_is_lost_data(cluster: EmbeddedCluster, one_queue: MessageQueue) -> None:
    wanted = OffsetRange(one_queue, 990, 1010)
    with pytest.raises(ClientError, match="failOnDataLoss"):
        list(bodies(wanted, options_for(cluster.name_server, one_queue.topic, retrytimeoutms="200")))
    lenient = options_for(cluster.name_server, one_queue.topic, retrytimeoutms="200", failondataloss="false")
    assert list(chain(*bodies(wanted, lenient))) == numbered(1000)[990:]


def test_what_a_broker_refuses_is_its_error(cluster: EmbeddedCluster, one_queue: MessageQueue) -> None:
    with pytest.raises(BrokerError):
        list(
            bodies(
                OffsetRange(one_queue._replace(queue_id=99), 0, 1), options_for(cluster.name_server, one_queue.topic)
            )
        )


def test_a_broker_that_stays_away_is_an_error(cluster: EmbeddedCluster, one_queue: MessageQueue) -> None:
    wanted = OffsetRange(one_queue._replace(broker_name="broker-z"), 0, 1)
    with pytest.raises(RemotingError, match="broker-z") as caught:
        list(bodies(wanted, options_for(cluster.name_server, one_queue.topic, retrytimeoutms="100")))
    assert "retryTimeoutMs" in "".join(caught.value.__notes__)


def lose(log: OfflineLog, records: list[Record]) -> None:
    """Removes records from the log of a running broker, but not from its queue."""
    for record in records:
        file = log.file_at(record.physical_offset)
        assert file is not None
        with file.path.open("r+b") as opened:
            opened.seek(record.physical_offset - file.base)
            opened.write(bytes(4))


def test_lost_messages_that_a_filter_wants(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedCluster(directory=tmp_path, **BULK_TRANSFER) as cluster:
        create_topic(cluster, "holes", 1, brokers=[0])
        send_numbers(cluster, "holes", range(10))
        wanted = OffsetRange(MessageQueue("holes", "broker-a", 0), 0, 10)
        strict = options_for(cluster.name_server, "holes", tags="Odd")
        log = OfflineLog(tmp_path / "broker-a" / "commitlog")
        even, odd = ([record for record in log.reader() if tag in record.properties] for tag in (b"Even", b"Odd"))
        lose(log, even)
        assert list(chain(*bodies(wanted, strict))) == numbered(10)[1::2]
        assert "no messages from" not in caplog.text
        lose(log, odd)
        with pytest.raises(DataLost, match=r"holes broker-a:0 .* no messages from 0 to 10"):
            list(bodies(wanted, strict))
        lenient = options_for(cluster.name_server, "holes", tags="Odd", failondataloss="false")
        assert list(bodies(wanted, lenient)) == []
        assert "no messages from 0 to 10" in caplog.text


def test_a_read_that_does_not_end_in_time_hides_no_error(
    cluster: EmbeddedCluster, one_queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "pull.BATCH_ROWS", 10)
    change_constant(monkeypatch, "connection_pool.CANCEL_TIMEOUT_S", 0.01)
    options = options_for(cluster.name_server, one_queue.topic)
    may_end = threading.Event()
    pull_at_once = ClusterClient.pull

    async def pull_or_hang(self: ClusterClient, queue: MessageQueue, offset: int, *more: Any) -> PullResult:
        if offset < 20:
            return await pull_at_once(self, queue, offset, *more)
        try:
            await asyncio.Event().wait()
        finally:
            while not may_end.is_set():
                await asyncio.sleep(0.001)
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(ClusterClient, "pull", pull_or_hang)

    def fail() -> None:
        with closing(pull.pull_batches([OffsetRange(one_queue, 0, 1000)], options)) as batches:
            assert next(batches).end == 10
            raise ValueError("of the task")

    with pytest.raises(ValueError, match="of the task"):
        fail()
    may_end.set()
    with task_connections(options) as brokers:
        wait_until(lambda: not brokers.submit(others()).result())


def test_damaged_records_name_their_range(
    cluster: EmbeddedCluster, one_queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(cluster.name_server, one_queue.topic)
    (whole,) = pull.pull_batches([OffsetRange(one_queue, 0, 2)], options)
    damaged = whole._replace(buffer=whole.buffer[:-5])
    monkeypatch.setattr("gantrymq.arrow.rows.pull_batches", lambda *_: iter([damaged]))
    with pytest.raises(RecordError, match="in spark-pull broker-a:0 offsets 0 to 2: "):
        list(bodies(OffsetRange(one_queue, 0, 2), options))


async def test_a_broker_that_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "pull.BATCH_ROWS", 100)
    name_server = NameServer(
        NamesrvConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            kv_config_path=tmp_path / "kv.json",
            config_store_path=tmp_path / "namesrv.properties",
        )
    )
    await name_server.start()

    def broker() -> Broker:
        return Broker(
            BrokerConfig(
                broker_name="broker-a",
                bind_address="127.0.0.1",
                listen_port=0,
                namesrv_addr=[name_server.address],
                store=StoreConfig(
                    store_path_root_dir=tmp_path / "store",
                    mapped_file_size_commit_log=16 * 1024 * 1024,
                    **BULK_TRANSFER,
                ),
            )
        )

    first = broker()
    await first.start()
    async with Producer(name_server.address, "numbers", default_topic_queue_nums=1) as producer:
        for n in range(0, 500, 100):
            await producer.send_batch([Message("mortal", b"%d" % i) for i in range(n, n + 100)])
    wanted = OffsetRange(MessageQueue("mortal", "broker-a", 0), 0, 500)
    batches = bodies(wanted, options_for(name_server.address, "mortal"))
    found = await asyncio.to_thread(next, batches)
    await first.stop()
    # The new broker has another port, so the client must request the route again.
    rest = asyncio.create_task(asyncio.to_thread(lambda: list(chain(*batches))))
    second = broker()
    await second.start()
    found += await rest
    await second.stop()
    await name_server.stop()
    assert found == numbered(500)


@pytest.fixture(scope="module")
def small_answers() -> Iterator[EmbeddedCluster]:
    """A broker that returns at most 32 messages per pull, as Apache's brokers do."""
    with EmbeddedCluster(max_transfer_count_on_message_in_memory=32, max_transfer_count_on_message_in_disk=32) as c:
        create_topic(c, "small", 2, brokers=[0])
        for first in range(0, 10_000, 1000):
            send_numbers(c, "small", range(first, first + 1000))
        yield c


def ranges_of(cluster: EmbeddedCluster, topic: str) -> list[OffsetRange]:
    """Returns ranges that cover the whole topic."""

    async def look() -> list[OffsetRange]:
        async with ClusterClient([cluster.name_server], 5000) as brokers:
            return [OffsetRange(q, 0, await brokers.max_offset(q)) for q in await brokers.read_queues(topic)]

    return run(look())


def test_several_ranges_in_small_answers(small_answers: EmbeddedCluster) -> None:
    ranges = ranges_of(small_answers, "small")
    options = options_for(small_answers.name_server, "small")
    found = list(pull.pull_batches(ranges, options))
    # In order, without gaps, and merged.
    assert [OffsetRange(queue, start, end) for queue, start, end, _ in found] == ranges
    numbers = [int(n) for batch in read_ranges(ranges, options, BODY) for n in batch.column("body").to_pylist()]
    assert sorted(numbers) == list(range(10_000))


@pytest.mark.parametrize("more", [{"tags": "Odd"}, {"sql92": "TAGS = 'Odd'"}])
def test_small_answers_of_a_filter(small_answers: EmbeddedCluster, more: dict[str, str]) -> None:
    ranges = [part._replace(start=7, end=part.end - 7) for part in ranges_of(small_answers, "small")]
    options = options_for(small_answers.name_server, "small")
    everything = [int(n) for batch in read_ranges(ranges, options, BODY) for n in batch.column("body").to_pylist()]
    options = options_for(small_answers.name_server, "small", **more)
    found = [int(n) for batch in read_ranges(ranges, options, BODY) for n in batch.column("body").to_pylist()]
    assert found == [n for n in everything if n % 2]


def test_pace_follows_the_answers() -> None:
    window = pull.PullWindow()
    assert (window.rows, window.pulls) == (pull.BATCH_ROWS, 1)
    window.update(pull.BATCH_ROWS, 32, 10_000)
    assert (window.rows, window.pulls) == (32, pull.MAX_PULLS)
    # The rest of a range is smaller than a full response, so it does not show how large those are.
    for _ in range(pull.GROW_AFTER):
        window.update(20, 20, 7000)
    assert window.rows == 32
    for _ in range(pull.GROW_AFTER):
        window.update(32, 32, 10_000)
    assert window.rows == 64
    window.update(64, 3, 4 * pull.WINDOW_BYTES)
    assert (window.rows, window.pulls) == (3, 2)
