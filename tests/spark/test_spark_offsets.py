from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.arrow.offsets import (
    EARLIEST_NUMBER,
    LATEST_NUMBER,
    OffsetRange,
    bundle,
    from_json,
    last_in_turn,
    limit_rows,
    parse_boundary,
    parse_times,
    plan_ranges,
    to_json,
)
from gantrymq.arrow.option_values import expected_brokers
from gantrymq.errors import ConfigError
from gantrymq.protocol.message import MessageQueue

A0, A1, B0 = (MessageQueue("t", broker, n) for broker, n in (("broker-a", 0), ("broker-a", 1), ("b:x", 0)))

QUEUES = st.builds(MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["a", "b:c"]), st.integers(0, 3))
RANGES = st.dictionaries(QUEUES, st.tuples(st.integers(0, 1000), st.integers(0, 500)), max_size=8)


def test_json_form_and_back() -> None:
    offsets = {B0: 7, A1: 2, A0: 1}
    assert to_json(offsets) == {"t": {"b:x:0": 7, "broker-a:0": 1, "broker-a:1": 2}}
    assert from_json(to_json(offsets)) == offsets


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "[]",
        '{"t": 1}',
        '{"t": {"broker-a": 1}}',
        '{"t": {"broker-a:x": 1}}',
        '{"t": {":0": 1}}',
        '{"t": {"broker-a:0": "1"}}',
        '{"t": {"broker-a:0": -3}}',
        '{"t": {"broker-a:0": true}}',
        '{"t": {"broker-a:00": 1}}',
        '{"t": {"broker-a:0": 9223372036854775808}}',
    ],
)
def test_other_shapes_are_refused(value: str) -> None:
    with pytest.raises(ConfigError):
        from_json(json.loads(value))


@pytest.mark.parametrize("value", ['{"t": {"a:0": 1, "a:0": 2}}', '{"t": {"a:0": 1}, "t": {"a:1": 2}}'])
def test_a_name_that_is_there_twice_is_refused(value: str) -> None:
    for parse in (parse_boundary, parse_times):
        with pytest.raises(ConfigError, match="is there twice"):
            parse("startingOffsets", value)


@pytest.mark.parametrize("value", ['{"t": ["a"], "t": ["b"]}', '{"t": ' + "[" * 100_000])
def test_expected_brokers_are_read_like_offsets(value: str) -> None:
    with pytest.raises(ConfigError, match="option expectedBrokers"):
        expected_brokers(value)


def test_boundaries() -> None:
    assert parse_boundary("startingOffsets", "Earliest").number_of(A0) == EARLIEST_NUMBER
    assert parse_boundary("endingOffsets", "latest").number_of(A0) == LATEST_NUMBER
    starting = parse_boundary("startingOffsets", '{"t": {"broker-a:0": 5, "broker-a:1": -1}}')
    assert [starting.number_of(queue) for queue in (A0, A1, B0)] == [5, LATEST_NUMBER, EARLIEST_NUMBER]
    assert parse_boundary("endingOffsets", '{"t": {"broker-a:0": 5}}').number_of(B0) == LATEST_NUMBER
    of_topics = parse_boundary("startingOffsets", '{"u": "Latest", "t": {"broker-a:0": 5}}')
    numbers = [of_topics.named_number_of(queue) for queue in (A0, A1, A0._replace(topic="u"))]
    assert numbers == [5, None, LATEST_NUMBER]
    for wrong in ("newest", "{}", '{"t": {}}', '{"t": "newest"}'):
        with pytest.raises(ConfigError, match="startingOffsets"):
            parse_boundary("startingOffsets", wrong)
    with pytest.raises(ConfigError, match="brackets"):
        parse_boundary("startingOffsets", "[" * 100_000)


def test_one_partition_a_queue_and_none_for_empty_ones() -> None:
    start, end = {A0: 0, A1: 5, B0: 9}, {A0: 10, A1: 5, B0: 3}
    assert plan_ranges(start, end) == [OffsetRange(A0, 0, 10)]


