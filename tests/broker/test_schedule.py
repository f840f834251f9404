"""Delay levels with a damaged store, a full store, or invalid records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bare_store import HOST, bodies, damage, full_disk, nobody_waits, open_store, records
from broker_support import config, longest_step
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.background.jobs import Jobs
from gantrymq.background.report import JobReport
from gantrymq.broker.append.appender import Appender
from gantrymq.broker.delay.levels import DelayLevels
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.topic_name import DELIVERY_JOURNAL_TOPIC, SCHEDULE_TOPIC
from gantrymq.system import clock

DELAY_MS = 20


class World:
    def __init__(self, appender: Appender, schedule: DelayLevels, jobs: Jobs) -> None:
        self.appender, self.store, self.schedule, self.jobs = appender, appender.store, schedule, jobs

    def delay(self, body: bytes, topic: str = "orders", **properties: str) -> int:
        """Stores a delayed message and returns its physical offset."""
        queue = self.store.queue(topic, 0)
        queue, encoded, code = self.schedule.redirect(queue, encode_properties(properties), 1, clock.now_ms())
        return self.put(encoded, body, code)

    def put(self, properties: bytes, body: bytes = b"nonsense", code: int = 0) -> int:
        queue = self.store.queue(SCHEDULE_TOPIC, 0)
        return self.appender.append(queue, 0, 0, 0, HOST, 0, body, properties, code).physical_offset

    def passed(self) -> int:
        """Returns the number of messages that the level has processed."""
        return self.schedule.offsets().get(1, 0)

    @property
    def report(self) -> JobReport:
        return next(report for report in self.jobs if report.name == "deliver delay level 1")


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    jobs = Jobs()
    appender = open_store(tmp_path, nobody_waits(), **getattr(request, "param", {}))
    persistence = TablePersistence(config(tmp_path), jobs)
    schedule = DelayLevels(tmp_path / "delayOffset.json", [DELAY_MS], appender, jobs, persistence=persistence)
    yield World(appender, schedule, jobs)
    await schedule.stop()
    appender.store.close()


async def test_a_damaged_message_is_skipped_and_named(world: World, caplog: pytest.LogCaptureFixture) -> None:
    places = [world.delay(b"%d" % n) for n in range(5)]
    damage(world.store, places[1])
    # The size field of a record between valid ones.
    damage(world.store, places[3], 3)
    await world.schedule.become_master()
    await until(lambda: world.passed() == 5)
    assert bodies(world.store, "orders") == [b"0", b"2", b"4"]
    assert (world.schedule.skipped, world.report.failures) == (2, 0)
    for number in (1, 3):
        assert f"message {number} of {SCHEDULE_TOPIC}-0, at {places[number]} in the commit log" in caplog.text


async def test_nonsense_is_skipped(world: World) -> None:
    for topic in (SCHEDULE_TOPIC, "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "a/b", "", "x" * 300):
        world.put(encode_properties({"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": "0"}))
    for queue_id in ("", "-1", "\u00b2", "9" * 10, "9" * 5000):
        world.put(encode_properties({"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": queue_id}))
    world.put(b"")
    world.delay(b"good")
    end = world.store.queue(SCHEDULE_TOPIC, 0).max_offset
    await world.schedule.become_master()
    await until(lambda: world.passed() == end)
    assert bodies(world.store, "orders") == [b"good"]
    assert world.schedule.skipped == end - 1
    assert world.store.topics().keys() == {SCHEDULE_TOPIC, DELIVERY_JOURNAL_TOPIC, "orders"}
    assert world.store.topics()["orders"] == [0]


async def test_a_full_disk_loses_and_repeats_nothing(world: World) -> None:
    for n in range(3):
        world.delay(b"%d" % n)
    with full_disk(world.store):
        await world.schedule.become_master()
        await until(lambda: world.report.failures)
    world.jobs.find("deliver delay level 1").wake()
    await until(lambda: world.passed() == 3)
    assert bodies(world.store, "orders") == [b"0", b"1", b"2"]


async def test_all_levels_together_hold_the_loop_for_one_turn(world: World, tmp_path: Path) -> None:
    """All levels together use one time slice per event-loop iteration.

    Each level has messages of the largest size that are due at the same time.
    """
    levels = 18
    schedule = DelayLevels(
        tmp_path / "levels.json",
        [DELAY_MS] * levels,
        world.appender,
        world.jobs,
        persistence=TablePersistence(config(tmp_path), world.jobs),
    )
    body = b"x" * 1_500_000
    for level in range(1, levels + 1):
        for _ in range(2):
            queue = world.store.queue("orders", level)
            queue, properties, code = schedule.redirect(queue, b"", level, clock.now_ms())
            world.appender.append(queue, 0, 0, 0, HOST, 0, body, properties, code)
    await schedule.become_master()
    assert await longest_step(lambda: list(schedule.offsets().values()) == [2] * levels) < 0.05
    assert {world.store.queue("orders", level).max_offset for level in range(1, levels + 1)} == {2}
    await schedule.stop()


async def test_a_queue_that_lost_its_end_goes_on(world: World) -> None:
    """A level continues after its queue lost messages.

    After a power failure, `delayOffset.json` can be ahead of the queue.
    """
    world.schedule.offsets()[1] = 7
    await world.schedule.become_master()
    await until(lambda: world.passed() == 0)
    world.delay(b"new")
    await until(lambda: bodies(world.store, "orders") == [b"new"])


@pytest.mark.parametrize("world", [{}, {"enabled_append_prop_crc": True}], ids=["plain", "crc"], indirect=True)
async def test_what_was_accepted_is_delivered_however_long_its_properties_are(world: World) -> None:
    room = world.appender.max_properties_length - len(encode_properties({"pad": "", "DELAY": "1"}))
    room -= len(encode_properties({"REAL_TOPIC": "orders", "REAL_QID": "0"}))
    world.delay(b"long", pad="x" * room)
    await world.schedule.become_master()
    await until(lambda: world.passed() == 1)
    [record] = records(world.store, "orders")
    assert b"x" * room in record.properties
    # Each record has only its own checksum.
    assert record.properties.count(b"__CRC32#") == world.store.config.enabled_append_prop_crc


def level_on_disk(root: Path) -> int | None:
    """Returns the progress of the first level in the file."""
    table = json.loads((root / "delayOffset.json").read_bytes())["offsetTable"]
    return table.get("1")


async def test_a_level_goes_back_with_the_log_on_the_disk_too(world: World, tmp_path: Path) -> None:
    """A slave truncates its log to that of its master.

    The offsets on disk must follow, so that a later crash does not skip new messages.
    """
    places = [world.delay(b"%d" % n) for n in range(3)]
    await world.schedule.become_master()
    await until(lambda: world.passed() == 3)
    await world.schedule.become_slave()
    world.store.set_slave(True)
    world.store.replica.truncate(places[1])
    assert world.passed() == level_on_disk(tmp_path) == 1


async def test_a_level_that_was_ahead_of_the_log_at_a_crash(world: World, tmp_path: Path) -> None:
    world.delay(b"0")
    (tmp_path / "delayOffset.json").write_text('{"offsetTable":{1:3}}')
    world.schedule.load()
    assert world.passed() == level_on_disk(tmp_path) == 1


async def test_a_clock_that_was_ahead_blocks_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message stored with a clock that was ahead does not block later ones.

    As in Java, a message that is due later than any new message could be is delivered at once.
    """
    wrong = WrongClock(monkeypatch)
    wrong.ahead_s = 3600
    for n in range(3):
        world.delay(b"ahead %d" % n)
    wrong.ahead_s = 0
    world.delay(b"right")
    await world.schedule.become_master()
    await until(lambda: world.passed() == 4)
    assert bodies(world.store, "orders") == [b"ahead 0", b"ahead 1", b"ahead 2", b"right"]


