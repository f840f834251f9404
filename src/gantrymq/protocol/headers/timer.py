"""Headers for messages with a delivery time of their own."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header


class RecallMessageRequestHeader(Header):
    """RECALL_MESSAGE (370); `recall_handle` from the answer to the send of the broker named `bname`."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    bname: str | None = None


class RecallMessageResponseHeader(Header):
    """`msg_id` is the unique key of the message taken back."""

    msg_id: str
