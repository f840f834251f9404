"""Headers of requests about transactions, from producers, brokers and administrators."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.java import Int32, Int64


class EndTransactionRequestHeader(Header):
    """END_TRANSACTION (37). `commit_or_rollback` is a TRANSACTION_ bit of `protocol.sys_flag`, or 0 if it is unknown.

    `tran_state_table_offset` is the half message's queue offset, `msg_id` its unique key.
    """

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    bname: str | None = None


class CheckTransactionStateRequestHeader(Header):
    """CHECK_TRANSACTION_STATE (39), from a broker to a producer. The body is the half message's record."""

    tran_state_table_offset: Int64
    commit_log_offset: Int64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


class ResumeCheckHalfMessageRequestHeader(Header):
    """RESUME_CHECK_HALF_MESSAGE (323). `msg_id` is an offset message id."""

    msg_id: str
    topic: str | None = None
