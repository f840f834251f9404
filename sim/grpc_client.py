"""A gRPC client for the simulated network: HTTP/2 without TLS, one call at a time, with all responses of a call."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from google.protobuf.message import Message

from gantrymq.errors import BrokerError, ConnectionLost, ProtocolError, RequestTimeout
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.doctor.proxy_client import ProxyClient
from gantrymq.proxy.http2 import frames
from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.v2.definition_pb2 import Code, Status

#: ":method POST" and ":scheme http" of the static table.
_POST_HTTP = b"\x83\x86"
#: Size of a message's prefix, in bytes: the compression flag and the length.
_PREFIX = 5


class GrpcClient(ProxyClient):
    """Extends the client of `gantry doctor`, which reads only the first response of a call."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def responses(self, method: str, request: Message) -> list[Any]:
        """Makes a call. Raises a RemotingError or a ProtocolError if it does not end with the gRPC status OK."""
        self._last_stream_id += 2
        stream_id = self._last_stream_id
        path, kind = next((path, each) for path, each in METHODS.items() if each.name == method)
        block = _POST_HTTP + b"".join(literal(n.encode(), v.encode()) for n, v in self._fields(path).items())
        data = request.SerializeToString()
        data = b"\x00" + len(data).to_bytes(4, "big") + data
        self._writer.write(frames.frame_head(frames.HEADERS, frames.END_HEADERS, stream_id, len(block)) + block)
        self._writer.write(frames.frame_head(frames.DATA, frames.END_STREAM, stream_id, len(data)) + data)
        try:
            async with asyncio.timeout(self._timeout_s):
                fields, body = await self._read(stream_id)
        except TimeoutError:
            raise RequestTimeout(f"{self.address} did not answer {method}", self.address) from None
        if fields.get(b"grpc-status") != b"0":
            raise ProtocolError(f"{self.address} answered {method} with {fields}")
        found = []
        while body:
            end = _PREFIX + int.from_bytes(body[1:_PREFIX], "big")
            found.append(kind.response.FromString(body[_PREFIX:end]))
            body = body[end:]
        return found

    async def _read(self, mine: int) -> tuple[dict[bytes, bytes], bytes]:
        """Returns the fields and all data of a response."""
        fields: dict[bytes, bytes] = {}
        body = b""
        while True:
            kind, flags, stream_id, payload = await self._frame()
            if kind == frames.HEADERS:
                assert flags & frames.END_HEADERS, "the proxy's fields fit into one frame"
                fields |= self._decode(payload)
            elif kind == frames.DATA and stream_id == mine:
                body += payload
                # Lets the proxy send as many bytes again on this connection (HTTP/2 flow control).
                if payload:
                    self._writer.write(frames.window_update(0, len(payload)))
            elif kind == frames.PING and not flags & frames.ACK:
                self._writer.write(frames.ping(payload, ack=True))
            elif kind == frames.SETTINGS and not flags & frames.ACK:
                self._writer.write(frames.SETTINGS_ACK)
            elif kind == frames.GOAWAY or (kind == frames.RST_STREAM and stream_id == mine):
                raise ConnectionLost(f"{self.address} ended the call", self.address)
            if flags & frames.END_STREAM and kind in (frames.HEADERS, frames.DATA) and stream_id == mine:
                return fields, body


def check(status: Status, address: str) -> None:
    """Raises BrokerError with the code of the status unless it is OK."""
    if status.code != Code.OK:
        raise BrokerError(int(status.code), status.message, address)
