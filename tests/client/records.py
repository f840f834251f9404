"""Received messages, made without a broker."""

from __future__ import annotations

from gantrymq.protocol.message import MessageExt
from gantrymq.protocol.record import decode_record, encode_host, encode_record


def message_at(queue_offset: int, body: bytes = b"body") -> MessageExt:
    host = encode_host("127.0.0.1", 10911)
    record = encode_record(0, 0, queue_offset, queue_offset * 100, 0, 1, host, 2, host, 0, 0, body, b"t", b"")
    return MessageExt(decode_record(record), "a")
