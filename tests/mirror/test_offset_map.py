"""Tests of OffsetMap."""

from __future__ import annotations

from gantrymq.mirror.offset_map import MAX_RUNS, OffsetMap


def test_translations() -> None:
    offsets = OffsetMap()
    assert offsets.translate(0) is None
    offsets.add(10, 14, 100, 5)
    # The source offsets 21 and 22 are not copied.
    offsets.add(20, 24, 105, 3)
    assert offsets.translate(9) is None
    assert [offsets.translate(offset) for offset in (10, 12, 14)] == [100, 102, 104]
    assert offsets.translate(15) == 105
    # With gaps, the lowest offset of the run is safe.
    assert [offsets.translate(offset) for offset in (20, 23, 24)] == [105, 105, 105]
    assert offsets.translate(25) == 108


def test_old_runs_are_forgotten() -> None:
    offsets = OffsetMap()
    for number in range(MAX_RUNS + 1):
        offsets.add(number, number, number, 1)
    assert offsets.translate(0) is None
    assert offsets.translate(1) == 1
