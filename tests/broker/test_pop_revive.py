"""The revive log, as a plain table and with a store.

It is processed in small steps, despite damaged records and full disks.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bare_store import HOST, bodies, damage, full_disk, nobody_waits, open_store, records
from hypothesis import given
from hypothesis import strategies as st
from step_timer import StepTimer
from wrong_clock import WrongClock

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append.new_topics import NewTopics
from gantrymq.broker.append.preallocation_waits import PreallocationWaits
from gantrymq.broker.append.request_waits import RequestWaits
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.delay.levels import DelayLevels
from gantrymq.broker.pop.revive import PopRevive
from gantrymq.broker.pop.revive_log import ReviveLog
from gantrymq.broker.pop.revive_queue import LIMIT, ReviveQueue
from gantrymq.broker.pull.long_polling import LongPolling
from gantrymq.broker.send.retry_topics import RetryTopics
from gantrymq.broker.tables import BrokerStats
from gantrymq.broker.tables.consumer_offsets import ConsumerOffsets
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.broker.tables.subscription_groups import SubscriptionGroupTable
from gantrymq.broker.tables.topics import BrokerTopics
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.pop import Ack, Checkpoint, PopKey
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.properties import MAX_PROPERTIES_LENGTH, encode_properties
from gantrymq.protocol.topic_name import REVIVE_GROUP
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system.clock import now_ms

RETRY = "%RETRY%g_t"


def checkpoint(start: int, count: int = 1, *, pop_time: int = 0, invisible_time: int = 60_000) -> Checkpoint:
    return Checkpoint(
        start_offset=start,
        pop_time=pop_time,
        invisible_time=invisible_time,
        count=count,
        queue_id=0,
        topic="t",
        group="g",
        diffs=list(range(count)),
        broker_name="b",
    )


def ack(start: int, offset: int, *, pop_time: int = 0) -> Ack:
    return Ack(start_offset=start, group="g", topic="t", queue_id=0, pop_time=pop_time, offset=offset, broker_name="b")


# -- the table ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_due_once_the_log_is_past_its_acknowledgements() -> None:
    queue = ReviveQueue(10)
    queue.take_checkpoint(checkpoint(0, 2, invisible_time=5000), 10, 4000)
    queue.take_checkpoint(checkpoint(5, 1, invisible_time=5000), 11, 4000)
    queue.read_to(12, 5000)
    assert (queue.due(7900), queue.committed) == (None, 9)
    queue.take_ack(ack(0, 1))
    queue.take_ack(ack(99, 99))
    queue.read_to(14, 7001)
    first = queue.due(7100)
    assert first is not None
    assert (first.offset, first.acked, first.next_unacked()) == (10, 0b10, (0, 0))
    queue.done(first)
    assert queue.committed == 10
    second = queue.due(7100)
    assert second is not None
    queue.done(second)
    assert (queue.due(10**9), queue.committed) == (None, 13)


def test_a_complete_log_is_past_every_time_before() -> None:
    queue = ReviveQueue(0)
    assert queue.next_due_ms is None
    queue.take_checkpoint(checkpoint(0, invisible_time=1000), 0, 0)
    queue.read_to(1, 0)
    assert queue.next_due_ms == 3001
    assert queue.due(3000, is_complete=True) is None
    assert queue.due(10**9, is_complete=False) is None
    assert queue.due(3001, is_complete=True) is not None


def test_a_checkpoint_waits_for_its_time_after_the_clock_was_set_back() -> None:
    queue = ReviveQueue(0)
    queue.take_checkpoint(checkpoint(0, invisible_time=60_000), 0, 59_000)
    queue.read_to(1, 60_000)
    first = queue.due(62_001, is_complete=True)
    assert first is not None
    queue.done(first)
    # The clock is set back by 5 s. The acknowledgement of the next pop comes at its revive time, 58 s.
    queue.take_checkpoint(checkpoint(1, pop_time=1000, invisible_time=57_000), 1, 57_000)
    queue.read_to(2, 57_000)
    assert queue.due(57_001) is None
    assert queue.due(60_000, is_complete=True) is None
    assert queue.due(60_001, is_complete=True) is not None


def test_a_batch_and_a_bit_map_acknowledge() -> None:
    queue = ReviveQueue(0)
    one = checkpoint(0, 4, invisible_time=0)
    one.bit_map = 0b1000
    queue.take_checkpoint(one, 0, 0)
    queue.take_ack(Ack(start_offset=0, group="g", topic="t", queue_id=0, pop_time=0, offsets=[0, 2], broker_name="b"))
    queue.read_to(2, 60_000)
    due = queue.due(60_000)
    assert due is not None
    assert due.acked == 0b1101


def test_a_checkpoint_that_claims_to_be_of_the_future_keeps_none_behind_it_waiting() -> None:
    queue = ReviveQueue(0)
    queue.take_checkpoint(checkpoint(0, pop_time=1 << 60), 0, 5000)
    queue.take_checkpoint(checkpoint(1, invisible_time=6000), 1, 5000)
    queue.read_to(2, 6000)
    queue.read_to(3, 8001)
    for offset in (0, 1):
        due = queue.due(8001)
        assert due is not None
        assert due.offset == offset
        queue.done(due)


#: Steps of (delay until the pop, whether it is acknowledged, index of the acknowledged message).
STEPS = st.lists(st.tuples(st.integers(0, 1500), st.booleans(), st.integers(0, 5)), max_size=60)


@given(STEPS, st.integers(1, 4))
def test_what_comes_back_is_the_same_however_many_fit_into_memory(
    steps: list[tuple[int, bool, int]], limit: int
) -> None:
    """The redelivered messages do not depend on the number of checkpoints that fit into memory.

    The log is sorted by time: a checkpoint comes one second before its revive time, and its acknowledgements at that
    time.
    """
    at = 0
    log: list[tuple[int, Checkpoint | Ack]] = []
    for number, (later, is_acked, place) in enumerate(steps):
        at += later
        one = checkpoint(number * 10, 6, pop_time=at)
        log.append((one.revive_time - 1000, one))
        if is_acked:
            log.append((one.revive_time, ack(number * 10, number * 10 + place, pop_time=at)))
    log.sort(key=lambda entry: entry[0])

    def read(limit: int) -> list[tuple[PopKey, int]]:
        queue, now, back = ReviveQueue(0, limit), at + 10**6, []
        while True:
            if (due := queue.due(now, is_complete=queue.read_offset == len(log))) is not None:
                back.append((due.checkpoint.key, due.acked))
                queue.done(due)
            elif queue.read_offset < len(log):
                deliver_ms, said = log[queue.read_offset]
                if isinstance(said, Ack):
                    queue.take_ack(said)
                elif queue.wants_checkpoints:
                    queue.take_checkpoint(said, queue.read_offset, deliver_ms)
                queue.read_to(queue.read_offset + 1, deliver_ms)
            else:
                assert queue.committed == len(log) - 1
                return back
            assert len(queue) <= limit

    assert read(limit) == read(10**6)


# -- with a store ---------------------------------------------------------------------------------------------------


class ImmediateTimer:
    """A timer that delivers each message at once. `is_late` says whether it has to deliver others."""

    is_late = True

    def redirect(self, queue: ConsumeQueue, properties: bytes, tags_code: int) -> tuple[ConsumeQueue, bytes, int]:
        return queue, properties, tags_code

    def has_delivered_due(self) -> bool:
        return not self.is_late


class World:
    """The revive log of a broker whose timer has delivered everything."""

    def __init__(self, root: Path, polling: LongPolling, **options: object) -> None:
        self.appender = open_store(root / "store", polling, **options)
        self.store = self.appender.store
        config = BrokerConfig(broker_name="b", store=self.store.config)
        self.persistence = persistence = TablePersistence(config, Jobs())
        self.topics = BrokerTopics(config, root / "topics.json", lambda names: None, persistence=persistence)
        self.topics.put(TopicConfig("t", 1, 1))
        self.groups = SubscriptionGroupTable(config, root / "groups.json", persistence=persistence)
        self.groups.get("g")
        self.offsets = ConsumerOffsets(root / "offsets.json", persistence=persistence)
        schedule = DelayLevels(root / "delays.json", [1000], self.appender, Jobs(), persistence=persistence)
        context: Any = SimpleNamespace(
            config=config, topics=self.topics, groups=self.groups, offsets=self.offsets, stats=BrokerStats()
        )
        # No client sends a message back in these tests.
        pending_responses: Any = None
        waits = RequestWaits(PreallocationWaits(self.store, Jobs()), NewTopics(self.topics, Jobs()), pending_responses)
        retry = RetryTopics(context, appender=self.appender, schedule=schedule, waits=waits)
        self.timer = ImmediateTimer()
        self.log = ReviveLog(self.appender, "c", 2, self.timer)
        self.revive = PopRevive(context, revive_log=self.log, appender=self.appender, retry=retry)

    def send(self, body: bytes, properties: bytes = b"") -> int:
        """Stores a message of the topic and returns its physical offset."""
        queue = self.store.queue("t", 0)
        return self.appender.append(queue, 0, 0, 0, HOST, 0, body, properties, 0).physical_offset

    def put(self, body: bytes, tag: str, queue_id: int = 0) -> int:
        """Stores an invalid record in the revive log."""
        queue = self.store.queue(self.log.topic, queue_id)
        properties = encode_properties({"TAGS": tag})
        return self.appender.append(queue, 0, 0, 0, HOST, 0, body, properties, 0).physical_offset

    def wait(self) -> None:
        """Simulates that the timer has delivered everything that is due."""
        self.timer.is_late = False

    def make_retry_topic(self) -> None:
        """Creates the retry topic on disk in advance, so that no time slice waits for it."""
        self.topics.create_if_absent(RETRY, 1)
        self.persistence.save()

    def work(self) -> None:
        """Processes the revive log until nothing is left."""
        self.wait()
        # Messages are redelivered only to saved topics: the retry topic and the dead-letter topic are new.
        for _ in range(3):
            while self.revive.turn():
                pass
            self.persistence.save()

    def committed(self, queue_id: int = 0) -> int | None:
        return self.offsets.query(REVIVE_GROUP, self.log.topic, queue_id)


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., World]]:
    worlds: list[World] = []
    polling = nobody_waits()

    def make_world(**options: object) -> World:
        worlds.append(World(tmp_path, polling, **options))
        return worlds[-1]

    yield make_world
    for world in worlds:
        world.store.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


OLD = now_ms() - 3600_000


def old(start: int, count: int = 1) -> Checkpoint:
    return checkpoint(start, count, pop_time=OLD)


def test_bad_records_are_skipped_counted_and_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    places = [world.send(b"%d" % n) for n in range(6)]
    world.revive.start()
    for n in range(3):
        world.log.put_checkpoint(old(n), 0)
    bad = [world.put(b"damaged", "ck"), world.put(b"nonsense", "ck"), world.put(b"{}", "ack")]
    many = b'{"so":0,"c":"g","t":"t","q":0,"pt":1,"aol":[%b]}' % b",".join([b"0"] * 33)
    bad.append(world.put(many, "bAck"))
    world.put(b"of no kind", "other")
    world.log.put_checkpoint(old(3, 3), 0)
    damage(world.store, bad[0])
    damage(world.store, places[1])
    # The size field of a record between valid ones.
    damage(world.store, places[4], 3)
    world.work()
    assert bodies(world.store, RETRY) == [b"0", b"2", b"3", b"5"]
    assert world.revive.skipped == len(bad) + 2
    assert world.committed() == 8
    for number, place in enumerate(bad, 3):
        assert f"message {number} of {world.log.topic}-0, at {place} in the commit log, is skipped" in caplog.text
    for number in (1, 4):
        assert f"message {number} of t-0, at {places[number]} in the commit log, is skipped" in caplog.text


def test_a_late_timer_delays_the_redelivery(world: World, wrong_clock: WrongClock) -> None:
    """Acknowledgements can be among the records that the timer has not delivered yet, however late it is."""
    world.send(b"0")
    world.make_retry_topic()
    world.revive.start()
    world.log.put_checkpoint(old(0), 0)
    for _ in range(2):
        while world.revive.turn():
            pass
        assert bodies(world.store, RETRY) == []
        wrong_clock.ahead_s += 60
    world.wait()
    while world.revive.turn():
        pass
    assert bodies(world.store, RETRY) == [b"0"]


@pytest.mark.parametrize("topic", [RETRY, "%DLQ%g"])
def test_nothing_comes_back_to_a_topic_that_is_not_on_the_disk(world: World, topic: str) -> None:
    """Messages are redelivered only to a topic whose configuration is on disk.

    Otherwise a message would be unreachable after a crash although its checkpoint is complete.
    """
    group = world.groups.get("g")
    assert group is not None
    group.retry_max_times = 16 if topic == RETRY else 0
    for n in range(2):
        world.send(b"%d" % n)
    world.revive.start()
    world.log.put_checkpoint(old(0, 2), 0)
    for _ in range(2):
        while world.revive.turn():
            pass
        world.wait()
    assert world.topics.get(topic) is not None
    assert (bodies(world.store, topic), world.committed()) == ([], None)
    world.work()
    assert (sorted(bodies(world.store, topic)), world.committed()) == ([b"0", b"1"], 0)


def test_a_full_disk_loses_and_repeats_nothing(world: World) -> None:
    for n in range(5):
        world.send(b"%d" % n)
    world.make_retry_topic()
    world.revive.start()
    world.log.put_checkpoint(old(0, 3), 0)
    world.log.put_checkpoint(old(3, 2), 1)
    while world.revive.turn():
        pass
    world.wait()
    with full_disk(world.store):
        for _ in range(3):
            with pytest.raises(RequestRefused):
                world.revive.turn()
    assert (bodies(world.store, RETRY), world.committed()) == ([], None)
    # The store is full again in the middle of a checkpoint.
    world.revive.step(0)
    with full_disk(world.store), pytest.raises(RequestRefused):
        world.revive.turn()
    assert bodies(world.store, RETRY) == [b"0"]
    world.work()
    assert sorted(bodies(world.store, RETRY)) == [b"%d" % n for n in range(5)]
    assert (world.committed(0), world.committed(1)) == (0, 0)


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("attempts", [0, 16])
def test_what_was_accepted_comes_back_however_long_its_properties_are(
    make: Callable[..., World], crc: bool, attempts: int
) -> None:
    world = make(enabled_append_prop_crc=crc)
    most = world.appender.max_properties_length
    tails = [0, 60, 120, 200]
    for tail in tails:
        properties = encode_properties({"UNIQ_KEY": "k", "pad": "x" * (most - tail - 20)})
        properties += b"a\x01%b\x02" % (b"y" * (most - tail - len(properties) - 3))
        queue = world.store.queue("t", 0)
        world.appender.append(queue, 0, 0, 0, HOST, attempts, b"long", properties, 0)
    # Bytes that are not valid UTF-8 become three times as long.
    world.send(b"no text", b"pad\x01" + b"\xff" * (MAX_PROPERTIES_LENGTH - 30) + b"\x02")
    world.revive.start()
    world.log.put_checkpoint(old(0, 5), 0)
    world.work()
    came = records(world.store, "%DLQ%g") if attempts else []
    came += records(world.store, RETRY)
    assert [record.body for record in came] == [b"long"] * 4 + [b"no text"]
    for record, tail in zip(came[:4], tails, strict=True):
        assert b"pad\x01" + b"x" * (most - tail - 20) in record.properties
    assert world.revive.skipped == 0


def test_a_topic_that_is_gone_is_named_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.send(b"0")
    world.topics.remove("t")
    world.revive.start()
    for n in range(100):
        world.log.put_checkpoint(old(n), 0)
    world.work()
    assert caplog.text.count("don't come back") == 1
    assert world.committed() == 99


@pytest.mark.slow
@pytest.mark.parametrize("is_mixed", [True, False], ids=["mixed", "acknowledgements last"])
def test_a_backlog_takes_small_steps_and_little_memory(world: World, is_mixed: bool) -> None:
    """A large backlog is processed in small steps and with little memory.

    It has 200,000 records of the same second. One pop in a thousand is redelivered.
    """
    half = 100_000
    queue = world.store.queue(world.log.topic, 0)
    for n in range(100):
        world.send(b"%d" % n)
    key = b'"so":%d,"c":"g","t":"t","q":0,"pt":%d,"bn":"b"'

    def put(body: bytes, tag: str, deliver_ms: int) -> None:
        properties = encode_properties({"TAGS": tag, "TIMER_DELIVER_MS": str(deliver_ms)})
        world.store.append(queue, 0, 0, 0, HOST, 0, body, properties, 0)

    def put_checkpoint(n: int) -> None:
        put(b'{%b,"it":60000,"n":1,"d":[0]}' % (key % (n // 1000, OLD + n % 1000)), "ck", OLD + 59_000 + n % 1000)

    def put_ack(n: int) -> None:
        if n % 1000:
            put(b'{%b,"ao":%d}' % (key % (n // 1000, OLD + n % 1000), n // 1000), "ack", OLD + 60_000 + n % 1000)

    for n in range(half):
        put_checkpoint(n)
        if is_mixed:
            put_ack(n)
    for n in range(half if not is_mixed else 0):
        put_ack(n)
    put(b"{}", "of a later time", OLD + 70_000)
    world.make_retry_topic()
    world.revive.start()
    timer, waiting, more = StepTimer(), 0, True
    # Keep garbage of other tests out of the measurement.
    gc.collect()
    gc.freeze()
    try:
        while more:
            with timer.step():
                more = world.revive.turn()
            waiting = max(waiting, len(world.revive.queues[0]))
    finally:
        gc.unfreeze()
    assert sorted(map(int, bodies(world.store, RETRY))) == list(range(100))
    assert world.committed() == queue.max_offset - 1
    assert waiting == LIMIT
    assert timer.longest < 0.05


def test_all_that_may_wait_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        queue = ReviveQueue(0)
        number = 0
        while queue.wants_checkpoints:
            body = encode_json(checkpoint(10_000 + 32 * number, 32, pop_time=OLD + number))
            queue.take_checkpoint(decode_json(body, Checkpoint), number, OLD)
            number += 1
            queue.read_to(number, OLD)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (number, len(queue)) == (LIMIT, LIMIT)
    assert size < 10 * 1024 * 1024
