"""The signature in a call's metadata: MQv2-HMAC-SHA1 (auth/authentication/builder/DefaultAuthenticationContextBuilder).

Clients sign only the time, in their own time zone. A signature therefore proves only that the client has the secret
key; it does not protect the contents of the request.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code


class Signed(NamedTuple):
    """The signature of a call. `content` is the signed text, `signature` is hexadecimal."""

    username: str
    signature: str
    content: bytes

    def is_by(self, secret: str) -> bool:
        """Returns True if the signature was made with that secret key. Compares in constant time."""
        expected = hmac.new(secret.encode(), self.content, hashlib.sha1).hexdigest()
        return hmac.compare_digest(expected.encode(), self.signature.lower().encode(errors="replace"))


def signed(authorization: str, date_time: str) -> Signed:
    """Parses the fields `authorization` and `x-mq-date-time`. Raises ProxyError if one is invalid."""
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
