"""A client's receipt handle: the broker's handle and the message's offset in the commit log.

The broker's handle has eight words (`protocol.receipt_handle`). The offset is the ninth word. The proxy needs the
offset to move the message to the dead-letter queue. A tenth word `lite:NAME` has the lite topic of the message, quoted
as in a URL. Java's proxy ignores it. Source: common/consumer/ReceiptHandle.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

from gantrymq.errors import BodyError
from gantrymq.protocol.receipt_handle import ReceiptHandle
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code

_LITE = "lite:"


class Handle(NamedTuple):
    """A parsed receipt handle. `commit_log_offset` is -1 if the handle has none, `lite_topic` is empty."""

    receipt: ReceiptHandle
    commit_log_offset: int = -1
    lite_topic: str = ""

    @classmethod
    def parse(cls, text: str) -> Handle:
        """Parses the text of a handle. Raises ProxyError if it is invalid."""
        try:
            receipt = ReceiptHandle.parse(text)
            words = text.split(" ")
            commit_log_offset = int(words[8]) if len(words) > 8 else -1
        except (BodyError, ValueError) as e:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is illegal: {e}") from e
        if receipt.queue_id < 0 or receipt.queue_offset < 0 or commit_log_offset >> 63 not in (0, -1):
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is illegal: {text[:200]!r} names no message")
        # Otherwise, the tenth word is a signature (`HandleSignatures`).
        is_lite = len(words) > 9 and words[9].startswith(_LITE)
        return cls(receipt, commit_log_offset, unquote(words[9].removeprefix(_LITE)) if is_lite else "")

    def __str__(self) -> str:
        text = f"{self.receipt} {self.commit_log_offset}"
        return f"{text} {_LITE}{quote(self.lite_topic, safe='')}" if self.lite_topic else text

    @property
    def next_visible_ms(self) -> int:
        """Time at which the message is redelivered, in ms of the broker's clock."""
        return self.receipt.pop_time + self.receipt.invisible_time

    def check_time(self, now_ms: int) -> None:
        """Raises ProxyError if the invisible duration has ended."""
        if self.next_visible_ms <= now_ms:
            raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
