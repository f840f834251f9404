"""Headers of POP requests, which need no assigned queues (remoting/protocol/header/*). They need JSON headers.

Times are in ms. `pop_time` and `born_time` are ms since the epoch. `bname` is the name of the target broker. A proxy
uses it to forward the request.
"""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64

#: Values of `init_mode`: the start position of a new group.
INIT_FROM_MIN = 0
INIT_FROM_MAX = 1


class PopMessageRequestHeader(Header):
    """POP_MESSAGE (200050). A `queue_id` of -1 means all queues."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    init_mode: Int32
    born_time: Int64 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    bname: str | None = None


class PopMessageResponseHeader(Header):
    """The response to a pop. `protocol.receipt_handle` defines the format of the lists."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessageRequestHeader(Header):
    """PEEK_MESSAGE (200052)."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class AckMessageRequestHeader(Header):
    """ACK_MESSAGE (200051). `topic` is the topic that stores the message, `extra_info` its receipt handle.

    With `lite_topic`, `offset` is the offset in this lite topic of `topic`.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None
    bname: str | None = None


class ChangeInvisibleTimeRequestHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME (200053). With `suspend`, the redelivery does not count as an attempt.

    With `lite_topic`, `offset` is the offset in this lite topic of `topic`.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    suspend: bool | None = None
    lite_topic: str | None = None
    bname: str | None = None


class ChangeInvisibleTimeResponseHeader(Header):
    """The response to 200053: the changed parts of the receipt handle."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequestHeader(Header):
    """NOTIFICATION (200054): waits until there is a message to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64 = 0
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    """The response to 200054."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoRequestHeader(Header):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """The response to 200055: the number of waiting pops of this group for this queue (-1: for all queues)."""

    polling_num: Int32
