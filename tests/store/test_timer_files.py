"""Wheel, log and checkpoint of the timer: Java's format, and recovery after a crash."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from struct import pack, unpack

import pytest

from gantrymq.errors import StoreError, SyncFailed
from gantrymq.store import timer_log
from gantrymq.store.timer_checkpoint import TimerCheckpoint, load_timer_checkpoint, save_timer_checkpoint
from gantrymq.store.timer_log import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, TimerEntry, TimerLog
from gantrymq.store.timer_store import TimerStore
from gantrymq.store.timer_wheel import Slot, TimerWheel
from gantrymq.system import files

NOW = 1_800_000_000_000
LOG_FILE = 52 * 10 + 30
WEEK_MS = 7 * 24 * 3600 * 1000
LOG_END = 1 << 40


def open_timer(root: Path, *, log_end: int = LOG_END, now_ms: int = NOW, window: int = 1000) -> TimerStore:
    timer = TimerStore(root, 1000, window, LOG_FILE)
    timer.open(log_end, now_ms)
    return timer


def add(timer: TimerStore, due_ms: int, offset: int, *, topic: str = "orders", takes_back: bool = False) -> None:
    timer.add(timer.wait(due_ms, NOW), NOW, offset, 100, topic, takes_back=takes_back)
    timer.queue_offset += 1


def drain(timer: TimerStore) -> dict[int, list[int]]:
    """Empties all slots, and returns {slot: physical offsets, oldest first}."""
    found: dict[int, list[int]] = {}
    while (slot_ms := timer.next_ms) is not None:
        found[slot_ms] = [entry.physical_offset for _, entry in timer.chain(slot_ms)][::-1]
        timer.pass_slot()
    return found


def test_bytes_are_those_of_java(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    add(timer, NOW + 5000, 7000, topic="orders")
    add(timer, NOW + 5999, 7100, takes_back=True)
    log = (tmp_path / "timerlog" / ("0" * 20)).read_bytes()
    assert len(log) == LOG_FILE
    assert log[:52] == pack(">iqiqiqiiq", 52, -1, 1, NOW, 5000, 7000, 100, -1008770331, 0)
    assert unpack(">iqi", log[52:68]) == (52, 0, 1 | 4)
    wheel = tmp_path / "timerwheel"
    assert wheel.stat().st_size == 2 * 7 * 24 * 3600 * 32
    assert wheel.stat().st_blocks * 512 < 100_000
    unit = NOW // 1000 + 5
    with wheel.open("rb") as file:
        file.seek(unit % (14 * 24 * 3600) * 32)
        assert file.read(32) == pack(">qqqii", unit, 0, 52, 0, 0)
    timer.flush(timer.checkpoint(NOW + 1))
    expected = pack(">7q", timer.read_time_ms, 104, 2, 2, 0, NOW + 1, 1)
    assert (tmp_path / "config" / "timercheck").read_bytes() == expected + bytes(4096 - 56)


def descriptor_of(path: Path) -> int:
    """Returns the descriptor through which this process has the file open."""
    (fd,) = [
        int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink() and entry.readlink() == path
    ]
    return fd


def test_a_slot_that_cannot_be_read_when_it_is_done_is_still_the_first(tmp_path: Path) -> None:
    """The next attempt must not skip the following slot, whose messages have not been delivered."""
    timer = open_timer(tmp_path)
    add(timer, NOW + 1000, 7000)
    add(timer, NOW + 2000, 7100)
    fd = descriptor_of(tmp_path / "timerwheel")
    kept = os.dup(fd)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        timer.pass_slot()
    os.dup2(kept, fd)
    os.close(kept)
    assert (timer.next_ms, timer.waiting) == (NOW + 1000, 2)
    timer.pass_slot()
    assert drain(timer) == {NOW + 2000: [7100]}


def test_a_file_ends_with_javas_blank(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for n in range(11):
        add(timer, NOW + 1000, n)
    first, second = sorted((tmp_path / "timerlog").iterdir())
    assert second.name == f"{LOG_FILE:020d}"
    assert first.read_bytes()[520:536] == pack(">iqI", 30, 0, 0xCBD43194)
    assert list(drain(timer).values()) == [list(range(11))]


def test_slots_come_in_order_and_once(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for offset, seconds in enumerate((9, 3, 9, 5, 3)):
        add(timer, NOW + seconds * 1000 + offset, offset)
    assert timer.waiting == 5
    assert drain(timer) == {NOW + 3000: [1, 4], NOW + 5000: [3], NOW + 9000: [0, 2]}
    assert (timer.waiting, timer.read_time_ms) == (0, NOW + 10_000)


def test_number_due(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    assert timer.number_due(NOW, NOW + 10_000) == 0
    for due_ms in (0, 2000, 2999, 3000, 5000):
        add(timer, NOW + due_ms, due_ms)
    # A time within a slot counts as the start of the slot.
    assert timer.number_due(NOW, NOW + 3000) == timer.number_due(NOW + 500, NOW + 3500) == 3
    assert timer.number_due(NOW + 3000, NOW + 10_000) == 2
    timer.pass_slot()
    assert timer.number_due(NOW, NOW + 10_000) == 4


@pytest.mark.parametrize(
    ("ahead", "waits"),
    [(999, 999), (1000, 500), (1332, 500), (1333, 1000), (100_000, 1000)],
)
def test_what_is_beyond_the_window_is_rolled(tmp_path: Path, ahead: int, waits: int) -> None:
    timer = open_timer(tmp_path)
    add(timer, NOW + ahead * 1000, 1)
    [(_, entry)] = timer.chain(NOW + waits * 1000)
    assert entry.magic == (MAGIC_DEFAULT if ahead == waits else MAGIC_DEFAULT | MAGIC_ROLL)
    assert not entry.is_delete


@pytest.mark.parametrize("window", [0, 1, 7 * 24 * 3600])
def test_an_impossible_window_is_the_longest(tmp_path: Path, window: int) -> None:
    timer = open_timer(tmp_path, window=window)
    add(timer, NOW + WEEK_MS - 61_000, 1)
    assert timer.next_ms == NOW + WEEK_MS - 61_000
    timer = open_timer(tmp_path / "other", window=window)
    (tmp_path / "other").mkdir()
    add(timer, NOW + WEEK_MS - 60_000, 1)
    assert timer.next_ms is not None
    assert timer.next_ms < NOW + WEEK_MS - 61_000


def test_a_restart_finds_what_waits(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for n in range(25):
        add(timer, NOW + n % 3 * 1000, n * 100)
    timer.flush(timer.checkpoint(NOW))
    timer.close()
    timer = open_timer(tmp_path)
    assert (timer.queue_offset, timer.waiting) == (25, 25)
    assert [len(offsets) for offsets in drain(timer).values()] == [9, 8, 8]
    assert not timer.was_added(2400)


def test_a_kill_loses_nothing_and_says_what_was_added(tmp_path: Path) -> None:
    """After a SIGKILL, log and wheel are in the state after the last system call.

    Without a flush, the checkpoint is old.
    """
    timer = open_timer(tmp_path)
    for n in range(12):
        add(timer, NOW + 1000, n * 100)
    timer.flush(timer.checkpoint(NOW))
    for n in range(12, 30):
        add(timer, NOW + 2000, n * 100)
    timer = open_timer(tmp_path)
    assert timer.queue_offset == 12
    assert [timer.was_added(n * 100) for n in range(12, 31)] == [True] * 18 + [False]
    assert [len(offsets) for offsets in drain(timer).values()] == [12, 18]


def test_a_wheel_that_lags_behind_the_log_is_brought_up_to_date(tmp_path: Path) -> None:
    """A wheel that is older than the timer log is updated.

    Java writes its wheel once a second, and its log at once.
    """
    timer = open_timer(tmp_path)
    for n in range(4):
        add(timer, NOW + 1000, n * 100)
    timer.flush(timer.checkpoint(NOW))
    shutil.copy(tmp_path / "timerwheel", tmp_path / "old")
    for n in range(4, 15):
        add(timer, NOW + (1000 if n % 2 else 2000), n * 100)
    (tmp_path / "old").replace(tmp_path / "timerwheel")
    timer = open_timer(tmp_path)
    assert timer.waiting == 15
    assert drain(timer) == {
        NOW + 1000: [n * 100 for n in (0, 1, 2, 3, 5, 7, 9, 11, 13)],
        NOW + 2000: [n * 100 for n in (4, 6, 8, 10, 12, 14)],
    }


def test_a_wheel_that_is_ahead_of_the_log_is_mended(tmp_path: Path) -> None:
    """A wheel that is ahead of the timer log is repaired.

    After a power failure, it can be on disk without the end of the timer log and of the commit log.
    """
    timer = open_timer(tmp_path)
    for n in range(4):
        add(timer, NOW + 1000, n * 100)
    timer.flush(timer.checkpoint(NOW))
    add(timer, NOW + 1000, 400)
    add(timer, NOW + 2000, 500)
    timer = open_timer(tmp_path, log_end=450)
    assert drain(timer) == {NOW + 1000: [0, 100, 200, 300]}
    add(timer, NOW + 5000, 400)
    assert open_timer(tmp_path).waiting == 5


def test_a_lost_wheel_is_rebuilt_from_the_log_when_the_checkpoint_is_lost_too(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for n in range(15):
        add(timer, NOW + n % 2 * 1000, n * 100)
    timer.flush(timer.checkpoint(NOW))
    (tmp_path / "timerwheel").unlink()
    (tmp_path / "config" / "timercheck").unlink()
    timer = open_timer(tmp_path)
    assert (timer.waiting, timer.queue_offset) == (15, 0)
    assert [len(offsets) for offsets in drain(timer).values()] == [8, 7]


@pytest.mark.parametrize("how", ["missing", "empty", "zeros", "short", "a directory"])
def test_a_lost_wheel_is_rebuilt_from_the_log(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A lost wheel is rebuilt from the timer log, although the checkpoint says that everything is on disk."""
    timer = open_timer(tmp_path)
    for n in range(25):
        add(timer, NOW + n % 3 * 1000, n * 100)
    timer.pass_slot()
    timer.flush(timer.checkpoint(NOW))
    timer.close()
    wheel = tmp_path / "timerwheel"
    size = wheel.stat().st_size
    wheel.unlink()
    if how == "a directory":
        wheel.mkdir()
    elif how != "missing":
        wheel.touch()
        os.truncate(wheel, {"empty": 0, "zeros": size, "short": 1000}[how])
    timer = open_timer(tmp_path)
    assert "what waits is sorted in anew" in caplog.text
    assert (tmp_path / "timerwheel.damaged").exists() == (how in ("short", "a directory"))
    assert (timer.waiting, timer.queue_offset) == (16, 25)
    assert drain(timer) == {NOW + 1000 * n: list(range(n * 100, 2500, 300)) for n in (1, 2)}
    timer.flush(timer.checkpoint(NOW))
    caplog.clear()
    timer.close()
    open_timer(tmp_path)
    assert "sorted in anew" not in caplog.text


