"""The handshake between a GantryMQ slave and master: each proves that it is a broker of the same cluster.

Before it is complete, the master sends no part of its log and ignores reports. The messages:

| from | message | content |
|---|---|---|
| slave | opening | the first 16 bytes of `frames` or `autoswitch_frames`, the same as without a handshake |
| master | challenge | a nonce |
| slave | response | its access key, the address that it connected to, a nonce, a MAC |
| master | proof | a MAC |

After the opening, each message is `int64 -2 | int32 size | content`. The opening is unchanged, so masters without a
handshake (older versions, Java) work as before. A master sends the challenge to GantryMQ slaves only.

A MAC is HMAC-SHA256 with the secret key of the access key, over the sender's role and the content of the earlier
messages. The slave sends its MAC first, so that a stranger gets no MAC that would help to guess the secret key. The
address prevents relaying: a false master cannot forward the messages to the real master. The address is "" if the
master is configured on the slave.

The handshake does not protect the connection after it. Only TLS protects against an attacker who can change traffic.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct

from gantrymq.errors import FrameError, ReplicationError
from gantrymq.replication.autoswitch_frames import is_hello_of_ours
from gantrymq.replication.frames import is_opening_of_ours
from gantrymq.system.randomness import secret_bytes

#: Length of both kinds of opening, in bytes.
OPENING_SIZE = 16
#: Marks a handshake message. It is neither a valid offset nor a state of controller mode.
_WORD = Struct(">q").pack(-2)
_HEADER = Struct(">8si")
_RESPONSE = Struct(">16s32sHH")
_NONCE_SIZE = 16
_MAC_SIZE = 32
#: Longest accepted access key or address, in bytes.
_MAX_TEXT = 512
_MAX_SIZE = _RESPONSE.size + 2 * _MAX_TEXT


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user as which a broker authenticates to other brokers."""

    access_key: str
    secret_key: str


class Unproved(ReplicationError):
    """Raised if a slave cannot follow a master: the master has not proved itself, or the slave has no credentials."""


def _message(content: bytes) -> bytes:
    return _HEADER.pack(_WORD, len(content)) + content


def _mac(secret_key: str, role: bytes, challenge: bytes, nonce: bytes, access_key: str, address: str) -> bytes:
    texts = b"".join(len(data).to_bytes(2) + data for data in (access_key.encode(), address.encode()))
    content = b"GantryMQ HA " + role + b"\0" + challenge + nonce + texts
    return hmac.digest(secret_key.encode(), content, sha256)


class _Messages:
    """Splits the input into messages. Buffers at most one message and the input that arrived with its end."""

    def __init__(self) -> None:
        self.buffer = b""

    def next(self) -> bytes | None:
        """Returns a message's content, or None if the message is incomplete. Raises FrameError for any other input."""
        if len(self.buffer) < _HEADER.size:
            return None
        word, size = _HEADER.unpack_from(self.buffer)
        if word != _WORD or not 0 <= size <= _MAX_SIZE:
            raise FrameError("it sends something else than a message of the handshake")
        end = _HEADER.size + size
        if len(self.buffer) < end:
            return None
        content, self.buffer = self.buffer[_HEADER.size : end], self.buffer[end:]
        return content


