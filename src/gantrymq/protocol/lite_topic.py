"""Lite topics: light queues of a parent topic, whose type is LITE (`common/lite/LiteUtil`).

A message names its lite topic in the property __LITE_TOPIC. The broker stores the message in a queue of the parent
topic, and dispatches it to the light queue of the lite topic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gantrymq.protocol.multi_dispatch import MAX_NAME_LENGTH
from gantrymq.protocol.properties import LITE_TOPIC
from gantrymq.protocol.topic_name import LIGHT_QUEUE_PREFIX

#: The start of the property with the lite topic in encoded properties.
LITE_TOPIC_MARK = LITE_TOPIC.encode() + b"\x01"
#: Group attribute: the topic whose lite topics the group reads.
LITE_BIND_TOPIC = "lite.bind.topic"
#: Group attribute: the largest number of lite topics of a client, -1 for no limit.
LITE_CLIENT_QUOTA = "lite.sub.client.quota"
_DEFAULT_CLIENT_QUOTA = 2000
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_SEPARATOR = "$"
#: The beginning of the names of all light queues of lite topics.
LITE_QUEUE_PREFIX = LIGHT_QUEUE_PREFIX + _SEPARATOR
#: Illegal in names: the separators of light queues, control characters, and the replacement for bytes that are no
#: UTF-8.
_find_illegal = re.compile("[$,\x00-\x1f\x7f\ufffd]").search


def light_queue_prefix(topic: str) -> str:
    """Returns the beginning of the names of all light queues of a parent topic."""
    return f"{LITE_QUEUE_PREFIX}{topic}{_SEPARATOR}"


def light_queue_of(topic: str, lite_topic: str) -> str:
    """Returns the name of the light queue of a lite topic (`toLmqName`)."""
    return f"{LITE_QUEUE_PREFIX}{topic}{_SEPARATOR}{lite_topic}"


def lite_topic_of(light_queue: str) -> tuple[str, str] | None:
    """Returns the parent topic and the lite topic of a light queue; None if it belongs to no lite topic."""
    if not light_queue.startswith(LITE_QUEUE_PREFIX):
        return None
    topic, separator, lite_topic = light_queue[len(LITE_QUEUE_PREFIX) :].partition(_SEPARATOR)
    if not separator or not topic or not lite_topic or _SEPARATOR in lite_topic:
        return None
    return topic, lite_topic


def lite_client_quota(group_attributes: Mapping[str, str]) -> int | None:
    """Returns the largest number of lite topics of a client of a group with these attributes; None for no limit."""
    text = group_attributes.get(LITE_CLIENT_QUOTA, "")
    quota = int(text) if _NUMBER.fullmatch(text) else _DEFAULT_CLIENT_QUOTA
    return None if quota < 0 else quota


def lite_topic_problem(topic: str, lite_topic: str) -> str | None:
    """Returns why a name can't be that of a lite topic of this parent topic, or None if it can."""
    if not lite_topic or lite_topic.isspace():
        return "the name of a lite topic is missing"
    if found := _find_illegal(lite_topic):
        return f"the name of the lite topic {lite_topic[:200]!r} contains {found[0]!r}"
    size = len(light_queue_of(topic, lite_topic).encode(errors="replace"))
    if size > MAX_NAME_LENGTH:
        return f"the name of the lite topic {lite_topic[:200]!r} is {size - MAX_NAME_LENGTH} bytes too long"
    return None
