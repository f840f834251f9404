"""A small gRPC client for diagnosis: one call at a time on one connection.

Unlike gRPC's own clients, this client reports which step failed: the connection, TLS, HTTP/2 or gRPC.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from google.protobuf.message import DecodeError, Message

from gantrymq.client.credentials import Credentials
from gantrymq.errors import ConnectFailed, ConnectionLost, ProtocolError, RequestTimeout
from gantrymq.proxy.call import CLIENT_ID, CLIENT_VERSION, LANGUAGE, METHODS
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.hpack import HpackDecoder, HpackError, TooManyHeaders, literal
from gantrymq.proxy.statuses import GrpcCode
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.client import addresses_of
from gantrymq.remoting.tls_problems import tls_problem
from gantrymq.system import clock, network, randomness, tls
from gantrymq.system.clock import monotonic

#: Largest size of a response, and size of the receive windows, bytes.
_MOST_BYTES = 16 * 1024 * 1024
_MOST_FIELDS = 64 * 1024
#: ":method POST" of the static table.
_POST = b"\x83"
#: ":scheme http" and ":scheme https".
_SCHEMES = (b"\x86", b"\x87")
_FRAME_SIZE = frames.DEFAULT_FRAME_SIZE
#: Size of a message's prefix, bytes: the compression flag and the length.
_PREFIX = 5


class NotGrpc(ProtocolError):
    """Raised if the server speaks HTTP/2, but not gRPC.

    Remedy: correct the address. A load balancer or an ingress before the proxy must forward gRPC.
    """


class Answer(NamedTuple):
    """The result of a call. `response` is None if the call ended with a gRPC status (`code`) other than OK."""

    response: Any
    code: int
    message: str
    took_ms: float


class ProxyClient:
    """A client for `async with`, which connects to host:port. `credentials` sign its calls.

    Each step has a timeout of `timeout_s` seconds. Raises ConnectFailed, ConnectionLost, RequestTimeout or
    ProtocolError.
    """

    def __init__(
        self,
        address: str,
        *,
        ssl_context: tls.SSLContext | None = None,
        credentials: Credentials | None = None,
        timeout_s: float = 3.0,
    ) -> None:
        self.address = address
        self._ssl_context = ssl_context
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._client_id = f"{network.host_name()}@{network.process_id()}@doctor@{randomness.uuid4().hex[:8]}"
        self._decoder = HpackDecoder()
        self._last_stream_id = -1

    async def __aenter__(self) -> ProxyClient:
        if self._ssl_context is not None:
            # Java's server requires ALPN (RFC 9113, 3.2).
            self._ssl_context.set_alpn_protocols(["h2"])
        self._reader, self._writer = await self._connect()
        try:
            async with asyncio.timeout(self._timeout_s):
                self._writer.write(
                    frames.PREFACE
                    + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: _MOST_BYTES})
                    + frames.window_update(0, _MOST_BYTES)
                )
                await self._first_settings()
        except TimeoutError:
            self._writer.transport.abort()
            raise RequestTimeout(f"{self.address} says nothing: HTTP/2 begins with settings", self.address) from None
        except BaseException:
            self._writer.transport.abort()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    @property
    def certificate(self) -> bytes | None:
        """The server's certificate in DER; None without TLS."""
        ssl_object = self._writer.get_extra_info("ssl_object")
        der: bytes | None = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
        return der

    async def call(self, method: str, request: Message) -> Answer:
        """Makes a call and returns its first response. The rest of the call is cancelled."""
        began = monotonic()
        self._last_stream_id += 2
        stream_id = self._last_stream_id
        path, kind = next((path, each) for path, each in METHODS.items() if each.name == method)
        block = _POST + _SCHEMES[self._ssl_context is not None]
        block += b"".join(literal(name.encode(), value.encode()) for name, value in self._fields(path).items())
        data = request.SerializeToString()
        data = b"\x00" + len(data).to_bytes(4, "big") + data
        self._writer.write(frames.frame_head(frames.HEADERS, frames.END_HEADERS, stream_id, len(block)) + block)
        # A stream of requests stays open: if the client ends it, the proxy may send no response.
        flags = 0 if kind.client_streams else frames.END_STREAM
        self._writer.write(frames.frame_head(frames.DATA, flags, stream_id, len(data)) + data)
        try:
            async with asyncio.timeout(self._timeout_s):
                fields, body = await self._response(stream_id)
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} did not answer {method} in {self._timeout_s:g} s", self.address
            ) from None
        took_ms = 1000 * (monotonic() - began)
        if body:
            self._writer.write(frames.rst_stream(stream_id, frames.ErrorCode.CANCEL))
            try:
                return Answer(kind.response.FromString(body[_PREFIX:]), GrpcCode.OK, "", took_ms)
            except DecodeError as e:
                raise ProtocolError(f"{self.address} answers {method} with what is no {kind.response.__name__}") from e
        code = fields.get(b"grpc-status", b"")
        message = unquote(fields.get(b"grpc-message", b"").decode("latin-1"))
        return Answer(None, int(code) if code.isdigit() else GrpcCode.INTERNAL, message, took_ms)

    def _fields(self, path: str) -> Mapping[str, str]:
        """Returns the header fields of a call, with a signature if there are credentials."""
        now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        fields = {
            ":path": path,
            ":authority": self.address,
            "te": "trailers",
            "content-type": "application/grpc",
            CLIENT_ID: self._client_id,
            # A language that Apache's proxy supports.
            LANGUAGE: "PYTHON",
            CLIENT_VERSION: "5.0.0",
            "x-mq-protocol": "v2",
            "x-mq-date-time": now,
        }
        if self._credentials is not None:
            user, secret = self._credentials.access_key, self._credentials.secret_key
            signature = hmac.new(secret.encode(), now.encode(), hashlib.sha1).hexdigest().upper()
            fields["authorization"] = (
                f"MQv2-HMAC-SHA1 Credential={user}/doctor/RocketMQ, SignedHeaders=x-mq-date-time, Signature={signature}"
            )
        return fields

    # -- the connection -----------------------------------------------------------------------------------------

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            host, port = parse_address(self.address)
            async with asyncio.timeout(self._timeout_s):
                addresses = await addresses_of(host, port)
                return await asyncio.open_connection(
                    addresses[0],
                    port,
                    ssl=self._ssl_context,
                    server_hostname=host if self._ssl_context is not None else None,
                )
        except (OSError, ValueError) as e:
            # TimeoutError and tls.SSLError are OSErrors.
            problem = tls_problem(e)
            reason = problem.why if problem is not None else str(e) or type(e).__name__
            raise ConnectFailed(f"can't connect to {self.address}: {reason}", self.address) from e

    async def _first_settings(self) -> None:
        """Reads the server's first frame. Raises ProtocolError if it is not SETTINGS."""
        kind, flags, _, _ = await self._frame()
        if kind != frames.SETTINGS or flags & frames.ACK:
            raise ProtocolError(f"{self.address} doesn't begin with HTTP/2's settings")
        self._writer.write(frames.SETTINGS_ACK)

    async def _frame(self) -> tuple[int, int, int, bytes]:
        """Reads a frame. Returns its type, flags, stream id and payload."""
        try:
            head = await self._reader.readexactly(frames.HEADER_LENGTH)
            length, flags, stream_id = frames.read_header(head, 0)
            kind, length = length & 0xFF, length >> 8
            if length > _FRAME_SIZE:
                raise ProtocolError(f"{self.address} doesn't speak HTTP/2: it sent {head!r}")
            payload = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as e:
            raise ConnectionLost(f"{self.address} closed the connection", self.address) from e
        return kind, flags, stream_id & 0x7FFFFFFF, payload

    async def _response(self, mine: int) -> tuple[dict[bytes, bytes], bytes]:
        """Returns the received fields, and the first message with its prefix. The message is empty if there is none."""
        fields: dict[bytes, bytes] = {}
        block = b""
        body = bytearray()
        has_ended = False
        while True:
            kind, flags, stream_id, payload = await self._frame()
            is_mine = stream_id == mine
            if kind in (frames.HEADERS, frames.DATA) and is_mine:
                has_ended = bool(flags & frames.END_STREAM)
            if kind in (frames.HEADERS, frames.CONTINUATION):
                block += _unpadded(payload, flags) if kind == frames.HEADERS else payload
                if len(block) > _MOST_FIELDS:
                    raise ProtocolError(f"{self.address} sends fields without end")
                if not flags & frames.END_HEADERS:
                    continue
                # Decode the fields of other streams, too, because they change the decoder's table.
                told, block = self._decode(block), b""
                if is_mine:
                    fields |= told
                    self._check(fields)
            elif kind == frames.DATA and is_mine:
                body += _unpadded(payload, flags & frames.PADDED)
                if len(body) > _MOST_BYTES:
                    raise ProtocolError(f"{self.address} answers with more than {_MOST_BYTES} bytes")
                if len(body) >= _PREFIX and len(body) >= (end := _PREFIX + int.from_bytes(body[1:_PREFIX], "big")):
                    return fields, bytes(body[:end])
            elif kind == frames.PING and not flags & frames.ACK:
                self._writer.write(frames.ping(payload, ack=True))
            elif kind == frames.SETTINGS and not flags & frames.ACK:
                self._writer.write(frames.SETTINGS_ACK)
            elif kind == frames.GOAWAY:
                raise ConnectionLost(f"{self.address} takes no calls: {payload[8:208]!r}", self.address)
            elif kind == frames.RST_STREAM and is_mine:
                raise ConnectionLost(
                    f"{self.address} gave the call up, with HTTP/2's code {payload.hex()}", self.address
                )
            if has_ended:
                return fields, b""

    def _decode(self, block: bytes) -> dict[bytes, bytes]:
        try:
            return dict(self._decoder.decode(block, _MOST_FIELDS))
        except (HpackError, TooManyHeaders) as e:
            raise ProtocolError(f"{self.address} sends fields that can't be read: {e}") from e

    def _check(self, fields: Mapping[bytes, bytes]) -> None:
        status, kind = fields.get(b":status", b""), fields.get(b"content-type", b"")
        if status != b"200" or not kind.startswith(b"application/grpc"):
            text = f"HTTP status {status.decode('latin-1')}, content type {kind.decode('latin-1') or 'none'}"
            raise NotGrpc(f"{self.address} answers with {text}")


def _unpadded(payload: bytes, flags: int) -> bytes:
    at, end = 0, len(payload)
    if flags & frames.PADDED and payload:
        at, end = 1, end - payload[0]
    if flags & frames.WITH_PRIORITY:
        at += 5
    return payload[at:end]
