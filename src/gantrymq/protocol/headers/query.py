"""Headers of looking at messages without consuming them."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID (33); `offset` is the record's place in the commit log."""

    offset: Int64
    topic: str | None = None


class QueryMessageRequestHeader(Header):
    """QUERY_MESSAGE (12): the newest `max_num` messages with a key, stored between two times (ms)."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64


class QueryMessageResponseHeader(Header):
    """Answer to QUERY_MESSAGE: the newest message in the index."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class QueryConsumeQueueRequestHeader(Header):
    """QUERY_CONSUME_QUEUE (321): `count` units from queue offset `index` on."""

    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
