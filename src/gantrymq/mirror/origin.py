"""The origin of a copy: two properties, from which a mirror finds its position and recognizes loops.

- GANTRY_MIRROR: `cluster/broker/queue/offset` of the message from which the copy was made.
- GANTRY_MIRROR_PATH: the clusters that the message has been in, oldest first, separated by commas.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gantrymq.client.admin.dead_letter_messages import PUT_ON_THE_WAY
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import (
    MIRROR_ORIGIN,
    MIRROR_PATH,
    RETRY_TOPIC,
    UNIQUE_KEY,
    WAIT_STORE_MSG_OK,
    encode_properties,
)

#: Largest number of clusters in a path. A message with a longer path is not copied.
MAX_PATH = 8
#: Without WAIT, the target responds only when the copy is stored safely. Brokers set the offsets of light queues.
_REMOVED = PUT_ON_THE_WAY | {MIRROR_ORIGIN, MIRROR_PATH, RETRY_TOPIC, WAIT_STORE_MSG_OK, "INNER_MULTI_QUEUE_OFFSET"}


class SourceQueue(NamedTuple):
    """A queue of the source, as in the property GANTRY_MIRROR."""

    cluster: str
    broker: str
    queue_id: int

    def key(self, topic: str) -> str:
        """Returns the key of the queue in a State."""
        return f"{self.cluster}/{topic}/{self.broker}/{self.queue_id}"

    def offset_of(self, copy: MessageExt) -> int | None:
        """Returns the offset from which the copy was made; None if it is no copy from this queue."""
        prefix = f"{self.cluster}/{self.broker}/{self.queue_id}/"
        text = copy.properties.get(MIRROR_ORIGIN, "")
        digits = text[len(prefix) :]
        # At most 19 digits: an offset is an int64.
        if not text.startswith(prefix) or not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
            return None
        return int(digits)

    def properties_of(self, message: MessageExt) -> bytes:
        """Returns the encoded properties of a copy. Raises IllegalMessage."""
        properties = {name: value for name, value in message.properties.items() if name not in _REMOVED}
        properties[MIRROR_ORIGIN] = f"{self.cluster}/{self.broker}/{self.queue_id}/{message.queue_offset}"
        properties[MIRROR_PATH] = ",".join([*_path(message), self.cluster])
        return encode_properties(properties)


def is_same(message: MessageExt, copy: MessageExt) -> bool:
    """Returns whether `copy` has the content of `message`."""
    return copy.properties.get(UNIQUE_KEY) == message.properties.get(UNIQUE_KEY) and (
        copy.stored_body == message.stored_body
    )


def is_loop(message: MessageExt, target_clusters: Collection[str]) -> bool:
    """Returns true if the message has been in a target cluster, or in too many clusters."""
    path = _path(message)
    return len(path) >= MAX_PATH or not set(target_clusters).isdisjoint(path)


def _path(message: MessageExt) -> list[str]:
    text = message.properties.get(MIRROR_PATH)
    return text.split(",") if text else []
