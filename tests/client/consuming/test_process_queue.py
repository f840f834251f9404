from __future__ import annotations

import pytest
from records import message_at

from gantrymq.client.consuming.process_queue import FlowLimits, ProcessQueue
from gantrymq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "a", 0)


def queue_with(offsets: range, limits: FlowLimits | None = None) -> ProcessQueue:
    process_queue = ProcessQueue(QUEUE, offsets.start, limits or FlowLimits())
    process_queue.put([message_at(offset) for offset in offsets])
    process_queue.next_offset = offsets.stop
    return process_queue


def test_commits_up_to_the_oldest_message_that_is_not_dealt_with() -> None:
    process_queue = queue_with(range(10, 14))
    assert process_queue.commit_offset == 10
    process_queue.remove(message_at(12))
    assert process_queue.commit_offset == 10
    process_queue.remove(message_at(10))
    assert process_queue.commit_offset == 11
    process_queue.remove(message_at(11))
    assert process_queue.commit_offset == 13
    process_queue.remove(message_at(13))
    assert process_queue.commit_offset == 14


def test_commits_the_next_offset_when_nothing_was_for_this_group() -> None:
    process_queue = queue_with(range(5, 5))
    process_queue.next_offset = 37
    assert process_queue.commit_offset == 37


def test_is_full_by_count() -> None:
    assert not queue_with(range(9), FlowLimits(max_messages=10)).is_full
    assert queue_with(range(10), FlowLimits(max_messages=10)).is_full


def test_is_full_by_size() -> None:
    large, small = message_at(0, b"x" * 999), message_at(1, b"x")
    process_queue = ProcessQueue(QUEUE, 0, FlowLimits(max_bytes=large.store_size + small.store_size))
    process_queue.put([large])
    assert not process_queue.is_full
    process_queue.put([small])
    assert process_queue.is_full
    process_queue.remove(large)
    assert not process_queue.is_full


def test_is_full_by_span() -> None:
    process_queue = queue_with(range(30), FlowLimits(max_span=20))
    for offset in range(1, 30):
        process_queue.remove(message_at(offset))
    assert len(process_queue) == 1
    assert process_queue.is_full


def test_tells_once_of_room() -> None:
    process_queue = queue_with(range(12), FlowLimits(max_messages=10))
    calls: list[int] = []
    process_queue.when_not_full(lambda: calls.append(len(process_queue)))
    for offset in range(12):
        process_queue.remove(message_at(offset))
    assert calls == [9]


@pytest.mark.parametrize(
    ("limits", "left"), [(FlowLimits(max_bytes=message_at(0).store_size), 0), (FlowLimits(max_span=1), 1)]
)
def test_tells_of_room_for_bytes_and_in_the_span(limits: FlowLimits, left: int) -> None:
    process_queue = queue_with(range(3), limits)
    calls: list[int] = []
    process_queue.when_not_full(lambda: calls.append(len(process_queue)))
    for offset in range(3):
        process_queue.remove(message_at(offset))
    assert calls == [left]


def test_removing_twice_changes_nothing() -> None:
    process_queue = queue_with(range(2), FlowLimits(max_bytes=4))
    process_queue.remove(message_at(0))
    process_queue.remove(message_at(0))
    assert process_queue.is_full
