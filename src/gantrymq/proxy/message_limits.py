"""MessageLimits: how large a request may be, by its rpc.

A limit of fields bounds the time to read a message, one of memory what its elements take beside its own bytes. Both
leave room for the largest request that a handler accepts, and for some that it refuses with a code of its own.
"""

from __future__ import annotations

from gantrymq.proxy.call import Method
from gantrymq.proxy.message_size import SizeLimit

_KIB = 1024
_MIB = 1024 * 1024
#: What a SendMessage has beyond the largest body: properties, ids.
_BESIDE_BODY = _MIB
#: A batch of 4,096 messages with twelve fields each. To scan so many takes 15 ms.
_SEND_FIELDS = 48 * 1024
_SEND_MEMORY = 16 * _MIB
#: By the method's name: bytes, fields, bytes of memory.
_LIMITS = {
    # 4,096 entries with handles of 200 bytes.
    "AckMessage": SizeLimit(2 * _MIB, 16 * 1024, 2 * _MIB),
    # 10,000 topics with a filter expression each, or the stacks of a process.
    "Telemetry": SizeLimit(2 * _MIB, 48 * 1024, 4 * _MIB),
}
#: Requests that name a topic, a group or a message.
_OTHERS = SizeLimit(64 * _KIB, 16 * 1024, _MIB)


class MessageLimits:
    """Of one proxy. No encoding is longer than `max_message_size`, no body than `max_body_size`; 0 for any body."""

    def __init__(self, max_message_size: int, max_body_size: int) -> None:
        self.max_message_size = max_message_size
        send_size = min(max_message_size, (max_body_size or max_message_size) + _BESIDE_BODY)
        self._limits = {
            name: limit._replace(encoded_bytes=min(limit.encoded_bytes, max_message_size))
            for name, limit in _LIMITS.items()
        } | {"SendMessage": SizeLimit(send_size, _SEND_FIELDS, _SEND_MEMORY)}
        self._others = _OTHERS._replace(encoded_bytes=min(_OTHERS.encoded_bytes, max_message_size))

    def of(self, method: Method) -> SizeLimit:
        return self._limits.get(method.name, self._others)
