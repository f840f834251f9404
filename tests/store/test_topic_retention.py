"""Retention of single topics: the minimum offset of a queue advances, and its records stay in the log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from constants import change_constant
from store_support import (
    STORE_HOST,
    UNITS_PER_FILE,
    crash,
    flush_queues,
    flushed,
    log_files,
    put,
    queue_files,
    read_all,
    small_config,
)

from gantrymq.errors import StoreError
from gantrymq.store import message_writer, retention
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore
from gantrymq.store.topic_retention import RetentionLimits
from gantrymq.store.verify import verify

START_MS = 1_800_000_000_000
DAY_MS = 86_400_000


class Topics:
    """The limits of each topic, as the store requests them."""

    def __init__(self) -> None:
        self.limits: dict[str, RetentionLimits] = {}

    def limit(self, topic: str = "orders", *, max_age_ms: int | None = None, max_bytes: int | None = None) -> None:
        self.limits[topic] = RetentionLimits(max_age_ms, max_bytes)


@pytest.fixture
def topics() -> Topics:
    return Topics()


OpenStore = Callable[[], MessageStore]


@pytest.fixture
def open_limited(tmp_path: Path, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStore]:
    # The log's own retention deletes files only if a test fills the disk.
    monkeypatch.setattr(retention, "used_percent", lambda path: 10.0)
    opened: list[MessageStore] = []

    def open_store() -> MessageStore:
        config = small_config(tmp_path, file_reserved_time=1_000_000)
        store = MessageStore(config, STORE_HOST, topic_limits=topics.limits.get)
        store.open()
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(open_limited: OpenStore) -> MessageStore:
    return open_limited()


class Clock:
    """The clock of the store timestamps, in ms."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = START_MS
        patch.setattr(message_writer, "time", lambda: self.now_ms / 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def put_each_second(store: MessageStore, clock: Clock, queue: ConsumeQueue, count: int) -> None:
    for n in range(count):
        put(store, queue, b"%d" % n)
        clock.now_ms += 1000


def run(store: MessageStore, now_ms: int) -> None:
    """Runs rounds until one pass over all queues is complete."""
    while store.clean(now_ms):
        pass


def size_of(store: MessageStore, body: bytes) -> int:
    """Returns the size of a record of the topic `orders` with this body."""
    before = store.max_physical_offset
    put(store, store.queue("orders", 99), body)
    return store.max_physical_offset - before


# -- by age ----------------------------------------------------------------------------------------------------------


def test_messages_older_than_the_limit_expire(store, topics, clock):
    queue, other = store.queue("orders", 0), store.queue("others", 0)
    put_each_second(store, clock, queue, 120)
    put(store, other, b"of another topic")
    run(store, clock.now_ms)
    assert queue.min_offset == 0
    topics.limit(max_age_ms=60_000)
    run(store, START_MS + 90_000)
    # The message of the second 30 is exactly 60 s old.
    assert queue.min_offset == 30
    assert [record.queue_offset for record in read_all(store, queue)] == list(range(30, 120))
    assert (other.min_offset, len(read_all(store, other))) == (0, 1)


@pytest.mark.parametrize("steps", [(1,) * 20, (0, 3, 50, 1, 0, 200), (179, 1, 1), (90, -40, -60, 80)])
def test_each_pass_finds_the_first_message(store, topics, clock, steps):
    queue = store.queue("orders", 0)
    put_each_second(store, clock, queue, 180)
    topics.limit(max_age_ms=1000)
    seconds = 1
    for step in steps:
        seconds += step
        run(store, START_MS + seconds * 1000)
        assert queue.min_offset == max(0, min(seconds - 1, 180)), seconds


def test_all_messages_expire_and_the_next_one_is_visible(store, topics, clock):
    queue = store.queue("orders", 0)
    put_each_second(store, clock, queue, 3)
    topics.limit(max_age_ms=1000)
    clock.now_ms += DAY_MS
    run(store, clock.now_ms)
    assert (queue.min_offset, queue.max_offset) == (3, 3)
    assert store.get(queue, 3, 32, 1 << 20).status is GetStatus.OFFSET_OVERFLOW_ONE
    put(store, queue, b"next")
    run(store, clock.now_ms)
    assert [bytes(record.body) for record in read_all(store, queue)] == [b"next"]


def test_a_read_before_the_minimum_is_sent_to_it(store, topics, clock):
    queue = store.queue("orders", 0)
    put_each_second(store, clock, queue, 10)
    topics.limit(max_age_ms=1000)
    run(store, START_MS + 8_000)
    result = store.get(queue, 2, 32, 1 << 20)
    assert (result.status, result.next_begin_offset, result.min_offset) == (GetStatus.OFFSET_TOO_SMALL, 7, 7)
    assert store.offset_by_time(queue, 0) == 7


def test_messages_that_are_not_confirmed_do_not_expire(store, topics, clock):
    queue = store.queue("orders", 0)
    put_each_second(store, clock, queue, 5)
    store.confirm_offset = lambda: queue.unit(3)[0]
    topics.limit(max_age_ms=1000, max_bytes=1)
    run(store, clock.now_ms + DAY_MS)
    assert queue.min_offset == 3
    store.confirm_offset = None
    run(store, clock.now_ms + DAY_MS)
    assert queue.min_offset == 5


# -- by size ---------------------------------------------------------------------------------------------------------


def test_only_the_newest_bytes_stay(store, topics):
    queue = store.queue("orders", 0)
    size = size_of(store, bytes(100))
    for _ in range(3 * UNITS_PER_FILE):
        put(store, queue, bytes(100))
    topics.limit(max_bytes=70 * size)
    run(store, START_MS)
    assert queue.min_offset == 3 * UNITS_PER_FILE - 70
    topics.limit(max_bytes=70 * size - 1)
    run(store, START_MS)
    assert queue.min_offset == 3 * UNITS_PER_FILE - 69


def test_the_newest_message_stays_however_large(store, topics):
    queue = store.queue("orders", 0)
    topics.limit(max_bytes=10)
    run(store, START_MS)
    assert queue.min_offset == 0
    for n in range(3):
        put(store, queue, bytes(100))
        run(store, START_MS)
        assert (queue.min_offset, queue.max_offset) == (n, n + 1)


def test_a_gap_in_a_queue_has_no_size(store, topics):
    queue = store.queue("orders", 0)
    size = size_of(store, b"x")
    for gap in (0, 8):
        queue.skip_to(queue.max_offset + gap)
        put(store, queue, b"x")
        put(store, queue, b"x")
    topics.limit(max_bytes=3 * size)
    run(store, START_MS)
    assert (queue.min_offset, queue.max_offset) == (1, 12)


def test_limits_messages_and_cuts_in_any_order(store, topics, clock, monkeypatch):
    """A model of two limits: the total size of the newest messages, and their age."""
    change_constant(monkeypatch, "topic_retention._COUNTED_AT_ONCE", 7)
    rng = random.Random(7)
    queue = store.queue("orders", 0)
    #: Size and store time of each message.
    messages: list[tuple[int, int]] = []
    max_age_ms, max_bytes = None, 5000
    for _ in range(400):
        action = rng.random()
        if action < 0.05:
            max_bytes = rng.choice((None, 100, 3000, 20_000, 10**12))
        elif action < 0.1:
            max_age_ms = rng.choice((None, 1, 20_000, 10**9))
        elif action < 0.13 and len(messages) > 1:
            store.set_slave(True)
            store.replica.truncate(queue.unit(rng.randrange(1, len(messages)))[0])
            store.set_slave(False)
            del messages[queue.max_offset :]
            assert queue.min_offset <= queue.max_offset
        for _ in range(rng.choice((0, 0, 1, 3, 40))):
            put(store, queue, bytes(rng.randrange(500)))
            messages.append((queue.unit(queue.max_offset - 1)[1], clock.now_ms))
            clock.now_ms += rng.choice((0, 500, 2000))
        if max_age_ms is max_bytes is None:
            topics.limits.clear()
        else:
            topics.limit(max_age_ms=max_age_ms, max_bytes=max_bytes)
        run(store, clock.now_ms)
        fitting = len(messages)
        if max_bytes is not None:
            totals = accumulate(size for size, _ in reversed(messages))
            fitting = max(sum(total <= max_bytes for total in totals), min(1, len(messages)))
        first = len(messages) - fitting
        if max_age_ms is not None:
            old = sum(stored < clock.now_ms - max_age_ms for _, stored in messages)
            first = max(first, old)
        assert queue.min_offset == first
    assert len(messages) > 5 * UNITS_PER_FILE


# -- attributes, restarts, the log's own retention -------------------------------------------------------------------


def test_messages_are_visible_again_without_the_limit(store, topics, clock):
    queue = store.queue("orders", 0)
    put_each_second(store, clock, queue, 10)
    topics.limit(max_age_ms=1000)
    run(store, START_MS + 8_000)
    assert queue.min_offset == 7
    topics.limit(max_age_ms=5000)
    run(store, START_MS + 8_000)
    assert queue.min_offset == 3
    topics.limits.clear()
    run(store, START_MS + 8_000)
    assert len(read_all(store, queue)) == 10


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.parametrize("limits", [RetentionLimits(30_000, None), RetentionLimits(None, 4000)])
def test_expired_messages_stay_expired_after_a_restart(open_limited, topics, clock, limits, is_crash):
    store = open_limited()
    queue = store.queue("orders", 0)
    put_each_second(store, clock, queue, 130)
    topics.limits["orders"] = limits
    run(store, clock.now_ms)
    first = queue.min_offset
    assert 1 < first < 130
    flushed(store)
    if is_crash:
        crash(store)
    else:
        store.close()
    store = open_limited()
    store.apply_topic_retention(clock.now_ms)
    queue = store.queue("orders", 0)
    assert (queue.min_offset, queue.max_offset) == (first, 130)
    result = store.get(queue, first - 1, 32, 1 << 20)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, first)
    # The units stay, so the store has no fault.
    assert queue.first_offset == 0
    store.close()
    assert verify(store.config).problems == []


