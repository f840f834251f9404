"""sim/disk.py: state of files after a kill and after a power failure."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest
from sim.disk import Disk
from sim.inodes import PAGE

_NEW = os.O_RDWR | os.O_CREAT


def write(disk: Disk, path: str, data: bytes, *, sync: bool, sync_entry: bool) -> None:
    disk.make_directory(os.path.dirname(path))
    fd = disk.open(path, _NEW)
    disk.pwrite(fd, data, 0)
    if sync:
        disk.fsync(fd)
    disk.close(fd)
    if sync_entry:
        # Also syncs the entry of its directory in the root.
        for directory in ("/", os.path.dirname(path)):
            fd = disk.open(directory, os.O_RDONLY)
            disk.fsync(fd)
            disk.close(fd)


def read(disk: Disk, path: str) -> bytes:
    fd = disk.open(path, os.O_RDONLY)
    data = disk.pread(fd, 1 << 20, 0)
    disk.close(fd)
    return data


def test_a_kill_loses_nothing() -> None:
    disk = Disk(Random(1))
    fd = disk.open("/file", _NEW)
    mapping = disk_map(disk, fd, PAGE)
    mapping[:5] = b"hello"
    disk.process_died()
    assert read(disk, "/file")[:5] == b"hello"
    with pytest.raises(OSError, match="Bad file"):
        disk.pread(fd, 1, 0)


def disk_map(disk: Disk, fd: int, size: int):  # type: ignore[no-untyped-def]
    disk.ftruncate(fd, size)
    return disk.map(fd, size)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_synced_is_there(seed: int) -> None:
    disk = Disk(Random(seed))
    write(disk, "/d/file", b"a" * 10_000, sync=True, sync_entry=True)
    disk.power_failed()
    assert read(disk, "/d/file") == b"a" * 10_000


def test_what_was_not_synced_may_be_old_new_or_torn() -> None:
    left = set()
    for seed in range(100):
        disk = Disk(Random(seed))
        write(disk, "/d/file", b"a" * PAGE, sync=True, sync_entry=True)
        write(disk, "/d/file", b"b" * PAGE, sync=False, sync_entry=False)
        disk.power_failed()
        data = read(disk, "/d/file")
        assert len(data) == PAGE
        left.add(bytes(sorted(set(data))))
    assert left == {b"a", b"b", b"ab"}


@pytest.mark.parametrize("is_mapped", [False, True])
def test_what_is_done_after_the_power_failed_does_not_count(is_mapped: bool) -> None:
    seen = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        write(disk, "/d/file", b"old", sync=True, sync_entry=True)
        fd = disk.open("/d/file", os.O_RDWR)
        mapping = disk_map(disk, fd, PAGE) if is_mapped else None
        disk.pwrite(fd, b"new", 0)
        failed = disk.power_fails()
        disk.pwrite(fd, b"late", 0)
        disk.fsync(fd)
        write(disk, "/d/other", b"late", sync=True, sync_entry=True)
        assert read(disk, "/d/file")[:4] == b"late"
        assert mapping is None or mapping[:4] == b"late"
        failed()
        assert disk.names("/d") == ["file"]
        assert disk.open_count == 0
        seen.add(read(disk, "/d/file")[:3])
    assert seen == {b"old", b"new"}


def test_an_entry_that_was_not_synced_may_be_gone() -> None:
    there = set()
    for seed in range(50):
        disk = Disk(Random(seed))
        write(disk, "/d/first", b"", sync=True, sync_entry=True)
        write(disk, "/d/second", b"", sync=True, sync_entry=False)
        disk.rename("/d/first", "/d/third")
        disk.power_failed()
        there.add(tuple(sorted(disk.names("/d"))))
    assert ("first",) in there
    assert ("second", "third") in there
    assert all("first" in names or "third" in names for names in there)


def test_a_full_disk_takes_no_more() -> None:
    disk = Disk(Random(1))
    disk.faults.capacity = 10_000
    write(disk, "/d/file", bytes(9_000), sync=True, sync_entry=True)
    fd = disk.open("/d/other", _NEW)
    with pytest.raises(OSError, match="No space") as raised:
        disk.posix_fallocate(fd, 0, 2_000)
    assert raised.value.errno == errno.ENOSPC


def test_a_sync_that_lies_is_remembered() -> None:
    disk = Disk(Random(1))
    disk.faults.sync_lies = 1.0
    write(disk, "/file", b"x", sync=True, sync_entry=True)
    assert disk.has_lied


def test_a_flipped_bit_stays() -> None:
    disk = Disk(Random(1))
    write(disk, "/file", b"\0\0", sync=True, sync_entry=True)
    disk.flip_bit("/file", 1, 3)
    disk.power_failed()
    assert read(disk, "/file") == b"\0\x08"


def test_a_lock_ends_with_its_descriptor() -> None:
    disk = Disk(Random(1))
    first, second = disk.open("/lock", _NEW), disk.open("/lock", _NEW)
    disk.lock(first)
    with pytest.raises(BlockingIOError):
        disk.lock(second)
    disk.close(first)
    disk.lock(second)


def test_data_and_holes_are_found() -> None:
    disk = Disk(Random(1))
    fd = disk.open("/file", _NEW)
    disk.ftruncate(fd, 10 * PAGE)
    disk.pwrite(fd, b"x", 5 * PAGE + 7)
    assert disk.lseek(fd, 0, os.SEEK_DATA) == 5 * PAGE
    assert disk.lseek(fd, 5 * PAGE, os.SEEK_HOLE) == 6 * PAGE
    with pytest.raises(OSError, match="No such device"):
        disk.lseek(fd, 6 * PAGE, os.SEEK_DATA)
