"""Timer messages with a simulated clock, so that days pass at once."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from threading import Event
from typing import Any

import pytest
from bare_store import commit_log
from wrong_clock import set_clock

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append.appender import Appender
from gantrymq.broker.delay.timer_delivery import Step, TimerDelivery
from gantrymq.broker.delay.timer_message import slot_time
from gantrymq.broker.delay.timer_metrics import TimerMetrics
from gantrymq.broker.pull.long_polling import LongPolling
from gantrymq.errors import RequestRefused, StoreFull
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import decode_records, encode_host
from gantrymq.protocol.topic_name import DELIVERY_JOURNAL_TOPIC, TIMER_TOPIC
from gantrymq.store.config import StoreConfig
from gantrymq.store.get_result import GetStatus
from gantrymq.store.message_store import MessageStore
from gantrymq.store.refusal import Refusal
from gantrymq.store.timer_store import TimerStore

HOST = encode_host("127.0.0.1", 10911)
NOW = 1_800_000_000_000
DAY_MS = 24 * 3600 * 1000
FILE_SIZE = 4 * 1024 * 1024


class World:
    """A store with a timer, and a simulated clock."""

    def __init__(self, root: Path, polling: LongPolling, **options: Any) -> None:
        self.now_ms = NOW
        self._polling = polling
        self.config = StoreConfig(root, mapped_file_size_commit_log=FILE_SIZE, message_index_enable=False, **options)
        self.open()

    def open(self) -> None:
        self.store = MessageStore(self.config, HOST)
        self.store.open()
        self.metrics = TimerMetrics(self.config.config_directory / "timermetrics")
        is_counted = self.metrics.load()
        config = self.config
        self.files = TimerStore(
            config.store_path_root_dir,
            config.timer_precision_ms,
            config.timer_roll_window_slot,
            config.mapped_file_size_timer_log,
        )
        self.files.open(self.store.max_physical_offset, self.now_ms)
        self.appender = Appender(self.store, HOST, self._polling)
        self.timer = TimerDelivery(self.files, self.appender, self.metrics, config.timer_precision_ms)
        if not is_counted:
            self.timer.count_waiting(self.now_ms)
        self.timer.begin()

    def close(self) -> None:
        self.store.close()
        self.files.close()

    def flush(self) -> None:
        self.files.flush(self.files.checkpoint(self.now_ms))
        self.metrics.save(self.metrics.encode())

    def send(self, body: str, delay_ms: int = 0, *, topic: str = "orders", key: str = "", **more: str) -> None:
        deliver_ms = self.now_ms + delay_ms
        slot_ms = slot_time({"TIMER_DELIVER_MS": str(deliver_ms)}, self.config, self.now_ms)
        fields = {
            "UNIQ_KEY": key or body,
            "TAGS": "t",
            "TIMER_DELIVER_MS": str(deliver_ms),
            "TIMER_OUT_MS": str(slot_ms),
            "REAL_TOPIC": topic,
            "REAL_QID": "1",
            **more,
        }
        self.put({name: value for name, value in fields.items() if value != "-"}, body)

    def put(self, fields: dict[str, str], body: str = "") -> None:
        queue = self.store.queue(TIMER_TOPIC, 0)
        self.appender.append(queue, 0, 0, self.now_ms, HOST, 3, body.encode(), encode_properties(fields), 0)

    def put_plain(self) -> None:
        """Stores a message without delay."""
        self.appender.append(self.store.queue("others", 0), 0, 0, self.now_ms, HOST, 0, b"x", b"", 0)

    def lead_anew(self) -> None:
        """Restarts with an empty timer, like another broker with the same log."""
        self.close()
        root = self.config.store_path_root_dir
        (root / "timerwheel").unlink(missing_ok=True)
        (root / "config" / "timercheck").unlink(missing_ok=True)
        rmtree(root / "timerlog", ignore_errors=True)
        self.open()

    def work(self) -> Step:
        """Runs all steps that are due."""
        while (step := self.timer.step(self.now_ms)) is Step.MORE:
            pass
        return step

    def sleep(self) -> None:
        """Moves the clock to the next time at which the timer has work."""
        due_ms = self.timer.due_ms()
        assert due_ms is not None
        assert due_ms > self.now_ms
        self.now_ms = due_ms

    def delivered(self, topic: str = "orders") -> list[str]:
        found = self.store.get(self.store.queue(topic, 1), 0, 100_000, 1 << 24, bulk=True)
        if found.status is not GetStatus.FOUND:
            return []
        return [record.body.decode() for buffer in found.buffers for record in decode_records(buffer)]

    def properties(self, number: int) -> dict[str, str]:
        unit = self.store.queue("orders", 1).unit(number)
        assert unit is not None
        return decode_properties(self.store.read_record(unit[0]).properties)

    def waiting(self) -> dict[str, int]:
        counts: dict[str, dict[str, int]] = decode_json(self.metrics.encode(), dict)["timingCount"]
        return {topic: metric["count"] for topic, metric in counts.items()}


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., World]]:
    worlds: list[World] = []

    def now_ms() -> int:
        return worlds[-1].now_ms if worlds else NOW

    set_clock(monkeypatch, lambda: now_ms() * 1_000_000, lambda: now_ms() / 1000)
    polling = LongPolling(lambda pull, expired: None, Jobs())

    def make_world(**options: Any) -> World:
        worlds.append(World(tmp_path / "store", polling, **options))
        return worlds[-1]

    yield make_world
    for world in worlds:
        world.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


def test_delivered_when_its_slot_is_over_never_early(world: World) -> None:
    for delay_ms in (1, 1000, 1001, 2500, 1700):
        world.send(str(delay_ms), delay_ms)
    came: dict[str, int] = {}
    for world.now_ms in range(NOW, NOW + 4001, 100):
        assert world.work() is Step.IDLE
        for body in world.delivered():
            came.setdefault(body, world.now_ms - NOW)
    assert came == {"1": 1000, "1000": 1000, "1001": 2000, "1700": 2000, "2500": 3000}
    assert world.timer.due_ms() is None


def test_properties_are_those_of_java(world: World) -> None:
    world.send("x", 2500)
    world.work()
    world.sleep()
    world.work()
    assert world.now_ms == NOW + 3000
    assert world.properties(0) == {
        "UNIQ_KEY": "x",
        "TAGS": "t",
        "TIMER_DELIVER_MS": str(NOW + 2500),
        "TIMER_OUT_MS": str(NOW + 2000),
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
        "TIMER_ENQUEUE_MS": str(NOW),
        "TIMER_DEQUEUE_MS": str(NOW + 3000),
    }


def test_what_comes_after_its_slot_goes_on_at_once(world: World) -> None:
    world.now_ms += 60_000
    world.work()
    # The clock is wrong for a moment.
    world.now_ms -= 60_000
    world.send("late", 500)
    world.now_ms += 60_000
    assert world.work() is Step.IDLE
    assert world.delivered() == ["late"]
    assert world.properties(0)["TIMER_ENQUEUE_MS"] == str(2**63 - 1)
    assert world.waiting() == {}


def test_what_was_due_while_nobody_delivered_can_have_been_taken_back(world: World) -> None:
    """A message that was due during downtime can be recalled.

    The recall follows the message in the queue. A new master reads both after the message is due.
    """
    world.work()
    world.send("taken back", 5500, key="B")
    world.send("kept", 5500, key="C")
    world.send("x", 5500, key="B", TIMER_DEL_UNIQKEY="B")
    world.now_ms += 60_000
    assert world.work() is Step.IDLE
    assert world.delivered() == ["kept"]
    assert world.waiting() == {"orders": 0}


def test_two_crashes_put_nothing_onto_the_wheel_twice(world: World) -> None:
    """After two crashes, no message is on the wheel twice.

    The first restart had time to write a checkpoint, but not to read the queue.
    """
    world.work()
    world.flush()
    world.send("once", 5500)
    world.work()
    for _ in range(2):
        world.close()
        world.open()
        world.flush()
    world.now_ms += 60_000
    world.work()
    assert world.delivered() == ["once"]
    world.flush()
    assert world.files.checkpoint(world.now_ms).log_flush_position > 0


def test_after_years_what_was_due_goes_on_at_once(world: World) -> None:
    """Messages that are overdue for years are delivered at once.

    The wheel cannot contain both these messages and new ones.
    """
    world.work()
    world.send("old", 5500)
    world.now_ms += 1000 * DAY_MS
    world.send("new", 5500)
    assert world.work() is Step.IDLE
    assert world.delivered() == ["old"]
    world.sleep()
    world.work()
    assert world.delivered() == ["old", "new"]
    assert world.properties(0)["TIMER_ENQUEUE_MS"] == str(2**63 - 1)


def test_rolled_every_window_and_on_time(make: Callable[..., World]) -> None:
    world = make(timer_max_delay_sec=10 * 24 * 3600)
    world.send("far", 5 * DAY_MS)
    wakes = 0
    while not world.delivered():
        world.work()
        if not world.delivered():
            world.sleep()
            wakes += 1
    assert world.now_ms == NOW + 5 * DAY_MS
    assert world.properties(0)["TIMER_ROLL_TIMES"] == "2"
    assert wakes == 3
    assert world.waiting() == {"orders": 0}


def test_ten_thousand_in_one_slot_come_in_order_in_small_steps(world: World) -> None:
    for n in range(10_000):
        world.send(str(n), 500)
    world.work()
    world.now_ms += 1000
    steps = 0
    before = 0
    while world.timer.step(world.now_ms) is Step.MORE:
        steps += 1
        assert world.timer.dequeued.total() - before <= 1
        before = world.timer.dequeued.total()
    assert steps > 10_000
    assert world.delivered() == [str(n) for n in range(10_000)]


def test_large_messages_that_take_others_back_are_read_in_small_steps(world: World) -> None:
    world.send("drop", 500, key="B")
    for _ in range(20):
        world.send("x" * 1_000_000, 500, key="B", TIMER_DEL_UNIQKEY="B")
    world.work()
    world.now_ms += 1000
    steps = 0
    while world.timer.due_ms() is not None:
        world.timer.step(world.now_ms)
        steps += 1
    # One step handles at most 2 MB.
    assert steps > 10
    assert world.delivered() == []


@pytest.mark.parametrize("delete_key", ["B", "orders+B"])
def test_taken_back(world: World, delete_key: str) -> None:
    world.send("keep", 5000, key="A")
    world.send("drop", 5000, key="B")
    world.send("other topic", 5000, key="A", topic="bills")
    world.send("0", 5000, key="B", TIMER_DEL_UNIQKEY=delete_key)
    world.work()
    assert world.waiting() == {"orders": 1, "bills": 1}
    world.sleep()
    world.work()
    assert (world.delivered(), world.delivered("bills")) == (["keep"], ["other topic"])
    assert world.waiting() == {"orders": 0, "bills": 0}
    assert world.files.waiting == 0


def test_long_keys_are_not_held(world: World) -> None:
    """Long keys are not kept in memory.

    Keys can have 32 KiB each, and a slot can have any number of them.
    """
    keys = [f"{number}-" + "k" * 14_000 for number in range(300)]
    for key in keys:
        world.send("drop", 5000, key=key)
        world.send("0", 5000, key="-", TIMER_DEL_UNIQKEY=key)
    world.send("0", 5000, key="-", TIMER_DEL_UNIQKEY="k" * 14_000)
    world.work()
    world.sleep()
    tracemalloc.start()
    while world.timer.step(world.now_ms) is Step.MORE:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert world.delivered() == []
    assert world.waiting() == {"orders": 0}


def test_taking_back_what_isnt_there_counts_for_nothing(world: World) -> None:
    world.send("keep", 5000, key="A")
    world.send("0", 5000, key="C", TIMER_DEL_UNIQKEY="C")
    world.work()
    world.sleep()
    world.work()
    assert world.delivered() == ["keep"]
    assert world.waiting() == {"orders": 0}
    world.send("0", 500, key="D", TIMER_DEL_UNIQKEY="D")
    world.now_ms += 10_000
    world.work()
    assert world.delivered() == ["keep"]


def test_taken_back_across_rolls(make: Callable[..., World]) -> None:
    world = make(timer_roll_window_slot=100)
    world.send("drop", 250_000, key="B")
    world.now_ms += 7_000
    world.work()
    world.send("0", 243_000, key="B", TIMER_DEL_UNIQKEY="B")
    world.send("keep", 243_000, key="C")
    world.work()
    while world.timer.due_ms() is not None:
        world.sleep()
        world.work()
    assert world.delivered() == ["keep"]
    assert world.waiting() == {"orders": 0}


def test_nonsense_is_skipped(world: World) -> None:
    world.put({"REAL_TOPIC": "orders", "REAL_QID": "1"})
    world.put({"REAL_TOPIC": "orders", "REAL_QID": "1", "TIMER_OUT_MS": "soon"})
    world.put({"REAL_TOPIC": "orders", "REAL_QID": "1", "TIMER_OUT_MS": "9" * 30})
    world.put({"TIMER_OUT_MS": str(NOW)})
    world.put({"REAL_TOPIC": "../../etc", "REAL_QID": "1", "TIMER_OUT_MS": str(NOW)})
    world.put({"REAL_TOPIC": "orders", "REAL_QID": "-1", "TIMER_OUT_MS": str(NOW)})
    world.put({"REAL_TOPIC": "orders", "REAL_QID": str(2**40), "TIMER_OUT_MS": str(NOW)})
    world.put({"REAL_TOPIC": "orders", "REAL_QID": "9" * 5000, "TIMER_OUT_MS": str(NOW)})
    world.put({"REAL_TOPIC": "orders", "REAL_QID": "\u00b2", "TIMER_OUT_MS": str(NOW)})
    for topic in (TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        world.put({"REAL_TOPIC": topic, "REAL_QID": "0", "TIMER_OUT_MS": str(NOW)})
    world.send("good", 1000)
    end = world.store.queue(TIMER_TOPIC, 0).max_offset
    world.work()
    world.now_ms += 5000
    assert world.work() is Step.IDLE
    assert world.delivered() == ["good"]
    assert world.timer.skipped == end - 1
    assert world.store.topics().keys() == {TIMER_TOPIC, DELIVERY_JOURNAL_TOPIC, "orders"}
    assert world.store.topics()["orders"] == [1]
    assert world.store.queue(TIMER_TOPIC, 0).max_offset == end


@pytest.mark.parametrize("room", [0, 1, 60, 110])
@pytest.mark.parametrize("crc", [False, True])
def test_what_was_accepted_is_delivered_however_long_its_properties_are(
    make: Callable[..., World], room: int, crc: bool
) -> None:
    world = make(enabled_append_prop_crc=crc, timer_roll_window_slot=100)
    pads = []
    for out_ms in (NOW + 150_000, NOW - 5000):
        fields = {"UNIQ_KEY": "k", "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "orders", "REAL_QID": "1", "pad": ""}
        left = world.appender.max_properties_length - len(encode_properties(fields)) - room
        world.put(fields | {"pad": "x" * left}, str(out_ms - NOW))
        pads.append(left)
    world.work()
    while world.timer.due_ms() is not None:
        world.sleep()
        world.work()
    assert world.delivered() == ["-5000", "150000"]
    assert world.timer.skipped == 0
    assert [len(world.properties(number)["pad"]) for number in (0, 1)] == pads[::-1]


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None], ids=["empty", "zeros", "missing"])
def test_what_waits_is_counted_anew_where_the_count_is_lost(world: World, damage: bytes | None) -> None:
    for n in range(300):
        world.send(str(n), 500 + 10 * n, topic="orders" if n % 3 else "bills")
    world.send("0", 800, key="1", TIMER_DEL_UNIQKEY="1")
    world.work()
    counts = world.waiting()
    world.flush()
    world.close()
    path = world.config.config_directory / "timermetrics"
    path.unlink() if damage is None else path.write_bytes(damage)
    world.open()
    assert world.waiting() == counts == {"orders": 199, "bills": 100}


def damage(world: World, physical_offset: int) -> None:
    """Flips one byte of a record's body."""
    with (world.config.commit_log_directories[0] / f"{0:020d}").open("r+b") as file:
        file.seek(physical_offset + 89)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))


