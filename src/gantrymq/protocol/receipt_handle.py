"""Receipt handles (POP_CK), which identify a popped message.

Clients build them from lists in the pop response. This module also encodes and parses these lists.

A handle has eight words: `startOffset popTime invisibleTime reviveQueueId retryFlag brokerName queueId queueOffset`.
Without the last word it stands for a whole queue. Source: remoting/protocol/header/ExtraInfoUtil, common/KeyBuilder.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gantrymq.errors import BodyError
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

#: Revive queue id in the handle of an orderly pop. No such queue exists.
ORDERLY_REVIVE_QUEUE = 999

NORMAL_TOPIC = "0"
RETRY_TOPIC_V1 = "1"
RETRY_TOPIC_V2 = "2"

_SEPARATORS = {RETRY_TOPIC_V1: "_", RETRY_TOPIC_V2: "+"}


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """Returns the topic from which a popping group receives unacknowledged messages of `topic` again."""
    return f"{RETRY_TOPIC_PREFIX}{group}{_SEPARATORS[RETRY_TOPIC_V2 if v2 else RETRY_TOPIC_V1]}{topic}"


def retry_flag(topic: str) -> str:
    """Returns the retry flag of a topic, one of three."""
    if not topic.startswith(RETRY_TOPIC_PREFIX):
        return NORMAL_TOPIC
    return RETRY_TOPIC_V2 if _SEPARATORS[RETRY_TOPIC_V2] in topic else RETRY_TOPIC_V1


def real_topic(topic: str, group: str, flag: str) -> str:
    """Returns the topic that stores a message of `topic`, by its retry flag. Raises BodyError for an unknown flag."""
    if flag == NORMAL_TOPIC:
        return topic
    if flag not in _SEPARATORS:
        raise BodyError(f"retry flag {flag!r}: 0, 1 and 2 are known")
    return pop_retry_topic(topic, group, v2=flag == RETRY_TOPIC_V2)


def normal_topic(topic: str, group: str) -> str:
    """Returns the original topic of a pop retry topic of the group. Returns any other topic unchanged."""
    for separator in _SEPARATORS.values():
        prefix = f"{RETRY_TOPIC_PREFIX}{group}{separator}"
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


class ReceiptHandle(NamedTuple):
    """A parsed handle. Times are in ms. `queue_id` and `queue_offset` are -1 if the handle has none."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    retry_flag: str
    broker_name: str
    queue_id: int = -1
    queue_offset: int = -1

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Parses a handle. Raises BodyError if it is invalid."""
        words = text.split(" ")
        try:
            if len(words) < 6:
                raise ValueError(f"{len(words)} words, at least 6 are needed")
            start_offset, pop_time, invisible_time, revive_queue_id = map(int, words[:4])
            queue_id, queue_offset = map(int, [*words[6:8], "-1", "-1"][:2])
            if max(map(abs, (start_offset, pop_time, invisible_time, revive_queue_id, queue_id, queue_offset))) >> 63:
                raise ValueError("a number has more than 64 bits")
        except ValueError as e:
            raise BodyError(f"{text[:200]!r} is no receipt handle: {e}") from e
        return cls(start_offset, pop_time, invisible_time, revive_queue_id, words[4], words[5], queue_id, queue_offset)

    def __str__(self) -> str:
        words = self if self.queue_offset >= 0 else self[:-1]
        return " ".join(map(str, words))

    @property
    def is_orderly(self) -> bool:
        return self.revive_queue_id == ORDERLY_REVIVE_QUEUE


def start_offset_entry(topic: str, queue_id: int, start_offset: int) -> str:
    """Returns a queue's entry in `startOffsetInfo`. Entries are joined by `;`."""
    return f"{retry_flag(topic)} {queue_id} {start_offset}"


def message_offset_entry(topic: str, queue_id: int, offsets: Iterable[int]) -> str:
    """Returns a queue's entry in `msgOffsetInfo`: the offsets of the popped messages."""
    return f"{retry_flag(topic)} {queue_id} {','.join(map(str, offsets))}"


def order_count_entries(topic: str, queue_id: int, counts: dict[int, int], message_count: int) -> str:
    """Returns a queue's entries in `orderCountInfo`: how often each of its messages was popped before.

    `counts` contains only messages with earlier pops. The last entry is the lowest count, for clients before 5.1.
    """
    flag = retry_flag(topic)
    entries = [f"{flag} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    least = min(counts.values()) if counts and len(counts) == message_count else 0
    return ";".join([*entries, f"{flag} {queue_id} {least}"])


def parse_offset_info(text: str | None) -> dict[tuple[str, str], str]:
    """Parses one of the three lists to {(retry flag, queue id or `qo` key): value}. Raises BodyError."""
    entries: dict[tuple[str, str], str] = {}
    for entry in (text or "").split(";") if text else ():
        words = entry.split(" ")
        if len(words) != 3:
            raise BodyError(f"{entry[:200]!r} is no entry of a pop's answer: it has {len(words)} words, not 3")
        entries[words[0], words[1]] = words[2]
    return entries
