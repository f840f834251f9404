"""Which messages of a queue consumers may read from a tier."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import perf_counter

import pytest

from gantrymq.errors import StoreError
from gantrymq.tier.catalog import TierCatalog
from gantrymq.tier.segment import VERSION, Manifest, QueueRange, decode_manifest, encode_manifest


def manifest(base: int, *queues: tuple[str, int, int, int]) -> Manifest:
    ranges = [QueueRange(*queue) for queue in queues]
    return Manifest(VERSION, base, 1000, base, base + 1000, 0, ranges, "0" * 27, base + 900, 100, 7)


def offsets(catalog: TierCatalog, topic: str, end: int) -> list[tuple[int, int, int]]:
    """Returns the base of the segment, the first offset and the end of each range."""
    return [(part.segment.base, part.first, part.end) for part in catalog.ranges(topic, 0, end)]


def test_the_ranges_before_the_log() -> None:
    catalog = TierCatalog()
    catalog.add(manifest(1000, ("b", 0, 5, 5), ("a", 0, 10, 10)))
    catalog.add(manifest(0, ("a", 0, 0, 10)))
    catalog.add(manifest(3000, ("a", 0, 20, 5)))
    assert [segment.base for segment in catalog] == [0, 1000, 3000]
    assert (catalog.end, catalog.size) == (4000, 3000)
    assert 1000 in catalog
    assert 2000 not in catalog
    # The last segment is still in the log.
    assert offsets(catalog, "a", 20) == [(0, 0, 10), (1000, 10, 20)]
    assert offsets(catalog, "a", 25) == [(0, 0, 10), (1000, 10, 20), (3000, 20, 25)]
    assert offsets(catalog, "a", 26) == []
    assert offsets(catalog, "c", 26) == []
    # The units of `a` follow those of `b`.
    assert [part.position for part in catalog.ranges("a", 0, 20)] == [0, 100]
    catalog.remove(0)
    assert offsets(catalog, "a", 20) == [(1000, 10, 20)]
    assert offsets(catalog, "b", 10) == [(1000, 5, 10)]


def test_messages_of_a_deleted_topic() -> None:
    """A topic of the same name begins again at the offset 0."""
    catalog = TierCatalog()
    catalog.add(manifest(0, ("a", 0, 0, 50)))
    catalog.add(manifest(1000, ("a", 0, 0, 30)))
    catalog.add(manifest(2000, ("a", 0, 30, 70)))
    assert offsets(catalog, "a", 0) == []
    assert offsets(catalog, "a", 100) == [(1000, 0, 30), (2000, 30, 100)]


def test_messages_before_a_gap() -> None:
    catalog = TierCatalog()
    catalog.add(manifest(0, ("a", 0, 0, 50)))
    catalog.add(manifest(2000, ("a", 0, 60, 10)))
    assert offsets(catalog, "a", 70) == [(2000, 60, 70)]


def test_a_segment_that_is_copied_again() -> None:
    catalog = TierCatalog()
    catalog.add(manifest(0, ("a", 0, 0, 50)))
    catalog.add(manifest(0, ("a", 0, 0, 40)))
    assert offsets(catalog, "a", 40) == [(0, 0, 40)]
    assert len(catalog) == 1


def test_the_limit_of_ranges() -> None:
    """The newest segments are visible. All segments are there, so that they expire."""
    catalog = TierCatalog(most_ranges=3)
    for number in range(5):
        catalog.add(manifest(number * 1000, ("a", 0, number * 10, 10), ("b", 0, number * 10, 10)))
    assert len(catalog) == 5
    assert offsets(catalog, "a", 50) == [(4000, 40, 50)]
    catalog.remove(0)
    catalog.remove(4000)
    assert offsets(catalog, "a", 50) == []
    catalog.add(manifest(3000, ("a", 0, 30, 10)))
    assert offsets(catalog, "a", 40) == []


def test_segments_in_any_order() -> None:
    """A random sequence of changes has the same result as a new catalog with the remaining segments."""
    random = Random(7)
    all_manifests = {
        number * 1000: manifest(number * 1000, ("a", 0, first, 10), ("b", 0, number * 5, 5))
        # The topic `a` was deleted once, and there is a gap.
        for number, first in enumerate([100, 110, 120, 0, 10, 20, 40, 50, 60])
    }
    catalog = TierCatalog()
    there: set[int] = set()
    for _ in range(500):
        base = random.choice(list(all_manifests))
        if base in there and random.random() < 0.6:
            catalog.remove(base)
            there.remove(base)
        else:
            catalog.add(all_manifests[base])
            there.add(base)
        new = TierCatalog()
        for known in sorted(there):
            new.add(all_manifests[known])
        for topic in "ab":
            for end in range(0, 140, 5):
                assert (
                    offsets(catalog, topic, end)
                    == offsets(new, topic, end)
                    == expected(all_manifests, there, end, topic)
                )


def expected(manifests: dict[int, Manifest], there: set[int], end: int, topic: str) -> list[tuple[int, int, int]]:
    """Returns the ranges that end at `end` together, found one by one."""
    found: list[tuple[int, int, int]] = []
    for base in sorted(there, reverse=True):
        part = next(part for part in manifests[base].queues if part.topic == topic)
        if part.first >= end:
            continue
        if part.first + part.count != end:
            break
        found.insert(0, (base, part.first, end))
        end = part.first
    return found


def test_many_segments_and_queues_are_fast() -> None:
    catalog = TierCatalog()
    for number in range(10_000):
        catalog.add(manifest(number * 1000, ("a", 0, number * 10, 10)))
    for queue_id in range(100):
        catalog.add(manifest(20_000_000 + queue_id * 1000, *(("b", 2000 * queue_id + n, 0, 10) for n in range(2000))))

    def shortest(call: Callable[[int], object]) -> float:
        """Returns the shortest time of a call, in seconds."""
        times = []
        for number in range(10):
            begin = perf_counter()
            call(number)
            times.append(perf_counter() - begin)
        return min(times)

    # 0.02 ms and 0.8 ms are usual.
    assert shortest(lambda number: catalog.ranges("a", 0, 100_000)) < 0.000_25
    assert shortest(lambda number: catalog.remove(number * 1000)) < 0.01


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"[]",
        lambda data: b"\xff\xfe",
        lambda data: data.replace(b'"version":1', b'"version":2'),
        lambda data: data.replace(b'"base":1000', b'"base":2000'),
        lambda data: data.replace(b'"size":1000', b'"size":-1'),
        lambda data: data.replace(b'"indexSize":0', b'"indexSize":7'),
        lambda data: data.replace(b'"id":"0', b'"id":"1'),
        lambda data: data.replace(b'"lastRecord":1900', b'"lastRecord":1901'),
        lambda data: data.replace(b'"lastSize":100', b'"lastSize":-1'),
        lambda data: data.replace(b'"crc32":7', b'"crc32":null'),
        lambda data: data.replace(b'["a",0,10,10]', b'["a",0,-10,10]'),
        lambda data: data.replace(b'["a",0,10,10]', b'["a",0,10,0]'),
        lambda data: data.replace(b'["a",0,10,10]', b'["a"]'),
    ],
)
def test_a_damaged_manifest(damage: object) -> None:
    data = encode_manifest(manifest(1000, ("a", 0, 10, 10)))
    name = manifest(1000).name
    assert decode_manifest(data, name) == manifest(1000, ("a", 0, 10, 10))
    damaged = damage(data)  # type: ignore[operator]
    assert damaged != data
    with pytest.raises(StoreError, match="segment 00000000000000001000"):
        decode_manifest(damaged, name)
