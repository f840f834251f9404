"""How a request is signed.

| signature | covers | algorithm |
|---|---|---|
| `Signature`, Java's | the values of the ext fields in the order of their names, the body | HMAC-SHA1 |
| `SignatureV2`, the bound one, ours | the code, names and values of the ext fields, the body | HMAC-SHA256 |

The time and the opaque number are ext fields of a request with a bound signature, so both signatures cover them. The
opaque number of the frame isn't covered: a proxy gives a request another one. Java's servers ignore the further fields.
Source: acl/common/AclUtils.combineRequestContent, AclSigner, AclClientRPCHook.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gantrymq.protocol.command import RemotingCommand, SerializeType

if TYPE_CHECKING:
    from hashlib import _Hash

#: The ext fields that a signed request has on top of its own (`SessionCredentials`).
ACCESS_KEY = "AccessKey"
SIGNATURE = "Signature"
SECURITY_TOKEN = "SecurityToken"
#: The further fields of a bound signature: ms since 1970, the opaque number at the client, the signature.
SIGNED_AT = "SignatureTime"
SIGNED_OPAQUE = "SignatureOpaque"
BOUND_SIGNATURE = "SignatureV2"

#: MQVersion.V4_9_3. Clients up to it add this field after they have signed.
_VERSION_4_9_3 = 399
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_UNSIGNED = frozenset({SIGNATURE})
_UNSIGNED_BEFORE_4_9_4 = frozenset({SIGNATURE, _UNIQUE_KEY_QUERY})

_NOT_BOUND = frozenset({SIGNATURE, BOUND_SIGNATURE})

_BLOCK_SIZE = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))


class Signer:
    """Signs with one secret key.

    HMAC (RFC 2104) with the key's two blocks hashed beforehand: 1.6 us a signature; hmac.digest takes 5.
    """

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        self._inner, self._outer = _key_hashes(hashlib.sha1, key)
        self._inner_bound, self._outer_bound = _key_hashes(hashlib.sha256, key)

    def sign(self, fields: Mapping[str, str], body: bytes, version: int) -> str:
        """The signature of a request of `version`: its fields' values in the order of their names, then its body."""
        unsigned = _UNSIGNED if version > _VERSION_4_9_3 else _UNSIGNED_BEFORE_4_9_4
        values = "".join([fields[name] for name in sorted(fields) if name not in unsigned])
        inner = self._inner.copy()
        inner.update(values.encode(errors="replace"))
        inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False).decode()

    def sign_request(self, request: RemotingCommand, now_ms: int) -> None:
        """Adds both signatures to a request that has its opaque number and the access key."""
        fields = request.ext_fields
        fields[SIGNED_AT] = str(now_ms)
        fields[SIGNED_OPAQUE] = str(request.opaque)
        fields[BOUND_SIGNATURE] = self._bound(request)
        fields[SIGNATURE] = self.sign(fields, request.body, request.version)

    def is_request_signed(self, request: RemotingCommand) -> bool:
        """Whether a request carries this key's bound signature. Takes the same time whatever differs."""
        given = request.ext_fields.get(BOUND_SIGNATURE, "")
        return hmac.compare_digest(self._bound(request).encode(), given.encode(errors="replace"))

    def _bound(self, request: RemotingCommand) -> str:
        fields = request.ext_fields
        # A binary header leaves out empty values.
        is_binary = request.serialize_type == SerializeType.ROCKETMQ
        # Lengths keep one list of names and values from looking like another.
        parts = [f"{request.code};{len(request.body)};"]
        for name in sorted(fields):
            value = fields[name]
            if name not in _NOT_BOUND and (value or not is_binary):
                parts.append(f"{len(name)};{len(value)};{name}{value}")
        inner = self._inner_bound.copy()
        inner.update("".join(parts).encode(errors="replace"))
        inner.update(request.body)
        outer = self._outer_bound.copy()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False).decode()

    def is_signed(self, fields: Mapping[str, str], body: bytes, version: int) -> bool:
        """Whether a request carries this key's signature. Takes the same time whatever differs."""
        given = fields.get(SIGNATURE)
        if given is None:
            return False
        return hmac.compare_digest(self.sign(fields, body, version).encode(), given.encode(errors="replace"))


def _key_hashes(new: Callable[[bytes], _Hash], key: bytes) -> tuple[_Hash, _Hash]:
    """The inner and the outer hash of HMAC, with the key's blocks. Both algorithms have blocks of 64 bytes."""
    block = (new(key).digest() if len(key) > _BLOCK_SIZE else key).ljust(_BLOCK_SIZE, b"\0")
    return new(block.translate(_INNER_PAD)), new(block.translate(_OUTER_PAD))
