"""The header of PUSH_REPLY_MESSAGE_TO_CLIENT: a reply on its way from the broker to who asked."""

from __future__ import annotations

from gantrymq.protocol.headers import SendMessageRequestHeader
from gantrymq.protocol.java import Int64


class ReplyMessageRequestHeader(SendMessageRequestHeader, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): the send header of the reply, and where it came from (host:port, ms)."""

    born_host: str
    store_host: str
    store_timestamp: Int64
