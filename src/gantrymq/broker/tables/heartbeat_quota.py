"""The memory quota for groups, members and subscriptions that clients register with heartbeats.

Without a quota, as in Java, 600 connections with one heartbeat of 0.9 MB each use 590 MiB.
"""

from __future__ import annotations

from gantrymq.errors import RequestRefused
from gantrymq.limits import HEARTBEATS_BYTES
from gantrymq.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from gantrymq.protocol.codes import ResponseCode

#: Approximate memory of a group, in bytes.
GROUP_BYTES = 1024
#: Approximate memory of a member of a group, in bytes.
MEMBER_BYTES = 400
#: Approximate memory of a subscription, in bytes, without its texts and tags.
_SUBSCRIPTION_BYTES = 400
#: Approximate memory of a tag with its code, in bytes.
_TAG_BYTES = 100
#: A group or connection that uses more memory than this, in bytes, counts as large. The last quarter of the quota is
#: for small groups and connections.
_MUCH = 16 * 1024


class HeartbeatQuota:
    """Counts the memory in use and enforces the quota `most`, in bytes."""

    def __init__(self, most: int = HEARTBEATS_BYTES) -> None:
        self._most = most
        self.size = 0

    def change(self, more: int, own: int) -> None:
        """Adds `more` bytes (negative: releases them). `own` is the resulting usage of the group or connection.

        Raises RequestRefused if the quota would be exceeded.
        """
        most = self._most if own <= _MUCH else self._most * 3 // 4
        if more > 0 and self.size + more > most:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {self.size} bytes of heartbeats are "
                f"kept, {more} more aren't",
            )
        self.size += more


def size_of(data: ConsumerData) -> int:
    """Returns the memory of a group without its subscriptions, in bytes."""
    size = GROUP_BYTES + len(data.group_name) + len(data.consume_type) + len(data.message_model)
    return size + len(data.consume_from_where)


def subscription_size(each: SubscriptionData) -> int:
    """Returns the memory of one subscription, in bytes."""
    size = _SUBSCRIPTION_BYTES + len(each.topic) + len(each.sub_string) + len(each.expression_type)
    return size + _TAG_BYTES * max(len(each.tags_set), len(each.code_set)) + sum(map(len, each.tags_set))