def test_a_damaged_message_is_skipped_and_counted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(5):
        world.send(str(n), 500)
    places = [world.store.queue(TIMER_TOPIC, 0).unit(n) for n in range(5)]
    damage(world, places[1][0])
    world.work()
    damage(world, places[3][0])
    world.now_ms += 1000
    assert world.work() is Step.IDLE
    assert world.delivered() == ["0", "2", "4"]
    assert world.timer.skipped == 2
    assert world.waiting() == {"orders": 0}
    for number in (1, 3):
        assert f"the timer message at {places[number][0]} in the commit log is skipped" in caplog.text


@contextmanager
def unreadable_timer_log(root: Path) -> Iterator[None]:
    """Makes every read of the open timer log fail, as on a disk with a bad block."""
    [path] = (root / "timerlog").iterdir()
    [fd] = [fd for fd in range(3, 1024) if is_open_file(fd, path)]
    good, directory = os.dup(fd), os.open(root, os.O_RDONLY)
    os.dup2(directory, fd)
    try:
        yield
    finally:
        os.dup2(good, fd)
        os.close(good)
        os.close(directory)


def is_open_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def test_an_error_in_the_middle_of_a_slot_repeats_nothing(world: World) -> None:
    for n in range(10):
        world.send(str(n), 500)
    world.work()
    world.now_ms += 1000
    while len(world.delivered()) < 5:
        assert world.timer.step(world.now_ms) is Step.MORE
    with unreadable_timer_log(world.config.store_path_root_dir):
        for _ in range(3):
            with pytest.raises(IsADirectoryError):
                world.timer.step(world.now_ms)
    assert world.work() is Step.IDLE
    assert world.delivered() == [str(n) for n in range(10)]


