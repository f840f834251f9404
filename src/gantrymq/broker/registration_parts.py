"""The bodies of a registration: all topics in one, or in several where one would be too large.

A NameServer takes no frame of more than 16 MiB: 80,000 topics with long names. It keeps the topics that a registration
doesn't name, so one may be made in parts, as Java's broker makes it with enableSplitRegistration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from gantrymq.broker.saving import gently
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from gantrymq.protocol.fastjson import encode_json

#: No body of several topics is larger, bytes; half of a frame.
MOST_BYTES = 8 * 1024 * 1024
#: Topics that are encoded with one call, 0.1 ms.
_AT_ONCE = 100


def parts_of(topics: Mapping[str, TopicConfig], permission: int, most_topics: int) -> list[bytes]:
    """The topics as members of JSON objects, `most_topics` in each; at least one part.

    What the broker itself may not do, by its `permission`, is taken away. For a thread: 100,000 topics take 100 ms.
    """
    parts: list[bytes] = []
    pieces: list[bytes] = []
    count = size = 0
    at_once = min(_AT_ONCE, most_topics)
    for piece in gently(_pieces(topics, permission, at_once)):
        if pieces and (count + at_once > most_topics or size + len(piece) > MOST_BYTES):
            parts.append(b",".join(pieces))
            pieces, count, size = [], 0, 0
        pieces.append(piece)
        count += at_once
        size += len(piece)
    return [*parts, b",".join(pieces)]


def body_of(part: bytes, version: DataVersion) -> bytes:
    """A RegisterBrokerBody."""
    return b'{"topicConfigSerializeWrapper":{"topicConfigTable":{%b},"dataVersion":%b},"filterServerList":[]}' % (
        part,
        encode_json(version),
    )


def _pieces(topics: Mapping[str, TopicConfig], permission: int, at_once: int) -> Iterator[bytes]:
    is_restricted = permission & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE
    entries = iter(topics.items())
    while some := dict(islice(entries, at_once)):
        if is_restricted:
            some = {name: msgspec.structs.replace(topic, perm=topic.perm & permission) for name, topic in some.items()}
        yield encode_json(some)[1:-1]
