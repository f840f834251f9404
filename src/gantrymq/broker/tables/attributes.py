"""The attributes of topics and groups, and the validation of changes.

Source: TopicAttributes, SubscriptionGroupAttributes, AttributeParser, AttributeUtil.alterCurrentAttributes. The
broker rejects the same changes as Java, with the same code. It also rejects values for features that GantryMQ does not
have, such as `queue.type=BatchCQ`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.lite_topic import LITE_BIND_TOPIC, LITE_CLIENT_QUOTA
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_system_topic, topic_problem
from gantrymq.protocol.unsupported_features import feature_of_attribute
from gantrymq.store.topic_retention import RetentionLimits

#: Topic type whose messages have priorities.
PRIORITY = "PRIORITY"
#: Type of topics whose messages have lite topics.
LITE = "LITE"
#: Topic attribute: the time after which a lite topic expires if it gets no messages, in minutes. -1 for never.
LITE_EXPIRATION = "lite.topic.expiration"
#: Group attributes: whether clients share a lite topic, and whether the group
#: reads a lite topic from the beginning after another client took it over and after a client left it.
LITE_SUB_MODEL = "lite.sub.model"
LITE_EXCLUSIVE = "Exclusive"
LITE_RESET_EXCLUSIVE = "lite.sub.reset.offset.exclusive"
LITE_RESET_UNSUBSCRIBE = "lite.sub.reset.offset.unsubscribe"
_MOST_LITE_EXPIRATION = 30 * 24 * 60
#: Group attribute: the percentage of pops that select queues by priority.
PRIORITY_FACTOR = "priority.factor"
#: Topic attribute: whether messages are deleted when they expire, or when a later message has the same key.
CLEANUP_POLICY = "cleanup.policy"
COMPACTION = "COMPACTION"
#: Topic attributes that Java does not have: the largest age, in ms, and size, in bytes, of the messages in a queue.
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
#: Attributes of topics and groups that Java does not have: the largest rates of sends or deliveries, in messages and
#: in bytes a second.
RATE_LIMIT_MESSAGES = "rate.limit.messages"
RATE_LIMIT_BYTES = "rate.limit.bytes"
#: Topic attribute that Java does not have: the time in which the broker stores a message with a DEDUPLICATE_ID only
#: once, in ms.
DEDUPLICATION_WINDOW_MS = "deduplication.window.ms"
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_MAX_INT64 = (1 << 63) - 1


class Attribute(NamedTuple):
    """The rules for one attribute.

    `problem` returns the error text for a value, "" if the value is valid. After the creation of a topic or group, only
    attributes with `is_changeable` can be set or removed.
    """

    problem: Callable[[str], str]
    is_changeable: bool


def _one_of(*values: str) -> Callable[[str], str]:
    def problem(value: str) -> str:
        return "" if value in values else f"must be {' or '.join(values)}"

    return problem


def _in_range(minimum: int, maximum: int) -> Callable[[str], str]:
    def problem(value: str) -> str:
        is_right = _NUMBER.fullmatch(value) is not None and minimum <= int(value) <= maximum
        return "" if is_right else f"must be a number from {minimum} to {maximum}"

    return problem


_RATE_LIMITS = {
    RATE_LIMIT_MESSAGES: Attribute(_in_range(1, _MAX_INT64), is_changeable=True),
    RATE_LIMIT_BYTES: Attribute(_in_range(1, _MAX_INT64), is_changeable=True),
}
TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(_one_of("SimpleCQ"), is_changeable=False),
    CLEANUP_POLICY: Attribute(_one_of("DELETE", COMPACTION), is_changeable=False),
    "message.type": Attribute(
        _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", PRIORITY, LITE),
        is_changeable=True,
    ),
    LITE_EXPIRATION: Attribute(_in_range(-1, _MOST_LITE_EXPIRATION), is_changeable=True),
    "reserve.time": Attribute(_in_range(-1, _MAX_INT64), is_changeable=True),
    RETENTION_MS: Attribute(_in_range(1, _MAX_INT64), is_changeable=True),
    RETENTION_BYTES: Attribute(_in_range(1, _MAX_INT64), is_changeable=True),
    DEDUPLICATION_WINDOW_MS: Attribute(_in_range(1, _MAX_INT64), is_changeable=True),
    **_RATE_LIMITS,
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    PRIORITY_FACTOR: Attribute(_in_range(0, 100), is_changeable=True),
    LITE_BIND_TOPIC: Attribute(lambda topic: topic_problem(topic) or "", is_changeable=True),
    LITE_SUB_MODEL: Attribute(_one_of("Shared", LITE_EXCLUSIVE), is_changeable=True),
    LITE_RESET_EXCLUSIVE: Attribute(_one_of("true", "false"), is_changeable=True),
    LITE_RESET_UNSUBSCRIBE: Attribute(_one_of("true", "false"), is_changeable=True),
    LITE_CLIENT_QUOTA: Attribute(_in_range(-1, _MAX_INT64), is_changeable=True),
    # A client never has more events than lite topics, so this has no effect.
    "lite.sub.client.max.event.cnt": Attribute(_in_range(10, _MAX_INT64), is_changeable=True),
    **_RATE_LIMITS,
}


def is_compacted(topic_attributes: Mapping[str, str]) -> bool:
    """Returns whether a topic with these attributes is a compaction topic (`CleanupPolicyUtils.isCompaction`)."""
    return topic_attributes.get(CLEANUP_POLICY) == COMPACTION


def check_combination(topic: str, topic_attributes: Mapping[str, str], *, has_light_queues: bool) -> None:
    """Raises RequestRefused if a topic with these attributes can't work."""
    if is_lite(topic_attributes) and not has_light_queues:
        raise _refused("message.type=LITE", "lite topics are light queues, which need enableLmq=true")
    if not is_compacted(topic_attributes):
        return
    for name in (RETENTION_MS, RETENTION_BYTES):
        if name in topic_attributes:
            raise _refused(name, f"a topic with {CLEANUP_POLICY}={COMPACTION} keeps the last message of each key")
    if is_lite(topic_attributes):
        raise _refused(
            "message.type=LITE", f"a topic with {CLEANUP_POLICY}={COMPACTION} keeps the last message of a key"
        )
    if is_by_priority(topic_attributes):
        raise _refused("message.type=PRIORITY", f"with {CLEANUP_POLICY}={COMPACTION}, the key determines the queue")
    if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        raise _refused(f"{CLEANUP_POLICY}={COMPACTION}", "a retry or dead-letter topic has no keys")