def test_a_slot_whose_entries_cannot_be_read_is_tried_again(world: World) -> None:
    for n in range(300):
        world.send(str(n), 500)
    world.work()
    world.now_ms += 1000
    assert world.timer.step(world.now_ms) is Step.MORE
    assert world.timer.step(world.now_ms) is Step.MORE
    with unreadable_timer_log(world.config.store_path_root_dir), pytest.raises(IsADirectoryError):
        world.timer.step(world.now_ms)
    assert world.work() is Step.IDLE
    assert world.delivered() == [str(n) for n in range(300)]


def test_a_restart_in_the_middle_of_everything(world: World) -> None:
    for n in range(50):
        world.send(f"first {n}", 500 + 20 * n)
    world.work()
    world.flush()
    for n in range(50):
        world.send(f"second {n}", 500 + 20 * n)
    # Some messages are on the wheel but after the last checkpoint, and others are not even on the wheel.
    for _ in range(20):
        world.timer.step(world.now_ms)
    world.close()
    world.open()
    assert world.files.queue_offset == 50
    world.now_ms += 60_000
    world.work()
    assert sorted(world.delivered()) == sorted(f"{word} {n}" for word in ("first", "second") for n in range(50))


def test_a_crash_in_the_middle_of_a_slot_repeats_nothing(world: World) -> None:
    for n in range(10):
        world.send(str(n), 500)
    world.work()
    world.flush()
    world.now_ms += 1000
    for _ in range(6):
        world.timer.step(world.now_ms)
    assert 0 < len(world.delivered()) < 10
    world.flush()
    world.close()
    world.open()
    world.work()
    assert world.delivered() == [str(n) for n in range(10)]
    assert world.waiting() == {"orders": 0}


