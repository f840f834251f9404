"""Handle: the receipt handle that a client has of a message, with where the message stands in the commit log.

It is a broker's handle of eight words (`protocol.receipt_handle`) and a ninth, by which the proxy finds the message
when it is to become a dead letter. Source: common/consumer/ReceiptHandle.
"""

from __future__ import annotations

from typing import NamedTuple

from gantrymq.errors import BodyError
from gantrymq.protocol.receipt_handle import ReceiptHandle
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code


class Handle(NamedTuple):
    """A parsed handle; `commit_log_offset` is -1 where it has none."""

    receipt: ReceiptHandle
    commit_log_offset: int = -1

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Raises ProxyError for what no pop has given out."""
        try:
            receipt = ReceiptHandle.parse(text)
            words = text.split(" ")
            commit_log_offset = int(words[8]) if len(words) > 8 else -1
        except (BodyError, ValueError) as e:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is illegal: {e}") from e
        if receipt.queue_id < 0 or receipt.queue_offset < 0 or commit_log_offset >> 63 not in (0, -1):
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is illegal: {text[:200]!r} names no message")
        return cls(receipt, commit_log_offset)

    def __str__(self) -> str:
        return f"{self.receipt} {self.commit_log_offset}"

    @property
    def next_visible_ms(self) -> int:
        """When the message comes again, by the broker's clock."""
        return self.receipt.pop_time + self.receipt.invisible_time

    def check_time(self, now_ms: int) -> None:
        """Raises ProxyError when the message is on its way to others."""
        if self.next_visible_ms <= now_ms:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
