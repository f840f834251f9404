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
    """The response to END_HALF_MESSAGES. `left` is the number of half messages that the broker has not ended yet.

    The broker ends them even if the connection is lost. The response to a repeated request comes when none are left.
    """

    left: Int64