def test_a_lost_log_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timer = open_timer(tmp_path)
    add(timer, NOW + 1000, 100)
    timer.flush(timer.checkpoint(NOW))
    shutil.rmtree(tmp_path / "timerlog")
    assert open_timer(tmp_path).waiting == 0
    assert f"{tmp_path / 'timerlog'} is gone" in caplog.text


def test_a_checkpoint_that_is_a_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    timer = open_timer(tmp_path)
    add(timer, NOW + 1000, 100)
    timer.flush(timer.checkpoint(NOW))
    path = tmp_path / "config" / "timercheck"
    path.unlink()
    path.mkdir()
    timer = open_timer(tmp_path)
    assert (timer.waiting, timer.queue_offset) == (1, 0)
    assert f"{path} is damaged" in caplog.text
    timer.flush(timer.checkpoint(NOW))
    assert path.with_name("timercheck.damaged").is_dir()
    assert open_timer(tmp_path).queue_offset == 0


def test_slots_that_were_delivered_dont_come_again(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for n in range(6):
        add(timer, NOW + n * 1000, n * 100)
    timer.pass_slot()
    timer.pass_slot()
    timer.flush(timer.checkpoint(NOW))
    assert list(open_timer(tmp_path, now_ms=NOW + 10 * WEEK_MS).chain(NOW + 2000))
    assert list(drain(open_timer(tmp_path))) == [NOW + n * 1000 for n in range(2, 6)]


def test_a_torn_entry_is_the_end(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for n in range(3):
        add(timer, NOW + 1000, n * 100)
    path = tmp_path / "timerlog" / ("0" * 20)
    os.truncate(path, 2 * 52 + 30)
    os.truncate(path, LOG_FILE)
    with path.open("r+b") as file:
        file.seek(3 * 52)
        file.write(b"rubbish from long ago" * 5)
    timer = open_timer(tmp_path)
    assert drain(timer) == {NOW + 1000: [0, 100]}
    assert path.read_bytes()[104:] == bytes(LOG_FILE - 104)


def test_old_log_files_go_when_the_commit_log_has_moved_on(tmp_path: Path) -> None:
    timer = open_timer(tmp_path)
    for n in range(35):
        add(timer, NOW + n % 2 * 1000, n * 100)
    timer.delete_before(1900)
    assert len(list((tmp_path / "timerlog").iterdir())) == 3
    timer.delete_before(1901)
    assert len(list((tmp_path / "timerlog").iterdir())) == 2
    assert drain(timer)[NOW] == [n * 100 for n in range(20, 35, 2)]
    timer.flush(timer.checkpoint(NOW))
    assert open_timer(tmp_path).next_ms is None


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    add(open_timer(tmp_path), NOW + 1000, 1)
    with pytest.raises(StoreError, match="mappedFileSizeTimerLog is 1000"):
        TimerStore(tmp_path, 1000, 100, 1000).open(LOG_END, NOW)


def test_a_damaged_chain_ends(tmp_path: Path) -> None:
    log = TimerLog(tmp_path, LOG_FILE)
    log.open()
    place = log.append(TimerEntry(5, MAGIC_DELETE, NOW, NOW + 1000, 1, 100, 0))
    entry = log.read(place)
    assert entry is not None
    assert entry.is_delete
    assert log.read(place + 1) is None
    timer = open_timer(tmp_path / "timer")
    (tmp_path / "timer").mkdir()
    add(timer, NOW, 1)
    add(timer, NOW, 2)
    with (tmp_path / "timer" / "timerlog" / ("0" * 20)).open("r+b") as file:
        file.seek(56)
        file.write(pack(">q", 52)[:8])
    assert len(list(timer.chain(NOW))) <= 2


def test_wheel_goes_round(tmp_path: Path) -> None:
    wheel = TimerWheel(tmp_path / "wheel", 1000)
    wheel.open()
    assert wheel.get(NOW) == Slot(NOW, -1, -1, 0)
    wheel.put(Slot(NOW, 0, 52, 2))
    wheel.put(Slot(NOW + 1000, 104, 104, 1))
    wheel.put(Slot(NOW + 2 * WEEK_MS, 156, 156, 1))
    assert wheel.get(NOW).last == -1
    assert {slot.time_ms for slot in wheel.slots_from(NOW)} == {NOW + 1000, NOW + 2 * WEEK_MS}
    assert {slot.time_ms for slot in wheel.slots_from(NOW + 2000)} == {NOW + 2 * WEEK_MS}


@pytest.mark.parametrize(
    "damaged",
    [
        TimerCheckpoint(11),
        TimerCheckpoint(-1),
        TimerCheckpoint(log_flush_position=-1),
        TimerCheckpoint(queue_offset=-1),
    ],
)
def test_a_checkpoint_that_cannot_be_right_claims_nothing(
    tmp_path: Path, damaged: TimerCheckpoint, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config" / "timercheck"
    for data in (damaged.encode(), damaged.encode()[:20]):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        assert load_timer_checkpoint(path, 10) == TimerCheckpoint()
        assert f"{path} is damaged" in caplog.text
        caplog.clear()


def test_checkpoint_of_a_slave_is_not_trusted_beyond_its_master(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timercheck"
    assert load_timer_checkpoint(path, 10) == TimerCheckpoint()
    save_timer_checkpoint(path, TimerCheckpoint(1, 2, 3, 4, 5))
    assert load_timer_checkpoint(path, 10) == TimerCheckpoint(1, 2, 3, 4, 5)
    path.write_bytes(pack(">4q", 1, 2, 9, 3))
    assert load_timer_checkpoint(path, 10) == TimerCheckpoint()
    path.write_bytes(pack(">7q", 1, 2, 9, 3, 0, 4, 5))
    assert load_timer_checkpoint(path, 10).queue_offset == 3


@pytest.mark.parametrize("which", ["fdatasync", "sync_entries"])
def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """The kernel drops the pages that it could not write, so a later success does not count.

    The next start begins before these pages.
    """

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    timer = open_timer(tmp_path)
    add(timer, NOW + 5000, 7000)
    with monkeypatch.context() as patch:
        patch.setattr(files, which, fails)
        with pytest.raises(SyncFailed, match="Input/output error; the timer's state is not saved"):
            timer.flush(timer.checkpoint(NOW + 1))
    add(timer, NOW + 6000, 7100)
    with pytest.raises(SyncFailed, match="Input/output error"):
        timer.flush(timer.checkpoint(NOW + 1))
    timer.close()
    assert load_timer_checkpoint(tmp_path / "config" / "timercheck", NOW).queue_offset == 0
    timer = open_timer(tmp_path)
    assert timer.queue_offset == 0
    assert timer.was_added(7000)
    assert timer.was_added(7100)
    timer.close()


def test_what_may_pass_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = open_timer(tmp_path)
    add(timer, NOW + 5000, 7000)
    with monkeypatch.context() as patch:
        patch.setattr(timer_log, "sync_file", lambda path: os.open(path / "none", os.O_RDONLY))
        with pytest.raises(StoreError, match="can't bring the timer to the disk"):
            timer.flush(timer.checkpoint(NOW + 1))
    timer.flush(timer.checkpoint(NOW + 1))
    timer.close()
    assert load_timer_checkpoint(tmp_path / "config" / "timercheck", NOW).queue_offset == 1


def test_a_wheel_that_could_not_be_made_is_made_with_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel file of length 0 must not be read, because its messages would be treated as damaged."""

    def fails(fd: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    timer = open_timer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "ftruncate", fails)
        for _ in range(2):
            with pytest.raises(StoreError, match="Input/output error"):
                add(timer, NOW + 5000, 7000)
    add(timer, NOW + 5000, 7000)
    assert timer.next_ms == NOW + 5000 - (NOW + 5000) % 1000
    timer.close()


def test_errors_of_the_disk_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = open_timer(tmp_path)
    for n in range(35):
        add(timer, NOW, n * 100)

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(files, "fsync", fail)
        patch.setattr(files, "unlink", fail)
        with pytest.raises(StoreError, match=r"can't write .*timercheck: Input/output error"):
            timer.keep(TimerCheckpoint())
        with pytest.raises(StoreError, match=r"can't delete files of .*timerlog: Input/output error"):
            timer.delete_before(1901)
    # Both work when the disk does.
    timer.keep(TimerCheckpoint())
    timer.delete_before(1901)
    assert len(list((tmp_path / "timerlog").iterdir())) == 2
