"""Headers of POP, the requests that need no assigned queues (remoting/protocol/header/*); they fit JSON only.

Times are in ms; `pop_time` and `born_time` since the epoch. `bname` is the name of the broker that is asked: to a proxy
it says whom a request is for.
"""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64

#: `init_mode`: where a group begins that has never been there.
INIT_FROM_MIN = 0
INIT_FROM_MAX = 1


class PopMessageRequestHeader(Header):
    """POP_MESSAGE (200050); `queue_id` -1 means all queues."""

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
    """Answer to a pop; the lists' form is in `protocol.receipt_handle`."""

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
    """ACK_MESSAGE (200051); `topic` is the one that the message stands in, `extra_info` its receipt handle."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    bname: str | None = None


class ChangeInvisibleTimeRequestHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME (200053); `suspend`: the time doesn't count as an attempt."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    suspend: bool | None = None
    bname: str | None = None


class ChangeInvisibleTimeResponseHeader(Header):
    """Answer to 200053: the parts of the new receipt handle that changed."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class NotificationRequestHeader(Header):
    """NOTIFICATION (200054): whether there is something to pop, waiting for it."""

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
    """Answer to 200054."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoRequestHeader(Header):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """Answer to 200055: how many pops of this group wait for this queue (-1: for all)."""

    polling_num: Int32
