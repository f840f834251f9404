"""HandleSignatures: binds a receipt handle to the user, group and topic that received the message.

A broker's handle names a message by numbers that a client can change: with another place in the commit log,
ForwardMessageToDeadLetterQueue would copy any message of the broker. With access control a handle has a tenth word, the
signature of the others. All proxies of a cluster have the same key: it is derived from the secret key with which they
sign their own requests to brokers.
"""

from __future__ import annotations

import base64
import hmac

from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system import randomness

_PURPOSE = b"GantryMQ receipt handle"
#: Bytes of a signature; a multiple of three has no padding.
_SIZE = 18
#: Words of a handle that is signed.
_WORDS = 9


class HandleSignatures:
    """Of one proxy. Without authentication nobody has a name, and handles are not signed."""

    def __init__(self, config: ProxyConfig) -> None:
        self._key: bytes | None = None
        if config.authentication_enabled:
            credentials = config.credentials()
            secret = credentials[1].encode() if credentials is not None else randomness.randbytes(32)
            self._key = hmac.digest(secret, _PURPOSE, "sha256")

    def signed(self, handle: str, user: str, group: str, topic: str) -> str:
        """The handle as its client gets it."""
        if self._key is None:
            return handle
        return f"{handle} {_signature(self._key, handle, user, group, topic)}"

    def check(self, text: str, user: str, group: str, topic: str) -> None:
        """Raises ProxyError for a handle that this user didn't get for this group and topic."""
        if self._key is None:
            return
        words = text.split(" ")
        expected = _signature(self._key, " ".join(words[:_WORDS]), user, group, topic)
        if len(words) != _WORDS + 1 or not hmac.compare_digest(words[-1].encode(errors="replace"), expected.encode()):
            raise ProxyError(
                Code.INVALID_RECEIPT_HANDLE,
                f"the receipt handle is not issued to user {user} for this topic and group",
            )


def _signature(key: bytes, handle: str, user: str, group: str, topic: str) -> str:
    signed = "\0".join((user, group, topic, handle)).encode(errors="replace")
    return base64.urlsafe_b64encode(hmac.digest(key, signed, "sha256")[:_SIZE]).decode()
