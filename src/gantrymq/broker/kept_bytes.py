"""KeptBytes: one budget for all that heartbeats have a broker remember.

Java has none: 600 connections with one heartbeat of 0.9 MB each held 590 MiB.
"""

from __future__ import annotations

from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from gantrymq.protocol.codes import ResponseCode

#: What takes about how much memory, bytes: a group, a connection's place in one, a subscription, a tag with its code.
GROUP_BYTES = 1024
MEMBER_BYTES = 400
_SUBSCRIPTION_BYTES = 400
_TAG_BYTES = 100
#: 200,000 places of connections in groups.
MOST_BYTES = 96 * 1024 * 1024
#: More than this is much, for a group's subscriptions or a connection's places: a fourth of all is left to others.
_MUCH = 16 * 1024


class KeptBytes:
    """What is kept; `most` at most."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self.size = 0

    def change(self, more: int, own: int) -> None:
        """Counts `more` for somebody who keeps `own` then; less than 0 is given back. Raises RequestRefused."""
        most = self._most if own <= _MUCH else self._most * 3 // 4
        if more > 0 and self.size + more > most:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {self.size} bytes of heartbeats are "
                f"kept, {more} more aren't",
            )
        self.size += more


def size_of(data: ConsumerData) -> int:
    """Memory of a group without its subscriptions, in bytes."""
    size = GROUP_BYTES + len(data.group_name) + len(data.consume_type) + len(data.message_model)
    return size + len(data.consume_from_where)


def subscription_size(each: SubscriptionData) -> int:
    """Memory of one subscription, in bytes."""
    size = _SUBSCRIPTION_BYTES + len(each.topic) + len(each.sub_string) + len(each.expression_type)
    return size + _TAG_BYTES * max(len(each.tags_set), len(each.code_set)) + sum(map(len, each.tags_set))
