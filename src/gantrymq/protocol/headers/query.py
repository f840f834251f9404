"""Headers of requests that read messages without consuming them."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class ViewMessageRequestHeader(Header):
    """VIEW_MESSAGE_BY_ID (33). `offset` is the record's position in the commit log."""

    offset: Int64
    topic: str | None = None


class QueryMessageRequestHeader(Header):
    """QUERY_MESSAGE (12): the newest `max_num` messages with a key, stored between two times (ms).

    `index_type` says what `key` is: K or None for a key, T for tags, U for a unique key. `last_key` is the position
    after which Java's RocksDB index continues.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    last_key: str | None = None


class QueryMessageResponseHeader(Header):
    """The response to QUERY_MESSAGE: the newest message in the index."""

    index_last_update_timestamp: Int64
    index_last_update_phyoffset: Int64


class QueryConsumeQueueRequestHeader(Header):
    """QUERY_CONSUME_QUEUE (321): `count` entries from queue offset `index` on."""

    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 0
    consumer_group: str | None = None
