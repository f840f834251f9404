"""Headers of ending many half messages at once, see `protocol.half_ranges`."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class EndHalfMessagesRequestHeader(Header):
    """END_HALF_MESSAGES (31037), whose body is `encode_half_ranges`'; `commit_or_rollback` as in END_TRANSACTION.

    `topics` are those that the messages are for, with commas between: who ends them must have the right to send there.
    """

    producer_group: str
    topics: str
    commit_or_rollback: Int32


class EndHalfMessagesResponseHeader(Header):
    """What is decided is carried out whatever becomes of the connection; `left` half messages are still to be ended.

    The same request once more waits on, until none are left.
    """

    left: Int64