def test_together_with_the_retention_of_the_log(tmp_path, store, topics, clock, monkeypatch):
    """While log files are deleted, the greater of both minimum offsets counts. Files of queues follow the log."""
    queue, free = store.queue("orders", 0), store.queue("free", 0)
    while len(log_files(tmp_path)) < 5:
        for each in (queue, free):
            put(store, each, bytes(300))
        clock.now_ms += 1000
    flushed(store)
    topics.limit(max_age_ms=20_000)
    run(store, clock.now_ms)
    first = queue.min_offset
    assert queue.max_offset - first == 20
    monkeypatch.setattr(retention, "used_percent", lambda path: 86.0)
    while store.min_physical_offset < 2 * store.config.mapped_file_size_commit_log:
        store.clean(clock.now_ms)
        assert store.get(queue, 0, 32, 1 << 20).next_begin_offset == first
        assert store.get(free, 0, 32, 1 << 20).next_begin_offset < first
    monkeypatch.setattr(retention, "used_percent", lambda path: 10.0)
    run(store, clock.now_ms)
    assert queue.min_offset == first
    assert 0 < free.min_offset < first
    names = [path.name for path in queue_files(tmp_path, "orders")]
    assert names == [path.name for path in queue_files(tmp_path, "free")]
    # The log begins after the messages that would be within the limit.
    topics.limit(max_age_ms=10 * DAY_MS, max_bytes=1 << 40)
    run(store, clock.now_ms)
    assert queue.min_offset == queue.log_min_offset > 0


