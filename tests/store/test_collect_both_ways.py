"""Native code and Python find the same records for a pull, with and without a tag filter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_code import BOTH, use_python
from store_support import open_store, put

from gantrymq.kernels import native
from gantrymq.protocol.record import decode_records
from gantrymq.store import collect
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.get_result import GetResult, GetStatus
from gantrymq.store.message_store import MessageStore

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

COUNT = 150
CODES = [-(2**31), -1, 0, 1, 2**31 - 1]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[MessageStore, ConsumeQueue]]:
    """A queue of several files with runs of equal tags codes. Records of another queue are in between."""
    rng = random.Random(7)
    store = open_store(tmp_path_factory.mktemp("filtered"))
    queue, other = store.queue("T", 0), store.queue("Other", 0)
    code = 0
    for n in range(COUNT):
        if rng.random() < 0.3:
            code = rng.choice(CODES)
        put(store, queue, b"%d " % n + bytes(rng.choice((0, 900))), tags_code=code)
        if rng.random() < 0.2:
            put(store, other, b"x")
    yield store, queue
    store.close()


def fields(result: GetResult) -> tuple[object, ...]:
    bodies = b"".join(bytes(buffer) for buffer in result.buffers)
    return result.status, result.next_begin_offset, result.message_count, result.size, bodies


@given(
    st.integers(0, COUNT - 1),
    st.integers(1, 40),
    st.frozensets(st.sampled_from(CODES)),
    st.booleans(),
    st.integers(0, 9),
)
@settings(max_examples=300, deadline=None)
# After as many records as a read from disk returns, units with other tags codes follow on disk.
@example(26, 38, frozenset({-(2**31), -1, 2**31 - 1}), False, 7)
@example(111, 38, frozenset({-(2**31), -1, 2**31 - 1}), False, 1)
def test_both_find_the_same_with_tags(
    filled: tuple[MessageStore, ConsumeQueue], offset: int, most: int, codes: frozenset[int], bulk: bool, in_memory: int
) -> None:
    store, queue = filled
    with pytest.MonkeyPatch.context() as patch:
        # With a small memory limit, some of the first records count as on disk, and fewer of these are returned.
        patch.setattr(store, "in_memory_bytes", in_memory * 8000)
        found = store.get(queue, offset, most, 1 << 20, codes, bulk=bulk)
        use_python(patch, collect)
        expected = store.get(queue, offset, most, 1 << 20, codes, bulk=bulk)
    assert fields(found) == fields(expected)
    if found.status is GetStatus.NO_MATCHED_MESSAGE:
        assert found.suggest_pulling_from_slave == expected.suggest_pulling_from_slave


@given(st.integers(0, COUNT - 1), st.integers(1, 200), st.integers(1, 40_000), st.booleans(), st.integers(0, 9))
@settings(max_examples=300, deadline=None)
def test_both_find_the_same_without(
    filled: tuple[MessageStore, ConsumeQueue], offset: int, most: int, most_bytes: int, bulk: bool, in_memory: int
) -> None:
    store, queue = filled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "in_memory_bytes", in_memory * 8000)
        found = store.get(queue, offset, most, most_bytes, bulk=bulk)
        use_python(patch, collect)
        expected = store.get(queue, offset, most, most_bytes, bulk=bulk)
    assert fields(found) == fields(expected)
    assert found.suggest_pulling_from_slave == expected.suggest_pulling_from_slave


@pytest.mark.parametrize("way", BOTH)
def test_where_the_last_record_is_says_whether_a_slave_is_to_be_asked(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bulk read begins on disk and ends in memory."""
    if way == "python":
        use_python(monkeypatch, collect)
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    sizes = [put(store, queue, b"%02d" % n).size for n in range(20)]
    store.in_memory_bytes = 5 * sizes[0]
    found = {most: store.get(queue, 0, most, 1 << 20, bulk=True) for most in (10, 15, 16, 20)}
    assert {most: result.message_count for most, result in found.items()} == {10: 10, 15: 15, 16: 16, 20: 20}
    # If there are more records, the first of these decides.
    suggested = {most: result.suggest_pulling_from_slave for most, result in found.items()}
    assert suggested == {10: True, 15: False, 16: False, 20: False}
    store.close()


def test_a_large_set_is_looked_into_by_python(filled: tuple[MessageStore, ConsumeQueue]) -> None:
    store, queue = filled
    few, many = frozenset([0, 1]), frozenset(range(1000))
    assert fields(store.get(queue, 0, 32, 1 << 20, many)) == fields(store.get(queue, 0, 32, 1 << 20, few))


def test_damaged_units_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue = store.queue("T", 0)
    for n in range(20):
        put(store, queue, b"%d" % n, tags_code=n % 2)
    mapping = queue.mapping
    assert mapping is not None
    # The fifth unit points to a missing record.
    mapping[4 * 20 : 4 * 20 + 8] = (1).to_bytes(8, "big")
    result = store.get(queue, 0, 5, 1 << 20, frozenset([0]))
    assert (result.status, result.message_count) == (GetStatus.FOUND, 4)
    following = store.get(queue, result.next_begin_offset, 32, 1 << 20, frozenset([0]))
    assert (result.next_begin_offset, following.message_count, following.next_begin_offset) == (9, 5, 20)
    store.close()


def test_damaged_units_of_a_plain_pull_are_passed_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    queue, other = store.queue("T", 0), store.queue("T", 1)
    for n in range(20):
        put(store, queue, b"%d" % n)
        put(store, other, b"x" * (n % 3))
    mapping = queue.mapping
    assert mapping is not None
    # The fifth unit points to the record of the sixth.
    mapping[4 * 20 : 5 * 20] = mapping[5 * 20 : 6 * 20]
    result = store.get(queue, 0, 32, 1 << 20)
    assert (result.status, result.message_count, result.next_begin_offset) == (GetStatus.FOUND, 19, 20)
    bodies = [record.body for buffer in result.buffers for record in decode_records(buffer)]
    assert bodies == [b"%d" % n for n in range(20) if n != 4]
    store.close()


def test_small_records_that_lie_apart_become_one_buffer(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    small, large = store.queue("Small", 0), store.queue("Large", 0)
    for n in range(20):
        put(store, small, b"%d" % n)
        put(store, large, b"%d" % n * 1000)
    apart, slices = store.get(small, 0, 32, 1 << 20), store.get(large, 0, 32, 1 << 20)
    assert (apart.message_count, len(apart.buffers)) == (20, 1)
    # None of these records is copied.
    assert (slices.message_count, [type(buffer) for buffer in slices.buffers]) == (20, [memoryview] * 20)
    store.close()
