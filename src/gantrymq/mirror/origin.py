"""The origin of a copy: two properties, from which a mirror finds its position and recognizes loops.

- GANTRY_MIRROR: `cluster/broker/queue/offset` of the message from which the copy was made.
- GANTRY_MIRROR_PATH: the clusters that the message has been in, oldest first, separated by commas.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from gantrymq.client.admin.dead_letter_messages import PUT_ON_THE_WAY
from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.properties import RETRY_TOPIC, encode_properties

ORIGIN = "GANTRY_MIRROR"
PATH = "GANTRY_MIRROR_PATH"
#: Largest number of clusters in a path. A message with a longer path is not copied.
MAX_PATH = 8
_REMOVED = PUT_ON_THE_WAY | {ORIGIN, PATH, RETRY_TOPIC}


class SourceQueue(NamedTuple):
    """A queue of the source, as in the property GANTRY_MIRROR."""

    cluster: str
    broker: str
    queue_id: int

    def offset_of(self, copy: MessageExt) -> int | None:
        """Returns the offset from which the copy was made; None if it is no copy from this queue."""
        prefix = f"{self.cluster}/{self.broker}/{self.queue_id}/"
        text = copy.properties.get(ORIGIN, "")
        digits = text[len(prefix) :]
        # At most 19 digits: an offset is an int64.
        if not text.startswith(prefix) or not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
            return None
        return int(digits)

    def properties_of(self, message: MessageExt) -> bytes:
        """Returns the encoded properties of a copy. Raises IllegalMessage."""
        properties = {name: value for name, value in message.properties.items() if name not in _REMOVED}
        properties[ORIGIN] = f"{self.cluster}/{self.broker}/{self.queue_id}/{message.queue_offset}"
        properties[PATH] = ",".join([*_path(message), self.cluster])
        return encode_properties(properties)


def is_loop(message: MessageExt, target_clusters: Collection[str]) -> bool:
    """Returns true if the message has been in a target cluster, or in too many clusters."""
    path = _path(message)
    return len(path) >= MAX_PATH or not set(target_clusters).isdisjoint(path)


def _path(message: MessageExt) -> list[str]:
    text = message.properties.get(PATH)
    return text.split(",") if text else []
