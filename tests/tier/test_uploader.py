"""Segments are written, found and deleted as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.store.config import UNIT_SIZE
from gantrymq.tier.objects import Objects, open_objects
from gantrymq.tier.segment import INDEX, LOG, MANIFESTS, QUEUES, VERSION, Manifest, QueueRange, object_name
from gantrymq.tier.uploader import (
    PiecewiseObject,
    UnitRanges,
    copy_log_file,
    delete_remains,
    delete_segment,
    finish_segment,
    load_catalog,
)


def add_data(objects: Objects, base: int, log: bytes = b"log") -> Manifest:
    """Writes a segment without its manifest."""
    for directory, data in ((LOG, log), (QUEUES, bytes(2 * UNIT_SIZE)), (INDEX, b"")):
        writer = PiecewiseObject(objects, object_name(directory, base))
        writer.write(data)
        writer.commit()
    return Manifest(VERSION, base, 3, base, base + 1, 0, [QueueRange("orders", 0, base, 2)])


def test_the_catalog_has_complete_segments(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    assert len(load_catalog(objects)) == 0
    for base in range(0, 300, 3):
        finish_segment(objects, add_data(objects, base))
    add_data(objects, 300)
    catalog = load_catalog(objects)
    assert [segment.base for segment in catalog] == list(range(0, 300, 3))
    assert load_catalog(objects, catalog) is catalog
    delete_segment(objects, 0)
    (tmp_path / object_name(LOG, 30)).write_bytes(b"lo")
    changed = load_catalog(objects, catalog)
    assert [segment.base for segment in changed] == [base for base in range(3, 300, 3) if base != 30]
    # The data without a manifest after the last segment stays: a master may be writing it.
    objects.delete(object_name(MANIFESTS, 60))
    assert delete_remains(objects, changed) == 3
    assert object_name(LOG, 60).split("/")[1] not in objects.names(LOG)
    assert object_name(LOG, 300).split("/")[1] in objects.names(LOG)


def test_a_segment_with_missing_data_gets_no_manifest(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    manifest = add_data(objects, 0, b"longer")
    with pytest.raises(OSError, match="has 6 bytes after its upload instead of 3"):
        finish_segment(objects, manifest)
    assert objects.names(MANIFESTS) == {}


def test_a_copy_that_is_stopped_or_too_short(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path / "tier"))
    path = tmp_path / "log"
    path.write_bytes(bytes(3_000_000))
    answers = iter([False, False, True])
    with pytest.raises(OSError, match="was stopped"):
        copy_log_file(objects, 0, path, 3_000_000, lambda: next(answers))
    with pytest.raises(OSError, match="ends at 3000000 instead of 4000000"):
        copy_log_file(objects, 0, path, 4_000_000, lambda: False)
    assert objects.names(LOG) == {}
    copy_log_file(objects, 0, path, 3_000_000, lambda: False)
    assert objects.names(LOG) == {f"{0:020d}": 3_000_000}


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
