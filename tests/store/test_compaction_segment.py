"""Segments of compaction logs with damaged units: what a segment appends, cuts and searches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gantrymq.protocol.record import offset_of
from gantrymq.store.compaction.segment import SPARSE_UNIT_SIZE, CopiedRecord, FileSizes, Segment
from gantrymq.system import files

COUNT = 4000
RECORD_SIZE = 40
SIZES = FileSizes(log=(COUNT + 10) * RECORD_SIZE, units=100 * COUNT * SPARSE_UNIT_SIZE)


def record(queue_offset: int) -> CopiedRecord:
    """Returns a record with the two fields that a segment reads."""
    data = bytearray(RECORD_SIZE)
    data[:4] = RECORD_SIZE.to_bytes(4, "big")
    at = offset_of("queue_offset")
    data[at : at + 8] = queue_offset.to_bytes(8, "big")
    return CopiedRecord(bytes(data), 0, 1_000 + queue_offset, queue_offset)


def opened(tmp_path: Path) -> Segment:
    segment = Segment(tmp_path / "log", tmp_path / "units", 0, SIZES)
    segment.load()
    return segment


def make(tmp_path: Path, *damaged: int) -> Segment:
    """Returns a segment with every third queue offset, in which these units are zero."""
    segment = Segment(tmp_path / "log", tmp_path / "units", 0, SIZES)
    segment.create()
    segment.append([record(3 * i) for i in range(COUNT)])
    with segment.unit_path.open("r+b") as file:
        for number in damaged:
            file.seek(number * SPARSE_UNIT_SIZE)
            file.write(bytes(SPARSE_UNIT_SIZE))
    return opened(tmp_path)


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Returns a function that returns, and forgets, the size of each read."""
    sizes: list[int] = []
    pread = files.pread

    def counted(fd: int, size: int, at: int, /) -> bytes:
        sizes.append(size)
        return pread(fd, size, at)

    def taken() -> list[int]:
        try:
            return sizes[:]
        finally:
            sizes.clear()

    monkeypatch.setattr(files, "pread", counted)
    return taken


def test_a_cut_after_a_damaged_unit(tmp_path: Path) -> None:
    segment = make(tmp_path, 9)
    segment.cut(30)
    assert (segment.count, segment.position, segment.last) == (9, 9 * RECORD_SIZE, 24)
    segment.append([record(30), record(33)])
    segment = opened(tmp_path)
    assert [unit.queue_offset for unit, _ in segment.records()] == [*range(0, 27, 3), 30, 33]


def test_a_cut_that_cannot_read_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = make(tmp_path)
    hidden = segment.log_path.rename(tmp_path / "hidden")
    with pytest.raises(Exception, match="can't read"):
        segment.cut(30)
    hidden.rename(segment.log_path)
    assert segment.last == 3 * COUNT - 3
    segment.cut(30)
    assert (segment.count, segment.last) == (10, 27)


def test_the_end_of_a_file_is_found_without_reading_it(tmp_path: Path, read_bytes: Callable[[], list[int]]) -> None:
    make(tmp_path)
    read_bytes()
    assert opened(tmp_path).count == COUNT
    assert sum(read_bytes()) < 10_000


@pytest.mark.parametrize("damaged", [(COUNT - 1,), range(COUNT // 2, COUNT - 1), range(1, COUNT)], ids=str)
def test_the_last_sound_unit_is_the_end(tmp_path: Path, damaged: Any) -> None:
    segment = make(tmp_path, *damaged)
    last = max(set(range(COUNT)) - set(damaged))
    assert (segment.count, segment.position, segment.last) == (last + 1, (last + 1) * RECORD_SIZE, 3 * last)


def test_a_search_reads_one_or_two_records(tmp_path: Path, read_bytes: Callable[[], list[int]]) -> None:
    segment = make(tmp_path)
    for number in (0, 1, 700, 2000, COUNT - 1):
        for queue_offset in (3 * number, 3 * number - 1):
            read_bytes()
            assert segment.number_of(queue_offset) == number
            heads = [size for size in read_bytes() if size % SPARSE_UNIT_SIZE]
            assert heads in ([28], [28] * 2)
            assert len(heads) == 1 or queue_offset < 3 * number


def test_a_damaged_unit_makes_no_search_read_all_units(tmp_path: Path, read_bytes: Callable[[], list[int]]) -> None:
    segment = make(tmp_path, COUNT // 2)
    for number in (1, 700, 1999, 2001, 3500):
        read_bytes()
        assert segment.number_of(3 * number) == number
        assert sum(read_bytes()) < COUNT * SPARSE_UNIT_SIZE // 2
    assert segment.number_of(3 * (COUNT // 2)) == COUNT // 2 + 1
