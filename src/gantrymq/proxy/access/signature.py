"""The signature in a call's metadata: MQv2-HMAC-SHA1 (auth/authentication/builder/DefaultAuthenticationContextBuilder).

What is signed is the time alone, which clients write in their own zones: a signature proves the key, not the request.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code


class Signed(NamedTuple):
    """`content` is what was signed, `signature` in hexadecimal."""

    username: str
    signature: str
    content: bytes

    def is_by(self, secret: str) -> bool:
        """Whether it is that secret key's. Takes the same time whatever differs."""
        expected = hmac.new(secret.encode(), self.content, hashlib.sha1).hexdigest()
        return hmac.compare_digest(expected.encode(), self.signature.lower().encode(errors="replace"))


def signed(authorization: str, date_time: str) -> Signed:
    """What the fields `authorization` and `x-mq-date-time` say. Raises ProxyError for what can't be read."""
    if not authorization:
        raise unauthorized("username cannot be null.")
    if not date_time:
        raise unauthorized("datetime is null.")
    _, _, items = authorization.partition(" ")
    if not items:
        raise unauthorized("authentication header is incorrect.")
    username = signature = ""
    for item in items.split(","):
        key, equals, value = item.strip().partition("=")
        if not equals:
            raise unauthorized("authentication keyValues length is incorrect, actual length=1.")
        if key == "Credential":
            username = value.partition("/")[0]
        elif key == "Signature":
            signature = value
    if not username:
        raise unauthorized("username cannot be null.")
    return Signed(username, signature, date_time.encode())


def unauthorized(message: str) -> ProxyError:
    return ProxyError(Code.UNAUTHORIZED, message)
