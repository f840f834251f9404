"""Delivery time and properties of timer messages (`HookUtils`, `TimerMessageStore.convertMessage`)."""

from __future__ import annotations

import re

from gantrymq.errors import RequestRefused
from gantrymq.protocol import properties as names
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.recall_handle import RecallHandle
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.store.config import StoreConfig

#: TIMER_ENQUEUE_MS of a message that was due before it was added to the wheel (Long.MAX_VALUE).
NEVER_ENQUEUED = (1 << 63) - 1

_LONG = re.compile(r"[+-]?[0-9]{1,19}")


def slot_time(fields: dict[str, str], config: StoreConfig, now_ms: int) -> int | None:
    """Returns the start of the slot in which a message with these properties waits, in ms; None if it is due already.

    A slot is delivered after its end, so a message is never early. Raises RequestRefused if the delivery time is not a
    number or too far ahead, or if a recall message is due already.
    """
    deliver_ms = _deliver_time(fields, now_ms)
    is_late = deliver_ms is not None and deliver_ms <= now_ms
    if is_late and names.TIMER_DEL_UNIQKEY not in fields:
        return None
    longest_ms = config.timer_max_delay_sec * 1000
    if deliver_ms is None or is_late or deliver_ms - now_ms > longest_ms:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {longest_ms}ms; or if set "
            "del msg, the delay time should be bigger than the current time",
        )
    deliver_ms -= 1
    return deliver_ms - deliver_ms % config.timer_precision_ms


def _deliver_time(fields: dict[str, str], now_ms: int) -> int | None:
    """Returns the delivery time that the properties set, in ms. None if the time is missing or not a number."""
    for name, unit_ms, start_ms in (
        (names.TIMER_DELAY_SEC, 1000, now_ms),
        (names.TIMER_DELAY_MS, 1, now_ms),
        (names.TIMER_DELIVER_MS, 1, 0),
    ):
        text = fields.get(name)
        if text is not None:
            return start_ms + int(text) * unit_ms if _LONG.fullmatch(text) else None
    return None


def delivered_properties(fields: dict[str, str], enqueue_ms: int, now_ms: int, *, rolled: bool) -> dict[str, str]:
    """Returns the properties of a message after its slot. REAL_TOPIC and REAL_QID are kept, as in Java.

    If `rolled` is true, the message waits again, and its number of rounds is increased.
    """
    more = {names.TIMER_ENQUEUE_MS: str(enqueue_ms), names.TIMER_DEQUEUE_MS: str(now_ms)}
    if rolled:
        times = fields.get(names.TIMER_ROLL_TIMES, "")
        more[names.TIMER_ROLL_TIMES] = str(int(times) + 1 if _LONG.fullmatch(times) else 1)
    return fields | more


def delete_keys(fields: dict[str, str]) -> set[str]:
    """Returns the values of TIMER_DEL_UNIQKEY that recall this message: its unique key, with and without the topic.

    Java's recall messages contain one of the two, depending on its version and on `appendTopicForTimerDeleteKey` (off
    in 5.5).
    """
    unique_key = fields.get(names.UNIQUE_KEY, "")
    return {unique_key, f"{fields.get(names.REAL_TOPIC, '')}+{unique_key}"}


def recall_handle(broker_name: str, properties: bytes) -> str | None:
    """Returns the recall handle of a waiting message. None if it can't be recalled.

    The time in the handle is the slot's start plus 1 ms: the start itself would select the slot before
    (`SendMessageProcessor.attachRecallHandle`).
    """
    fields = decode_properties(properties)
    topic, slot_ms = fields.get(names.REAL_TOPIC, ""), fields.get(names.TIMER_OUT_MS, "")
    if not topic or not _LONG.fullmatch(slot_ms) or topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    return RecallHandle(topic, broker_name, int(slot_ms) + 1, fields.get(names.UNIQUE_KEY, "")).encode()