async def test_a_level_is_not_early_when_the_clock_is_set_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the clock is set back, messages are not early. They are not late either, because the pauses are short."""
    wrong = WrongClock(monkeypatch)
    world.delay(b"0")
    wrong.ahead_s = -0.01
    await world.schedule.become_master()
    await until(lambda: world.passed() == 1)
    assert bodies(world.store, "orders") == [b"0"]


async def test_what_the_log_has_is_not_delivered_again(world: World, tmp_path: Path) -> None:
    """Messages that the log shows as delivered are not delivered again.

    The table is old, as after a crash, or on a slave that becomes master.
    """
    await world.schedule.become_master()
    for round_ in range(3):
        for n in range(100):
            world.delay(b"%d" % n)
            world.appender.append(world.store.queue("others", 0), 0, 0, 0, HOST, 0, b"x", b"", 0)
        goal = 100 * round_ + 37
        await until(lambda goal=goal: world.passed() > goal)  # type: ignore[misc]
        await world.schedule.stop()
        world.schedule.copy_offsets(b'{"offsetTable":{}}')
        assert world.passed() == 0
        await world.schedule.become_master()
        assert world.passed() > goal
    await until(lambda: world.passed() == 300)
    assert bodies(world.store, "orders") == [b"%d" % n for n in range(100)] * 3


async def test_what_was_delivered_where_the_log_is_cut_is_delivered_again(world: World, tmp_path: Path) -> None:
    """Messages whose delivery was truncated from the log are delivered again.

    A former master can become master again, and its table must not be ahead of its log.
    """
    world.delay(b"kept")
    await world.schedule.become_master()
    await until(lambda: world.passed() == 1)
    world.delay(b"cut")
    await until(lambda: world.passed() == 2)
    [_, cut] = records(world.store, "orders")
    await world.schedule.become_slave()
    world.store.set_slave(True)
    world.store.replica.truncate(cut.physical_offset)
    assert world.passed() == level_on_disk(tmp_path) == 1
    world.store.set_slave(False)
    await world.schedule.become_master()
    await until(lambda: world.passed() == 2)
    assert bodies(world.store, "orders") == [b"kept", b"cut"]


async def test_a_damaged_journal_costs_repeats_and_no_message(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.schedule.become_master()
    world.delay(b"0")
    await until(lambda: world.passed() == 1)
    [entry] = records(world.store, DELIVERY_JOURNAL_TOPIC)
    damage(world.store, entry.physical_offset)
    await world.schedule.stop()
    world.schedule.copy_offsets(b'{"offsetTable":{}}')
    await world.schedule.become_master()
    await until(lambda: world.passed() == 1)
    assert bodies(world.store, "orders") == [b"0", b"0"]
    assert "delayed messages may be repeated" in caplog.text