class MasterHandshake:
    """The master's side of the handshake, for one connection.

    `secret_of` returns the secret key of a user that may be a slave, or None for all others. `address` is the address
    at which slaves reach this master.
    """

    def __init__(self, secret_of: Callable[[str], str | None], address: str) -> None:
        self._secret_of = secret_of
        self._address = address
        self._challenge = secret_bytes(_NONCE_SIZE)
        self._opening = b""
        self._messages = _Messages()
        self.is_done = False

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the bytes to send and, once the handshake is complete, all other input from the slave.

        Raises FrameError if the slave does not prove itself.
        """
        answer = b""
        if len(self._opening) < OPENING_SIZE:
            data = self._opening + data
            self._opening, data = data[:OPENING_SIZE], data[OPENING_SIZE:]
            if len(self._opening) < OPENING_SIZE:
                return b"", b""
            if not is_opening_of_ours(self._opening) and not is_hello_of_ours(self._opening):
                raise FrameError("it is no slave of GantryMQ, and others can't sign (haAllowUnsigned)")
            answer = _message(self._challenge)
        self._messages.buffer += data
        content = self._messages.next()
        if content is None:
            return answer, b""
        proof = self._proof(content)
        self.is_done = True
        return answer + _message(proof), self._opening + self._messages.buffer

    def _proof(self, response: bytes) -> bytes:
        if len(response) < _RESPONSE.size:
            raise FrameError("its response is too short")
        nonce, mac, key_size, address_size = _RESPONSE.unpack_from(response)
        texts = response[_RESPONSE.size :]
        if len(texts) != key_size + address_size:
            raise FrameError("its response has another length than it says")
        access_key, address = texts[:key_size].decode("utf-8", "replace"), texts[key_size:].decode("utf-8", "replace")
        secret_key = self._secret_of(access_key)
        # Also computed for an unknown user, so that the response time does not reveal whether the user exists.
        expected = _mac(secret_key or "", b"slave", self._challenge, nonce, access_key, address)
        if not hmac.compare_digest(expected, mac) or secret_key is None:
            raise FrameError(f"its signature isn't that of a super user, access key {access_key!r}")
        if address not in ("", self._address):
            raise FrameError(f"it means to follow {address}, this is {self._address}")
        return _mac(secret_key, b"master", self._challenge, nonce, access_key, address)


class SlaveHandshake:
    """The slave's side of the handshake, for one connection.

    `address` is the address that the slave connected to, or "" if the master is configured. If `is_required`, the slave
    does not follow a master that sends no challenge.
    """

    def __init__(self, credentials: Credentials | None, address: str, *, is_required: bool) -> None:
        self._credentials = credentials
        self._address = address
        self._is_required = is_required
        self._messages = _Messages()
        self._expected: bytes | None = None
        self.is_done = False
        #: True if the master has sent a valid proof.
        self.is_proved = False

    @property
    def awaits_proof(self) -> bool:
        """True if the slave has sent its response and the master's proof is pending."""
        return self._expected is not None and not self.is_done

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the bytes to send, and the master's other input. Raises Unproved, or FrameError for invalid input."""
        messages = self._messages
        messages.buffer += data
        if self._expected is None and not _WORD.startswith(messages.buffer[: len(_WORD)]):
            if self._is_required:
                raise Unproved(
                    "the master doesn't sign: it is an older broker, one of Java, or one without authenticationEnabled "
                    "(haAllowUnsigned=true follows it)"
                )
            return b"", self._end()
        content = messages.next()
        if content is None:
            return b"", b""
        if self._expected is None:
            answer = self._response(content)
            # The master sends its proof after it receives the response.
            return answer, b""
        if not hmac.compare_digest(content, self._expected):
            raise Unproved("the master's signature is wrong")
        self.is_proved = True
        return b"", self._end()

    def _response(self, challenge: bytes) -> bytes:
        credentials = self._credentials
        if credentials is None:
            raise Unproved("the master requires a signature: set innerClientAuthenticationCredentials")
        if len(challenge) != _NONCE_SIZE:
            raise FrameError(f"a challenge of {len(challenge)} bytes")
        nonce, key, address = secret_bytes(_NONCE_SIZE), credentials.access_key, self._address

        def mac(role: bytes) -> bytes:
            return _mac(credentials.secret_key, role, challenge, nonce, key, address)

        self._expected = mac(b"master")
        texts = key.encode(), address.encode()
        return _message(_RESPONSE.pack(nonce, mac(b"slave"), *map(len, texts)) + b"".join(texts))

    def _end(self) -> bytes:
        self.is_done = True
        rest, self._messages.buffer = self._messages.buffer, b""
        return rest
