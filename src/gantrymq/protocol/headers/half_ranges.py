"""Headers of requests that end many half messages at once. See `protocol.half_ranges`."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class EndHalfMessagesRequestHeader(Header):
    """END_HALF_MESSAGES (31037), with a body from `encode_half_ranges`.

    `commit_or_rollback` is as in END_TRANSACTION. `topics` are the topics of the messages, separated by commas. The
    sender needs permission to send to them.
    """

    producer_group: str
    topics: str
    commit_or_rollback: Int32


class EndHalfMessagesResponseHeader(Header):
    """The response to END_HALF_MESSAGES. The broker still has to end `left` half messages.

    The broker completes the decision even if the connection is lost. A repeated request waits until none are left.
    """

    left: Int64
