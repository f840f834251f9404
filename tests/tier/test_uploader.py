"""Segments are written, found and deleted as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from segments import add_data

from gantrymq.store.config import UNIT_SIZE
from gantrymq.store.consume_queue import FILLER_SIZE, UNIT
from gantrymq.tier.catalog_loader import manifests
from gantrymq.tier.objects import open_objects
from gantrymq.tier.segment import LOG, MANIFESTS, QueueRange, object_name
from gantrymq.tier.uploader import UnitRanges, copy_log_file, delete_remains, delete_segment, finish_segment


def is_running() -> bool:
    """Returns that the upload is not stopped."""
    return False


def test_remains_of_uploads_and_deletions(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    segments = [add_data(objects, base) for base in range(0, 300, 3)]
    for manifest in segments:
        finish_segment(objects, manifest, is_running)
    unfinished = add_data(objects, 300)
    assert [manifest.base for manifest in manifests(objects)] == list(range(0, 300, 3))
    delete_segment(objects, segments[0].name)
    (tmp_path / object_name(LOG, segments[10].name)).write_bytes(b"lo")
    assert [manifest.base for manifest in manifests(objects)] == [base for base in range(3, 300, 3) if base != 30]
    # The data without a manifest after the last segment stays: a master may be writing it.
    objects.delete(object_name(MANIFESTS, segments[20].name))
    assert delete_remains(objects, 300) == 3
    assert segments[20].name not in objects.names(LOG)
    assert unfinished.name in objects.names(LOG)


def test_a_segment_with_missing_data_gets_no_manifest(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    manifest = add_data(objects, 0, b"longer")
    with pytest.raises(OSError, match="has 6 bytes after its upload instead of 3"):
        finish_segment(objects, manifest, is_running)
    assert objects.names(MANIFESTS) == {}


def test_a_segment_whose_upload_was_stopped_gets_no_manifest(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    with pytest.raises(OSError, match="was stopped"):
        finish_segment(objects, add_data(objects, 0), lambda: True)
    assert objects.names(MANIFESTS) == {}


def test_a_copy_that_is_stopped_or_too_short(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "tier"))
    path = tmp_path / "log"
    path.write_bytes(bytes(3_000_000))
    answers = iter([False, False, True])
    with pytest.raises(OSError, match="was stopped"):
        copy_log_file(objects, "name", path, 3_000_000, lambda: next(answers))
    with pytest.raises(OSError, match="ends at 3000000 instead of 4000000"):
        copy_log_file(objects, "name", path, 4_000_000, is_running)
    assert objects.names(LOG) == {}
    copy_log_file(objects, "name", path, 3_000_000, is_running)
    assert objects.names(LOG) == {"name": 3_000_000}


def test_ranges_of_units() -> None:
    ranges = UnitRanges()
    ranges.add("a", 0, 5, bytes(2 * UNIT_SIZE))
    ranges.add("a", 0, 7, bytes(UNIT_SIZE))
    ranges.add("a", 1, 8, bytes(UNIT_SIZE))
    ranges.add("b", 0, 0, bytes(UNIT_SIZE))
    ranges.add("b", 0, 2, bytes(UNIT_SIZE))
    assert ranges.ranges == [
        QueueRange("a", 0, 5, 3),
        QueueRange("a", 1, 8, 1),
        QueueRange("b", 0, 0, 1),
        QueueRange("b", 0, 2, 1),
    ]


def test_the_last_record_of_all_queues() -> None:
    ranges = UnitRanges()
    ranges.add("a", 0, 0, UNIT.pack(100, 10, 0) + UNIT.pack(300, 30, 0) + UNIT.pack(0, FILLER_SIZE, 0))
    ranges.add("b", 0, 0, UNIT.pack(200, 20, 0))
    ranges.add("c", 0, 0, UNIT.pack(0, FILLER_SIZE, 0))
    assert (ranges.last_record, ranges.last_size) == (300, 30)
