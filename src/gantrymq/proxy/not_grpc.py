"""Responses to HTTP/2 requests that are not gRPC: status 415."""

from __future__ import annotations

from gantrymq.proxy.http2.hpack import literal
from gantrymq.proxy.http2.stream import Http2Stream

#: ":status 415" is not in the static table.
_HEADERS = literal(b":status", b"415") + literal(b"content-type", b"text/plain")
_TEXT = b"this port serves gRPC: the content type of a request is application/grpc\n"
#: Without trailers, gRPC clients derive their status from the HTTP status.
_NO_TRAILERS = b""
#: Bytes of a request after which the response is sent, even if the request is incomplete.
_MOST_BYTES = 16 * 1024


class NotGrpc:
    """Receives the request on one stream and sends the response."""

    __slots__ = ("_received", "_stream")

    def __init__(self, stream: Http2Stream) -> None:
        self._stream = stream
        self._received = 0

    def data_received(self, data: bytes, ended: bool) -> None:
        self._received += len(data)
        if ended or self._received > _MOST_BYTES:
            self._answer()

    def server_stops(self) -> None:
        self._answer()

    def stream_lost(self) -> None:
        pass

    def _answer(self) -> None:
        if not self._stream.is_closed and not self._stream.has_sent_data:
            self._stream.send_headers(_HEADERS)
            self._stream.send_data(_TEXT)
            self._stream.finish(_NO_TRAILERS)