def test_many_crashes_without_a_checkpoint_repeat_nothing(world: World) -> None:
    """Crashes without a checkpoint cause no duplicates.

    Other messages are stored in between, and some messages of the slot are recalled.
    """
    for n in range(100):
        world.send(str(n), 500 + n // 50 * 1000, key=f"key {n}")
    for n in range(0, 100, 10):
        world.send("-", 500 + n // 50 * 1000, key=f"key {n}", TIMER_DEL_UNIQKEY=f"key {n}")
    world.work()
    world.now_ms += 2000
    expected = [str(n) for n in range(100) if n % 10]
    crashes = 0
    while len(world.delivered()) < len(expected):
        goal = min(len(world.delivered()) + 7, len(expected))
        while len(world.delivered()) < goal:
            world.timer.step(world.now_ms)
            if goal % 2:
                world.put_plain()
        world.close()
        world.open()
        crashes += 1
    assert world.work() is Step.IDLE
    assert world.delivered() == expected
    assert crashes == 13


def test_a_broker_that_becomes_master_repeats_nothing(make: Callable[..., World]) -> None:
    """A broker that becomes master delivers no message twice.

    It has an empty timer and no checkpoint of the former master. It has only the log, which can end anywhere.
    """
    world = make(timer_roll_window_slot=100)
    for n in range(60):
        world.send(str(n), 500 + 400 * n)
    world.send("far", 150_000)
    while len(world.delivered()) < 60:
        before = len(world.delivered())
        while len(world.delivered()) in (before, before + 1):
            if world.timer.step(world.now_ms) is Step.IDLE:
                world.sleep()
        world.lead_anew()
    # In the middle of the window, the message is stored again for its last round.
    while not world.timer.queue().max_offset > 61:
        if world.timer.step(world.now_ms) is Step.IDLE:
            world.sleep()
    world.lead_anew()
    while world.work() is Step.IDLE and "far" not in world.delivered():
        world.sleep()
    assert world.now_ms == NOW + 150_000
    world.lead_anew()
    assert world.work() is Step.IDLE
    assert world.delivered() == [*(str(n) for n in range(60)), "far"]


HOUR_MS = 3600 * 1000


@pytest.mark.parametrize("then", ["goes on", "crashes", "restarts", "is another master's"])
def test_a_clock_that_is_set_back_delivers_nothing_early_nor_again(world: World, then: str) -> None:
    world.send("before", 500)
    world.work()
    world.now_ms += HOUR_MS
    world.send("while ahead", 500)
    world.work()
    world.sleep()
    world.work()
    assert world.delivered() == ["before", "while ahead"]
    world.flush()
    world.now_ms -= HOUR_MS
    world.send("after", 5000)
    world.send("soon", 1700)
    world.work()
    assert world.delivered() == ["before", "while ahead"]
    if then == "restarts":
        world.flush()
    if then == "is another master's":
        world.lead_anew()
    elif then != "goes on":
        world.close()
        world.open()
    world.send("last", 6000)
    came: dict[str, int] = {}
    begin = world.now_ms
    for world.now_ms in range(begin, begin + 10_000, 500):
        assert world.work() is Step.IDLE
        for body in world.delivered():
            came.setdefault(body, world.now_ms - begin)
    # A slot is delivered at its end.
    assert [came[body] for body in ("soon", "after", "last")] == [2000, 5000, 6000]
    world.now_ms += 2 * HOUR_MS
    world.work()
    assert world.delivered() == ["before", "while ahead", "soon", "after", "last"]


def test_a_clock_that_is_set_back_and_right_again_before_a_crash(world: World) -> None:
    """The clock is ahead, then correct, and then the broker crashes.

    The checkpoint comes from the time when the clock was ahead. Later messages are in earlier slots.
    """
    world.now_ms += HOUR_MS
    world.work()
    world.flush()
    world.now_ms -= HOUR_MS
    world.send("waits", 60_000)
    world.work()
    world.close()
    world.now_ms += HOUR_MS // 2
    world.open()
    world.work()
    assert world.delivered() == ["waits"]


def test_slots_that_were_passed_while_the_clock_was_ahead_are_used_again(world: World) -> None:
    for delay_ms in (2000, 3000):
        world.send(f"first {delay_ms}", delay_ms)
    world.work()
    world.now_ms += HOUR_MS
    world.work()
    world.now_ms -= HOUR_MS
    for delay_ms in (2000, 3000):
        world.send(f"second {delay_ms}", delay_ms, key=f"key {delay_ms}")
    world.send("-", 2000, key="key 2000", TIMER_DEL_UNIQKEY="key 2000")
    world.work()
    assert world.delivered() == ["first 2000", "first 3000"]
    while world.timer.due_ms() is not None:
        world.sleep()
        world.work()
    assert world.delivered() == ["first 2000", "first 3000", "second 3000"]
    assert (world.files.waiting, world.waiting()) == (0, {"orders": 0})


def test_a_clock_that_jumps_ahead_and_stays(world: World) -> None:
    world.send("soon", 500)
    world.send("later", 2 * HOUR_MS)
    world.work()
    world.now_ms += HOUR_MS
    world.work()
    world.send("new", 3000)
    world.work()
    assert world.delivered() == ["soon"]
    world.sleep()
    world.work()
    assert world.delivered() == ["soon", "new"]
    world.sleep()
    world.work()
    assert world.now_ms == NOW + 2 * HOUR_MS
    assert world.delivered() == ["soon", "new", "later"]


def test_weeks_of_downtime_lose_nothing(world: World) -> None:
    """Timer messages survive weeks of downtime.

    Java gives up after 7 days: then new messages would share slots with old ones.
    """
    world.send("old", 3 * DAY_MS, key="old")
    world.work()
    world.flush()
    world.close()
    world.now_ms += 14 * DAY_MS
    world.open()
    world.send("new", 3 * DAY_MS)
    world.work()
    assert world.delivered() == [] or world.delivered() == ["old"]
    while world.timer.due_ms() is not None:
        world.sleep()
        world.work()
    assert world.delivered() == ["old", "new"]


def test_nothing_is_lost_while_the_store_takes_nothing(world: World) -> None:
    for n in range(3):
        world.send(str(n), 500)
    world.work()
    world.now_ms += 1000
    commit_log(world.store).refuse("test", Refusal("the disk is too full", StoreFull))
    assert world.work() is Step.BLOCKED
    assert world.work() is Step.BLOCKED
    assert world.delivered() == []
    commit_log(world.store).refuse("test", None)
    while len(world.delivered()) < 2:
        world.timer.step(world.now_ms)
    commit_log(world.store).refuse("test", Refusal("the disk is too full", StoreFull))
    assert world.work() is Step.BLOCKED
    commit_log(world.store).refuse("test", None)
    assert world.work() is Step.IDLE
    assert world.delivered() == ["0", "1", "2"]


def test_precision(make: Callable[..., World]) -> None:
    world = make(timer_precision_ms=250)
    assert world.config.timer_precision_ms == 200
    world.send("x", 500)
    world.work()
    assert world.timer.due_ms() == NOW + 600
    world.send("y", 400)
    world.work()
    assert world.timer.due_ms() == NOW + 400


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"TIMER_DELIVER_MS": str(NOW + 2500)}, NOW + 2000),
        ({"TIMER_DELIVER_MS": str(NOW + 3000)}, NOW + 2000),
        ({"TIMER_DELAY_MS": "2500"}, NOW + 2000),
        ({"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "2500", "TIMER_DELIVER_MS": "x"}, NOW + 6000),
        ({"TIMER_DELIVER_MS": str(NOW)}, None),
        ({"TIMER_DELAY_SEC": "-5"}, None),
        ({"TIMER_DELAY_SEC": str(3 * 24 * 3600)}, NOW + 3 * DAY_MS - 1000),
        ({"TIMER_DELAY_MS": str(3 * DAY_MS + 1)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "9" * 5000}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": str(NOW), "TIMER_DEL_UNIQKEY": "t+k"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_slot_time(fields: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    config = StoreConfig(tmp_path)
    if isinstance(expected, ResponseCode):
        with pytest.raises(RequestRefused, match="timer message illegal") as refused:
            slot_time(fields, config, NOW)
        assert refused.value.code == expected
    else:
        assert slot_time(fields, config, NOW) == expected


def test_a_message_takes_back_none_of_another_topic(world: World) -> None:
    """A recall works only within its topic.

    Otherwise users with access to one topic could delete messages of another one by their unique keys.
    """
    world.send("kept", 5000, key="K")
    world.send("0", 5000, key="K", topic="others", TIMER_DEL_UNIQKEY="K")
    world.work()
    world.sleep()
    world.work()
    assert world.delivered() == ["kept"]
    assert world.waiting() == {"orders": 0, "others": 0}


def test_nothing_is_delivered_again_because_an_earlier_message_was_deleted(world: World) -> None:
    """A new master finds the delivered copies in the log, also if the log file of one original is deleted."""
    world.send("deleted", 500)
    while not world.store.max_physical_offset > FILE_SIZE:
        world.appender.append(world.store.queue("others", 0), 0, 0, world.now_ms, HOST, 0, bytes(1_000_000), b"", 0)
    world.send("kept", 500)
    world.work()
    world.now_ms += 1000
    world.work()
    assert sorted(world.delivered()) == ["deleted", "kept"]
    is_flushed = Event()
    world.store.when_flushed(world.store.max_physical_offset, lambda error: is_flushed.set())
    assert is_flushed.wait(10)
    world.config.file_reserved_time = 0
    world.store.delete_expired_soon()
    world.store.clean(world.now_ms)
    assert world.store.min_physical_offset == FILE_SIZE
    world.lead_anew()
    world.work()
    assert sorted(world.delivered()) == ["deleted", "kept"]
