"""The keys of messages in the index, and their hashes (`index/IndexService.buildKey`, `indexKeyHashMethod`)."""

from __future__ import annotations

from gantrymq.protocol.half_ranges import HALF_MARK
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.properties import KEYS, TAGS, UNIQUE_KEY
from gantrymq.protocol.topic_name import TRANSACTION_HALF_TOPIC

#: Successive keys often share their start, because a unique key ends with four hex digits of a time and four of a
#: counter. The hash of the start is therefore cached.
_TAIL = 4
_MAX_HEADS = 10_000
#: Longer starts are not cached. A key can have 32 KiB.
_MAX_HEAD_LENGTH = 256

#: Topic and end of the properties of records that `is_left_out` excludes.
LEFT_OUT = TRANSACTION_HALF_TOPIC.encode(), HALF_MARK
_UNIQUE_KEY, _KEYS, _TAGS = (f"\x02{name}\x01".encode() for name in (UNIQUE_KEY, KEYS, TAGS))
#: Prefix that distinguishes tags from keys (`MessageConst.INDEX_TAG_TYPE`).
TAGS_PREFIX = b"T#"


class KeyHash:
    """Hashes `topic#key`: `abs(String.hashCode())`, or 0 if Java's abs overflows. Source: `indexKeyHashMethod`."""

    def __init__(self) -> None:
        #: The cached contributions of the starts of keys, at most _MAX_HEADS.
        self.heads: dict[bytes, int] = {}

    def __call__(self, key: bytes) -> int:
        if not _TAIL <= len(key) <= _MAX_HEAD_LENGTH or not key.isascii():
            h = string_hash_code(key.decode(errors="replace"))
        else:
            # The cache takes a tenth of the time of string_hash_code.
            head = key[:-_TAIL]
            shifted = self.heads.get(head)
            if shifted is None:
                shifted = self._known(head, self._known(head[:-_TAIL], 0))
            a, b, c, d = key[-_TAIL:]
            h = shifted + a * 29791 + b * 961 + c * 31 + d & 0xFFFFFFFF
            if h >= 0x80000000:
                h -= 0x100000000
        return abs(h) if h != -0x80000000 else 0

    def _known(self, head: bytes, before: int) -> int:
        """Returns the cached contribution of a key's start to the hash, if `_TAIL` bytes follow.

        `before` is the contribution of the start of `head`.
        """
        shifted = self.heads.get(head)
        if shifted is None:
            if len(self.heads) >= _MAX_HEADS:
                self.heads.clear()
            text = head[-_TAIL:] if before else head
            shifted = (before + string_hash_code(text.decode())) * 31**_TAIL & 0xFFFFFFFF
            self.heads[head] = shifted
        return shifted


def is_left_out(topic: bytes, properties: bytes) -> bool:
    """Returns whether the index excludes a record: a half message that arrived in a batch.

    The committed message has the same keys as its half message, and searches need only the committed message.
    """
    return topic == LEFT_OUT[0] and properties.endswith(LEFT_OUT[1])


def keys_of(properties: bytes) -> list[bytes]:
    """Returns the index keys of a record with these properties, without the prefix `topic#`."""
    # Faster than three calls of `find_property`: most messages have only the first of the three properties.
    text = b"\x02" + properties
    found = []
    if (at := text.find(_UNIQUE_KEY)) >= 0 and (unique_key := _value(text, at + len(_UNIQUE_KEY))):
        found.append(unique_key)
    if (at := text.find(_KEYS)) >= 0:
        found += [key for key in _value(text, at + len(_KEYS)).split(b" ") if key]
    if (at := text.find(_TAGS)) >= 0 and (tags := _value(text, at + len(_TAGS))):
        found.append(TAGS_PREFIX + tags)
    return found


def _value(text: bytes, start: int) -> bytes:
    end = text.find(b"\x02", start)
    return text[start:end] if end >= 0 else text[start:]
