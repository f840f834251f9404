"""The catalog has the segments of one log, also if the tier has others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from segments import add_data

from gantrymq.store.message_store import ClosedFile
from gantrymq.tier.catalog_loader import CatalogLoader, LogFile, LogView, manifests, segment_names
from gantrymq.tier.objects import Objects, open_objects
from gantrymq.tier.segment import MANIFESTS, Manifest, object_name, sample_crc32
from gantrymq.tier.uploader import delete_segment, finish_segment


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "tier"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Returns a file of the log."""
    path = tmp_path / "log"
    path.write_bytes(b"log")
    return path


def add(objects: Objects, base: int, **changed: int) -> Manifest:
    manifest = msgspec.structs.replace(add_data(objects, base), **changed)
    finish_segment(objects, manifest, lambda: False)
    return manifest


def add_copy(objects: Objects, path: Path, base: int) -> Manifest:
    return add(objects, base, last_size=3, crc32=sample_crc32(path, base, base, 3))


def loaded(loader: CatalogLoader, objects: Objects, view: LogView) -> list[str]:
    loader.load(segment_names(objects), view)
    return [segment.name for segment in loader.catalog]


def log_file(path: Path, base: int) -> LogFile:
    return LogFile(base, ClosedFile(path, base, base + 3, base, base + 3))


def test_segments_before_the_log_have_to_precede_it(objects: Objects) -> None:
    first, second = add(objects, 0), add(objects, 3)
    other, gap = add(objects, 3, end_timestamp=99), add(objects, 12)
    last = add(objects, 18)
    loader = CatalogLoader(objects)
    view = LogView(21, 23, 21, {})
    assert loaded(loader, objects, view)[-2:] == [gap.name, last.name]
    add(objects, 6)
    found = loaded(CatalogLoader(objects), objects, view)
    assert [name[:20] for name in found] == [f"{base:020d}" for base in (0, 3, 6, 12, 18)]
    assert {first.name, second.name} < set(found)
    assert other.name not in found
    assert [manifest.name for manifest in manifests(objects)] == found
    # The log continues differently.
    loader = CatalogLoader(objects)
    assert last.name not in loaded(loader, objects, LogView(21, 23, 22, {}))
    assert loader.others[last.name] == 21


def test_segments_of_files_on_the_disk_have_to_be_copies(objects: Objects, path: Path) -> None:
    copy, other = add_copy(objects, path, 0), add(objects, 3, last_size=3, crc32=1)
    beyond = add(objects, 6)
    view = LogView(0, 7, 0, {0: log_file(path, 0), 3: log_file(path, 3), 6: LogFile(6, None)})
    loader = CatalogLoader(objects)
    assert loaded(loader, objects, view) == [copy.name]
    assert not loader.is_of_another_log(segment_names(objects))
    # The broker copies its own file, too.
    own = add_copy(objects, path, 3)
    assert loaded(loader, objects, view) == [copy.name, own.name]
    # A slave's log has lost its end.
    assert loaded(loader, objects, view._replace(end=5, files={3: LogFile(3, None)})) == [copy.name]
    assert {other.name, beyond.name} < set(segment_names(objects))


@pytest.mark.parametrize("end", [0, 2, 3])
def test_a_tier_of_another_log(objects: Objects, path: Path, end: int) -> None:
    add(objects, 0, begin_timestamp=50)
    loader = CatalogLoader(objects)
    files = {0: LogFile(0, None if end < 3 else log_file(path, 0).closed)} if end else {}
    assert loaded(loader, objects, LogView(0, end, 0 if end else -1, files)) == []
    assert loader.is_of_another_log(segment_names(objects))
    assert not loader.is_of_another_log([])


def test_a_log_that_ends_in_its_first_segment(objects: Objects) -> None:
    """After a failover, the old master may have copied more than the new one has."""
    add(objects, 0)
    loader = CatalogLoader(objects)
    assert loaded(loader, objects, LogView(0, 2, 0, {0: LogFile(0, None)})) == []
    assert not loader.is_of_another_log(segment_names(objects))


def test_only_new_manifests_are_read(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    read: Callable[..., bytes] = type(objects).read

    def counted(self: Objects, name: str, *arguments: int) -> bytes:
        names.append(name)
        return read(self, name, *arguments)

    monkeypatch.setattr(type(objects), "read", counted)
    kept, damaged, other, deleted = add(objects, 0), add(objects, 3), add(objects, 6, end_timestamp=1), add(objects, 9)
    with objects.create(object_name(MANIFESTS, damaged.name)) as writer:
        writer.write(b"{")
    loader = CatalogLoader(objects)
    catalog = loader.catalog
    assert loaded(loader, objects, LogView(12, 13, 12, {})) == [kept.name, deleted.name]
    assert len(names) == 4
    assert set(loader.others) == {other.name}
    delete_segment(objects, deleted.name)
    new = add(objects, 12)
    assert loaded(loader, objects, LogView(15, 16, 15, {})) == [kept.name, new.name]
    assert names[4:] == [object_name(MANIFESTS, new.name)]
    assert loader.catalog is catalog


def test_a_manifest_of_any_size_is_not_read_into_memory(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = add(objects, 0)
    large = 200 * 1024 * 1024
    with open(f"{objects}/{object_name(MANIFESTS, manifest.name)}", "r+b") as file:
        file.truncate(large)
    assert manifests(objects) == []
    assert "the manifest has more than" in caplog.text
