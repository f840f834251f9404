"""Headers of requests about messages with a delivery time."""

from __future__ import annotations

from gantrymq.protocol.headers.header import Header


class RecallMessageRequestHeader(Header):
    """RECALL_MESSAGE (370). `recall_handle` comes from the send response of the broker `bname`."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    bname: str | None = None


class RecallMessageResponseHeader(Header):
    """The response to RECALL_MESSAGE. `msg_id` is the unique key of the cancelled message."""

    msg_id: str
