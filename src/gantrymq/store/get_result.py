"""The result of reading a queue (`GetMessageResult`, `GetMessageStatus`)."""

from __future__ import annotations

from enum import Enum


class GetStatus(Enum):
    """The status of a read (`GetMessageStatus`)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult:
    """The records found by a read: `message_count` records of `size` bytes in total.

    `buffers` has slices of the mapped log, or copies of small records. If `suggest_pulling_from_slave` is set, the
    records are probably not in the page cache, because the consumer lags far behind.
    """

    __slots__ = (
        "buffers",
        "max_offset",
        "message_count",
        "min_offset",
        "next_begin_offset",
        "size",
        "status",
        "suggest_pulling_from_slave",
    )

    def __init__(self, status: GetStatus, next_begin_offset: int, min_offset: int, max_offset: int) -> None:
        self.status = status
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.buffers: list[bytes | memoryview] = []
        self.message_count = 0
        self.size = 0
        self.suggest_pulling_from_slave = False
