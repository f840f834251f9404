"""Headers of requests about offsets, of queues and of consumer groups.

`bname` is the name of the target broker. A proxy uses it to forward the request.
"""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class QueueRequestHeader(Header):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    bname: str | None = None


class SearchOffsetRequestHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP (29). `boundary_type` is LOWER or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    bname: str | None = None


class OffsetResponseHeader(Header):
    """The response to requests 14, 29, 30 and 31."""

    offset: Int64


class StoreTimeResponseHeader(Header):
    """The response to GET_EARLIEST_MSG_STORETIME (32), in ms."""

    timestamp: Int64


class QueryConsumerOffsetRequestHeader(Header):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


class UpdateConsumerOffsetRequestHeader(Header):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    bname: str | None = None


class ResetOffsetRequestHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220).

    A `timestamp` (ms) of -1 means the end. If `queue_id` and `offset` are given and not -1, only this queue is reset,
    to this offset.
    """

    topic: str
    group: str
    timestamp: Int64
    queue_id: Int32 = -1
    offset: Int64 | None = None
    is_force: bool = False


class GetConsumerStatusRequestHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221).

    `client_addr` is a client id, or None for all clients of the group.
    """

    topic: str
    group: str
    client_addr: str | None = None


class CloneGroupOffsetRequestHeader(Header):
    """CLONE_GROUP_OFFSET (314). Without a topic, copies the offsets of all topics of the source group."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetHeader(Header):
    """QUERY_CORRECTION_OFFSET (308). `filter_groups` are ignored groups, separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None
