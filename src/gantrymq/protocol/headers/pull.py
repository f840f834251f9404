"""Headers of pull requests and responses."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class PullMessageRequestHeader(Header):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). `sys_flag` has the PULL_ bits of `protocol.sys_flag`.

    `bulk_msg_nums` and `bulk_msg_bytes` are for bulk reads from GantryMQ brokers. They replace `max_msg_nums` and
    `max_msg_bytes`, which Java's brokers use instead. `bname` is the name of the queue's broker. A proxy uses it to
    forward the request.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None
    bulk_msg_nums: Int32 | None = None
    bulk_msg_bytes: Int32 | None = None
    bname: str | None = None


class PullMessageResponseHeader(Header):
    """The response to a pull. The body has the found records, one after the other.

    `private_fields` describes the fields whose names begin with `gantry`.
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    gantry_topic_begin: Int64 | None = None
    gantry_recovery: Int64 | None = None
    gantry_recovered_end: Int64 | None = None
