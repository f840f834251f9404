"""BlockingConnection: timeouts of requests to servers that read slowly."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import cast

from gantrymq.errors import RequestTimeout
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.blocking_connection import BlockingConnection
from gantrymq.remoting.connection import Connection

#: More than the buffers of both sockets hold.
FRAME = bytes(16 * 1024 * 1024)


class _Waiting:
    """Keeps the error of the request."""

    error: Exception | None = None

    def done(self) -> bool:
        return self.error is not None

    def set_result(self, result: RemotingCommand, /) -> None:
        raise AssertionError("there is no response")

    def set_exception(self, exception: Exception, /) -> None:
        self.error = exception


def test_a_server_that_reads_slowly_does_not_extend_the_timeout() -> None:
    received: list[int] = []

    def read_slowly(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            try:
                while data := connection.recv(256 * 1024):
                    received.append(len(data))
                    threading.Event().wait(0.05)
            except ConnectionResetError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader = threading.Thread(target=read_slowly, args=[listener])
        reader.start()
        host, port = listener.getsockname()
        # No lookup finds this host.
        beside = SimpleNamespace(address=f"broker.invalid:{port}", peer=(host, port), is_writable=True)
        connection = BlockingConnection(cast(Connection, beside), lambda _, data: 0)
        waiting = _Waiting()
        connection.send_frame(FRAME, connection.next_opaque(), 200, waiting)
        assert not connection.exchange()
        reader.join(30)
    assert isinstance(waiting.error, RequestTimeout)
    assert not connection.is_writable
    assert sum(received) < len(FRAME)