def test_large_queues_are_split() -> None:
    ranges = plan_ranges({A0: 0, A1: 0}, {A0: 90, A1: 10}, 10)
    assert [r for r in ranges if r.queue == A1] == [OffsetRange(A1, 0, 10)]
    assert [(r.start, r.end) for r in ranges if r.queue == A0] == [(10 * i, 10 * i + 10) for i in range(9)]


@given(RANGES, st.integers(1, 40))
def test_partitions_cover_each_offset_once(ranges: dict[MessageQueue, tuple[int, int]], min_partitions: int) -> None:
    start = {queue: first for queue, (first, _) in ranges.items()}
    end = {queue: first + count for queue, (first, count) in ranges.items()}
    planned = plan_ranges(start, end, min_partitions)
    covered = [(r.queue, offset) for r in planned for offset in range(r.start, r.end)]
    assert len(covered) == len(set(covered)) == sum(count for _, count in ranges.values())
    assert all(start[queue] <= offset < end[queue] for queue, offset in covered)
    assert len(planned) >= min(min_partitions, len(covered))


@given(RANGES, st.integers(1, 2000))
def test_a_limit_is_kept_and_used_up(ranges: dict[MessageQueue, tuple[int, int]], max_rows: int) -> None:
    start = {queue: first for queue, (first, _) in ranges.items()}
    end = {queue: first + count for queue, (first, count) in ranges.items()}
    limited = limit_rows(start, end, max_rows)
    assert all(start[queue] <= limited[queue] <= end[queue] for queue in end)
    total = sum(count for _, count in ranges.values())
    assert sum(limited[queue] - start[queue] for queue in end) == min(total, max_rows)


def test_a_nearly_empty_queue_is_not_passed_over() -> None:
    assert limit_rows({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 100) == {A0: 99, A1: 1}


@given(RANGES, st.integers(1, 2000))
def test_each_queue_has_a_row_where_there_are_as_many(
    ranges: dict[MessageQueue, tuple[int, int]], max_rows: int
) -> None:
    start = {queue: first for queue, (first, _) in ranges.items()}
    end = {queue: first + count for queue, (first, count) in ranges.items()}
    served = {queue for queue, offset in limit_rows(start, end, max_rows).items() if offset > start[queue]}
    busy = {queue for queue in end if end[queue] > start[queue]}
    assert len(served) == min(len(busy), max_rows)


@given(st.integers(1, 5), st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=30))
def test_queues_take_turns_when_there_are_fewer_rows(max_rows: int, busy: list[set[int]]) -> None:
    """Queue 5 waits at most for the batches that serve the nine others, whichever of those have messages."""
    queues = [MessageQueue("t", "broker-a", n) for n in range(10)]
    waiting, start, after = queues[5], dict.fromkeys(queues, 0), None
    most = -(-len(queues) // max_rows)
    for batch in range(most):
        end = start | {queues[n]: start[queues[n]] + 100 for n in busy[batch % len(busy)]} | {waiting: 1}
        limited = limit_rows(start, end, max_rows, after)
        after, start = last_in_turn(start, end, limited, after), limited
    assert start[waiting] == 1


@given(RANGES, st.integers(1, 600))
def test_bundles_hold_every_range_once_and_are_full(ranges: dict[MessageQueue, tuple[int, int]], max_rows: int) -> None:
    start = {queue: first for queue, (first, _) in ranges.items()}
    end = {queue: first + count for queue, (first, count) in ranges.items()}
    planned = plan_ranges(start, end)
    bundles = bundle(planned, max_rows)
    assert [part for parts in bundles for part in parts] == planned
    sizes = [sum(part.end - part.start for part in parts) for parts in bundles]
    assert all(size <= max_rows or len(parts) == 1 for size, parts in zip(sizes, bundles, strict=True))
    # No range would have fit into the previous bundle.
    for (size, _), (_, following) in pairwise(zip(sizes, bundles, strict=True)):
        assert size + following[0].end - following[0].start > max_rows
