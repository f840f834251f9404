"""Checks of names, tags and times in requests (`GrpcValidator`, client/Validators), with Java's codes and texts."""

from __future__ import annotations

import re

from gantrymq.protocol.topic_name import MAX_GROUP_LENGTH, MAX_TOPIC_LENGTH, SYSTEM_GROUP_PREFIX, is_system_topic
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
_LITE_TOPIC = re.compile(r"[a-zA-Z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Error messages contain at most this many characters of an invalid name.
_SHOWN = 200


def has_control_character(text: str) -> bool:
    return _CONTROL.search(text) is not None


def is_blank(text: str) -> bool:
    return not text.strip()


def check_topic(topic: str) -> None:
    """Raises ProxyError if a topic name is invalid or belongs to a system topic."""
    if is_blank(topic):
        raise ProxyError(Code.ILLEGAL_TOPIC, "The specified topic is blank")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise ProxyError(Code.ILLEGAL_TOPIC, f"The specified topic is longer than topic max length {MAX_TOPIC_LENGTH}.")
    if not _ALLOWED.fullmatch(topic):
        raise ProxyError(
            Code.ILLEGAL_TOPIC,
            f"The specified topic[{topic}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if is_system_topic(topic):
        raise ProxyError(Code.ILLEGAL_TOPIC, "cannot access system topic")


def check_group(group: str) -> None:
    """Raises ProxyError if a group name is invalid or belongs to a system group."""
    code = Code.ILLEGAL_CONSUMER_GROUP
    if is_blank(group):
        raise ProxyError(code, "the specified group is blank")
    if len(group) > MAX_GROUP_LENGTH:
        raise ProxyError(
            code, f"the specified group[{group[:_SHOWN]}] is longer than group max length: {MAX_GROUP_LENGTH}."
        )
    if not _ALLOWED.fullmatch(group):
        raise ProxyError(
            code, f"the specified group[{group}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise ProxyError(code, "cannot use system consumer group")


def check_topic_and_group(topic: str, group: str) -> None:
    check_topic(topic)
    check_group(group)


def check_invisible_time(invisible_ms: int, config: ProxyConfig, minimum_ms: int = 0) -> None:
    """Raises ProxyError if an invisible duration is below `minimum_ms` or above the configured maximum."""
    code, maximum_ms = Code.ILLEGAL_INVISIBLE_TIME, config.max_invisible_time_mills
    if invisible_ms < minimum_ms:
        raise ProxyError(code, f"the invisibleTime is too small. min is {minimum_ms}")
    if 0 < maximum_ms < invisible_ms:
        raise ProxyError(code, f"the invisibleTime is too large. max is {maximum_ms}")


def check_tag(tag: str) -> None:
    """Raises ProxyError if a tag is invalid. An empty tag counts as no tag."""
    if not tag:
        return
    code = Code.ILLEGAL_MESSAGE_TAG
    if is_blank(tag):
        raise ProxyError(code, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise ProxyError(code, "tag cannot contain '|'")
    if has_control_character(tag):
        raise ProxyError(code, "tag cannot contain control character")


def check_lite_topic(name: str, max_size: int) -> None:
    """Raises ProxyError if a lite topic can't have this name. `max_size` is in bytes."""
    code = Code.ILLEGAL_LITE_TOPIC
    if is_blank(name):
        raise ProxyError(code, "lite topic cannot be the char sequence of whitespace")
    if len(name.encode()) > max_size:
        raise ProxyError(code, f"lite topic exceed the max size {max_size}")
    if not _LITE_TOPIC.fullmatch(name):
        raise ProxyError(code, "lite topic can only contain alphanumeric characters, hyphens(-), and underscores(_)")