def test_a_queue_that_cannot_be_read_does_not_stop_the_others(tmp_path, store, topics, clock):
    broken, queue = store.queue("orders", 0), store.queue("orders", 1)
    for each in (broken, queue):
        put_each_second(store, clock, each, 10)
    topics.limit(max_bytes=1)
    flush_queues(store)
    (path,) = queue_files(tmp_path, "orders", 0)
    broken.unmap()
    path.rename(path.with_suffix(".away"))
    with pytest.raises(StoreError, match="expired messages of all queues"):
        run(store, clock.now_ms)
    assert queue.min_offset == 9
    path.with_suffix(".away").rename(path)
    run(store, clock.now_ms)
    assert broken.min_offset == 9


def test_a_pass_takes_several_rounds(store, topics, clock, monkeypatch):
    change_constant(monkeypatch, "topic_retention._SLICE_S", -1)
    queues = [store.queue("orders", queue_id) for queue_id in range(5)]
    for queue in queues:
        put_each_second(store, clock, queue, 3)
    topics.limit(max_age_ms=1)
    minimums = []
    while store.clean(clock.now_ms):
        minimums.append([queue.min_offset for queue in queues])
        if len(minimums) == 2:
            store.delete_topic("orders")
    assert minimums[:2] == [[3, 0, 0, 0, 0], [3, 3, 0, 0, 0]]
    assert store.topics() == {}
