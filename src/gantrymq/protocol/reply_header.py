"""The header of PUSH_REPLY_MESSAGE_TO_CLIENT: a reply on its way from the broker to who asked."""

from __future__ import annotations

from gantrymq.protocol.headers import Header
from gantrymq.protocol.java import Int32, Int64


class ReplyMessageRequestHeader(Header, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): the send header of the reply, and where it came from (host:port, ms)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: Int64
