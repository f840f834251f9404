"""Size limits of requests, by rpc.

The limit of fields bounds the time to read a message. The limit of memory bounds the memory of the elements in addition
to the encoded bytes. The handlers have smaller limits of their own, and reject larger requests with a specific code.
"""

from __future__ import annotations

from gantrymq.proxy.call import Method
from gantrymq.proxy.message_size import SizeLimit

_KIB = 1024
_MIB = 1024 * 1024
#: Largest size of a SendMessage beyond its largest body, bytes: properties and ids.
_BESIDE_BODY = _MIB
#: Largest number of fields of a SendMessage: 4,096 messages with twelve fields each. The scan takes 15 ms, in slices.
_SEND_FIELDS = 48 * 1024
_SEND_MEMORY = 16 * _MIB
#: Limits by method name.
_LIMITS = {
    # 4,096 entries with handles of 200 bytes.
    "AckMessage": SizeLimit(2 * _MIB, 16 * 1024, 2 * _MIB),
    # 10,000 lite topics with names of 64 bytes.
    "SyncLiteSubscription": SizeLimit(_MIB, 16 * 1024, 2 * _MIB),
    # 10,000 topics with a filter expression each, or the stacks of a process.
    "Telemetry": SizeLimit(2 * _MIB, 48 * 1024, 4 * _MIB),
}
#: Limits of all other methods, whose small requests name a topic, a group or a message.
_OTHERS = SizeLimit(64 * _KIB, 16 * 1024, _MIB)


class MessageLimits:
    """The limits of one proxy, bytes: `max_message_size` for an encoded request, `max_body_size` for a body.

    A `max_body_size` of 0 means no limit.
    """

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
