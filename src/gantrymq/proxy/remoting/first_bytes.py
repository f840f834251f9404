"""Protocol detection on a port for both gRPC and remoting (`Http2ProtocolProxyHandler`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

#: First bytes of the HTTP/2 preface. No remoting frame begins with them: they would be a length of 1.3 GB.
_HTTP2 = b"PRI "


#: Timeout for the first bytes, s, after which the connection is closed.
_PATIENCE_S = 10.0


class FirstBytes(asyncio.Protocol):
    """Reads up to four bytes to detect the protocol, then hands the connection over to `http2` or `other`."""

    def __init__(self, http2: Callable[[], asyncio.Protocol], other: Callable[[], asyncio.Protocol]) -> None:
        self._http2 = http2
        self._other = other
        self._transport: asyncio.Transport | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._first = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def data_received(self, data: bytes) -> None:
        self._first += data
        if len(self._first) < len(_HTTP2) and _HTTP2.startswith(self._first):
            return
        assert self._transport is not None
        assert self._patience is not None
        self._patience.cancel()
        protocol = (self._http2 if self._first.startswith(_HTTP2) else self._other)()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._first)
