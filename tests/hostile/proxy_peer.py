"""gRPC client that writes its own HTTP/2 frames: starts calls, sends arbitrary payloads, and discards the responses."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _WINDOW_UPDATE = 0, 1, 3, 4, 8
_END_STREAM, _END_HEADERS = 1, 4
_LARGEST_FRAME = 16_384
_FIRST_WINDOW = 65_535
_WIDE_WINDOW = 1 << 30
#: If the proxy accepts no bytes for this time, the client gives up; in seconds.
_NOT_TAKEN_S = 2.0


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """Encodes a header field whose name and value have less than 127 + 128 bytes."""
    return b"\x00" + b"".join(
        (bytes((len(text),)) if len(text) < 127 else bytes((127, len(text) - 127))) + text for text in (name, value)
    )


def signed(user: str, password: str) -> dict[str, str]:
    """Returns the metadata of a call that this user signs."""
    now = time.strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.new(password.encode(), now.encode(), hashlib.sha1).hexdigest().upper()
    items = f"Credential={user}/cn/RocketMQ, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"x-mq-date-time": now, "authorization": f"MQv2-HMAC-SHA1 {items}"}


def message(data: bytes, *, is_gzip: bool = False) -> bytes:
    """Returns a gRPC message with its prefix."""
    return bytes((is_gzip,)) + len(data).to_bytes(4, "big") + data


class ProxyPeer:
    """One connection. It respects the proxy's flow-control windows, and discards all responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._stream_id = -1
        self._window = _FIRST_WINDOW
        #: For each stream: the remaining window, and the unsent bytes.
        self._windows: dict[int, int] = {}
        self._to_send: dict[int, tuple[memoryview, bool]] = {}
        self._reading = asyncio.ensure_future(self._read(reader))
        settings = (4).to_bytes(2, "big") + _WIDE_WINDOW.to_bytes(4, "big")
        self._write(PREFACE + _frame(_SETTINGS, 0, 0, settings))
        self._write(_frame(_WINDOW_UPDATE, 0, 0, _WIDE_WINDOW.to_bytes(4, "big")))

    @classmethod
    async def connect(cls, address: str) -> ProxyPeer:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def call(self, method: str, payload: bytes = b"", *, ends: bool = True, **metadata: str) -> None:
        """Starts a call and sends its messages."""
        self._stream_id += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/apache.rocketmq.v2.MessagingService/{method}",
            "content-type": "application/grpc",
            "te": "trailers",
            "x-mq-client-id": f"attacker {self._stream_id}",
        } | {name.replace("_", "-"): value for name, value in metadata.items()}
        block = b"".join(_literal(name.encode(), value.encode()) for name, value in fields.items())
        self._write(_frame(_HEADERS, _END_HEADERS, self._stream_id, block))
        self._windows[self._stream_id] = _FIRST_WINDOW
        self._to_send[self._stream_id] = memoryview(payload), ends
        self._send(self._stream_id)

    def send_half_a_frame(self) -> None:
        """Sends the header of a DATA frame and half of its payload."""
        self._write(_frame(_DATA, 0, 1, bytes(1000))[:500])

    async def taken(self) -> bool:
        """Returns true if the proxy accepted everything in time. A proxy may refuse to, as a defence."""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_NOT_TAKEN_S):
                while self._to_send and not self._writer.is_closing():
                    await self._writer.drain()
                    await asyncio.sleep(0.005)
                return not self._to_send
        return False

    async def close(self) -> None:
        self._writer.transport.abort()
        await self._reading

    def _send(self, stream_id: int) -> None:
        payload, ends = self._to_send.pop(stream_id)
        while payload:
            size = min(len(payload), _LARGEST_FRAME, self._windows[stream_id], self._window)
            if size <= 0:
                self._to_send[stream_id] = payload, ends
                return
            part, payload = payload[:size], payload[size:]
            self._windows[stream_id] -= size
            self._window -= size
            self._write(_frame(_DATA, _END_STREAM if ends and not payload else 0, stream_id, bytes(part)))

    def _write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big")
            if stream_id:
                self._windows[stream_id] = self._windows.get(stream_id, 0) + increment
                if stream_id in self._to_send:
                    self._send(stream_id)
            else:
                self._window += increment
                for waiting in list(self._to_send):
                    self._send(waiting)
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
            self._to_send.pop(stream_id, None)
