"""Signatures that bind a receipt handle to the user, group and topic of the request that received the message.

A broker's handle identifies a message by numbers that a client can change. If a client changed the commit log offset,
ForwardMessageToDeadLetterQueue could copy any message of the broker. If authentication is on, a handle therefore ends
with the signature of its other words. The signing key is derived from the secret key that signs the proxies' own
requests to brokers, so all proxies of a cluster use the same signing key.
"""

from __future__ import annotations

import base64
import hmac

from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system import randomness

_PURPOSE = b"GantryMQ receipt handle"
#: Size of a signature, bytes. A multiple of three needs no padding in base64.
_SIZE = 18
#: Number of words of a signed handle, without and with a lite topic.
_SIGNED_WORDS = (10, 11)


class HandleSignatures:
    """Signs and checks the receipt handles of one proxy. Without authentication, handles are not signed."""

    def __init__(self, config: ProxyConfig) -> None:
        self._key: bytes | None = None
        if config.authentication_enabled:
            credentials = config.credentials()
            secret = credentials.secret_key.encode() if credentials is not None else randomness.randbytes(32)
            self._key = hmac.digest(secret, _PURPOSE, "sha256")

    def signed(self, handle: str, user: str, group: str, topic: str) -> str:
        """Returns the handle that the client receives: with a signature if authentication is on."""
        if self._key is None:
            return handle
        return f"{handle} {_signature(self._key, handle, user, group, topic)}"

    def check(self, text: str, user: str, group: str, topic: str) -> None:
        """Raises ProxyError if the handle was issued to another user, or for another group or topic."""
        if self._key is None:
            return
        words = text.split(" ")
        expected = _signature(self._key, " ".join(words[:-1]), user, group, topic)
        is_right = hmac.compare_digest(words[-1].encode(errors="replace"), expected.encode())
        if len(words) not in _SIGNED_WORDS or not is_right:
            raise ProxyError(
                Code.INVALID_RECEIPT_HANDLE,
                f"the receipt handle is not issued to user {user} for this topic and group",
            )


def _signature(key: bytes, handle: str, user: str, group: str, topic: str) -> str:
    signed = "\0".join((user, group, topic, handle)).encode(errors="replace")
    return base64.urlsafe_b64encode(hmac.digest(key, signed, "sha256")[:_SIZE]).decode()
