"""Headers of requests that send a message or a reply, or send a failed message back to the broker."""

from __future__ import annotations

import msgspec

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class SendMessageRequestHeader(Header):
    """SEND_MESSAGE (10)."""

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
    batch: bool | None = None
    max_reconsume_times: Int32 | None = None


class SendMessageRequestHeaderV2(SendMessageRequestHeader, rename=None):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same fields under one-letter names."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: Int32 = msgspec.field(name="d")
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: Int32 | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: Int32 | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)
    broker_name: str | None = msgspec.field(name="n", default=None)


class SendMessageResponseHeader(Header):
    """The response to a send. `msg_id` is the offset message id. For a batch, several ids are joined by commas.

    `msg_region` and `trace_on` ("true" or "false") control whether clients write a trace. `gantry_last_row` is for an
    idempotent writer (`protocol.row_ids`). `gantry_offsets` has the queue offsets of a batch's messages, joined by
    commas. A broker sends it if they are not successive, because it had stored some of the messages before.
    """

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)
    gantry_last_row: Int64 | None = None
    gantry_offsets: str | None = None


class GetWriterQueuesRequestHeader(Header):
    """GET_WRITER_QUEUES (31038). `writer` is `write-partition`, as in `row_ids.RowId`."""

    topic: str
    writer: str
    batch: Int64


class GetWriterQueuesResponseHeader(Header):
    """The response to GET_WRITER_QUEUES. `queues` is None if the broker has no row of this batch, or no list for it."""

    queues: str | None = None


class ReplyMessageRequestHeader(SendMessageRequestHeader, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): the reply's send header, its hosts (HOST:PORT) and its store time (ms)."""

    born_host: str
    store_host: str
    store_timestamp: Int64


class ConsumerSendMsgBackRequestHeader(Header):
    """CONSUMER_SEND_MSG_BACK (36). `offset` is the record's position in the commit log of the broker `bname`."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    bname: str | None = None