def is_by_priority(topic_attributes: Mapping[str, str]) -> bool:
    """Returns whether messages of a topic with these attributes have priorities."""
    return topic_attributes.get("message.type") == PRIORITY


def is_lite(topic_attributes: Mapping[str, str]) -> bool:
    """Returns whether a topic with these attributes has lite topics."""
    return topic_attributes.get("message.type") == LITE


def lite_expiration_minutes(topic_attributes: Mapping[str, str]) -> int:
    """Returns the time after which a lite topic without new messages expires, in minutes; -1 for never."""
    return limit_of(topic_attributes, LITE_EXPIRATION) or -1


def retention_limits(topic: str, topic_attributes: Mapping[str, str]) -> RetentionLimits | None:
    """Returns the retention of a topic with these attributes; None if it has none.

    System topics have none, and topics for retries have none, because the broker itself depends on their messages.
    """
    max_age_ms = limit_of(topic_attributes, RETENTION_MS)
    max_bytes = limit_of(topic_attributes, RETENTION_BYTES)
    if max_age_ms is max_bytes is None or is_system_topic(topic) or topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    return RetentionLimits(max_age_ms, max_bytes)


def deduplication_window_ms(topic: str, topic_attributes: Mapping[str, str]) -> int:
    """Returns the deduplication window of a topic with these attributes, in ms; 0 if it has none.

    System topics and topics for retries have none, because the broker itself stores copies of messages there.
    """
    window_ms = limit_of(topic_attributes, DEDUPLICATION_WINDOW_MS)
    if window_ms is None or is_system_topic(topic) or topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
        return 0
    return window_ms


def priority_factor(group_attributes: Mapping[str, str]) -> int:
    """Returns the percentage of a group's pops that select queues by priority."""
    text = group_attributes.get(PRIORITY_FACTOR, "")
    return int(text) if _NUMBER.fullmatch(text) else 100


def limit_of(attributes: Mapping[str, str], name: str) -> int | None:
    """Returns the positive number in an attribute; None if it has none."""
    text = attributes.get(name, "")
    # Another broker may have stored any text in the file.
    return int(text) if _NUMBER.fullmatch(text) and int(text) > 0 else None


def parse_changes(text: str | None) -> dict[str, str]:
    """Parses `+name=value,-other` to {"+name": "value", "-other": ""}. Raises RequestRefused for a duplicate name."""
    changes: dict[str, str] = {}
    for item in (text or "").split(","):
        name, _, value = item.strip().partition("=")
        if name in changes:
            raise _refused(name, "it is given twice")
        if name:
            changes[name] = value
    return changes


def altered(
    attributes: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Returns `current` with the changes: `+name` sets an attribute, `-name` removes it.

    `current` is None for a new topic or group. Raises RequestRefused for a change that `attributes` does not allow.
    """
    changed = dict(current or {})
    seen: set[str] = set()
    for signed_name, value in changes.items():
        sign, name = signed_name[:1], signed_name[1:]
        if sign not in ("+", "-") or not name or "+" in name or "-" in name:
            raise _refused(signed_name, "+NAME=VALUE sets an attribute, -NAME removes it")
        if name in seen:
            raise _refused(name, "it is given twice")
        seen.add(name)
        if sign == "-" and name not in changed:
            raise _refused(name, "can't be removed: it is not set")
        if (feature := feature_of_attribute(name, value)) is not None:
            raise _refused(f"{name}={value}", feature.text)
        attribute = attributes.get(name)
        if attribute is None:
            raise _refused(name, f"unknown, must be {' or '.join(sorted(attributes)) or 'none'}")
        if sign == "+" and (problem := attribute.problem(value)):
            raise _refused(f"{name}={value}", problem)
        if current is not None and not attribute.is_changeable:
            raise _refused(name, "can only be set at the creation")
        if sign == "+":
            changed[name] = value
        else:
            del changed[name]
    return changed


def _refused(what: str, problem: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"attribute {what[:200]!r}: {problem}")
