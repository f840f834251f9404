"""BlockingConnection: a connection without an event loop, for one thread at a time and one request at a time.

The event loop's connection with the same server sends the heartbeats and notices the server's end. A blocking
connection is therefore used only while that one is open.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.errors import ConnectionLost, ProtocolError, RequestTimeout
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.pending_requests import Waiting
from gantrymq.system import network, threads
from gantrymq.system.clock import monotonic

#: Time limit of a connect, in seconds. The server has just been reached by the event loop.
CONNECT_TIMEOUT_S = 0.5
#: A connection that was not used for this time is replaced, in seconds. Servers close it after 120 s.
IDLE_S = 20.0
_READ_BYTES = 16 * 1024

#: Handles responses before they are decoded. Gets the requests that wait for them and the bytes of a read. Returns the
#: number of bytes in the handled frames.
TakeResponses = Callable[["BlockingConnection", bytes], int]


class BlockingConnection:
    """A connection to the server of `beside`, a connection of the event loop. Raises OSError if it can't connect."""

    def __init__(self, beside: Connection, take_responses: TakeResponses) -> None:
        self.beside = beside
        self._take_responses = take_responses
        # Connects to the IP address, because the lookup of a host name has no timeout.
        self._socket = network.connect(*beside.peer, CONNECT_TIMEOUT_S)
        #: Timeout of the current request, and timeout of the socket's calls; in ms.
        self._timeout_ms = self._socket_timeout_ms = 0
        #: End of the current request's timeout, in seconds.
        self._deadline = 0.0
        #: Time of the last response or of the connect, in seconds.
        self._used = monotonic()
        self._is_closed = False
        #: Guards the file descriptor, which another file can get after the close.
        self._lock = threads.Lock()
        self._reader = FrameReader()
        self._frame = b""
        self._opaque = 0
        #: Receives the response. None if no request is pending.
        self._waiting: Waiting | None = None

    @property
    def is_writable(self) -> bool:
        return not self._is_closed and self.beside.is_writable and monotonic() - self._used < IDLE_S

    def next_opaque(self) -> int:
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        return opaque

    def send_frame(self, frame: bytes, opaque: int, timeout_ms: int, waiting: Waiting) -> None:
        """Keeps a request for `exchange`."""
        self._frame, self._waiting = frame, waiting
        self._deadline = monotonic() + timeout_ms / 1000
        self._timeout_ms = timeout_ms
        if timeout_ms != self._socket_timeout_ms:
            network.set_timeout(self._socket, timeout_ms)
            self._socket_timeout_ms = timeout_ms

    def exchange(self) -> bool:
        """Sends the request and waits for its response, or sets its error. Returns whether the connection is open.

        An exception, such as KeyboardInterrupt, closes the connection, whose response is then not read.
        """
        waiting, address = self._waiting, self.beside.address
        try:
            sent = self._socket.send(self._frame)
            if sent < len(self._frame):
                self._send_rest(sent)
            while self._waiting is not None:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionLost(f"the connection with {address} was closed before the answer", address)
                self._receive(data)
                if self._waiting is not None:
                    self._limit_next_call()
            self._used = monotonic()
            return True
        except (BlockingIOError, TimeoutError):
            error: Exception = RequestTimeout(f"{address} did not answer in {self._timeout_ms} ms", address)
        except ConnectionLost as e:
            error = e
        except (OSError, ProtocolError) as e:
            error = ConnectionLost(f"the connection with {address} was closed before the answer: {e}", address)
        except BaseException:
            self.close()
            raise
        self.close()
        if waiting is not None:
            waiting.set_exception(error)
        return False

    def _send_rest(self, sent: int) -> None:
        frame = memoryview(self._frame)
        while sent < len(frame):
            self._limit_next_call()
            sent += self._socket.send(frame[sent:])

    def _limit_next_call(self) -> None:
        """Limits the socket's next call to the rest of the timeout, which a part of a frame must not extend."""
        left_ms = int(1000 * (self._deadline - monotonic()))
        if left_ms <= 0:
            raise TimeoutError
        network.set_timeout(self._socket, left_ms)
        self._socket_timeout_ms = left_ms

    def _receive(self, data: bytes) -> None:
        if not self._reader.frame_length:
            data = data[self._take_responses(self, data) :]
            if not data:
                return
        for command in self._reader.feed(data):
            self._answer(command)

    def _answer(self, command: RemotingCommand) -> None:
        waiting = self.find(command.opaque)
        if waiting is not None:
            self._waiting = None
            waiting.set_result(command)

    # The methods of PendingRequests that `TakeResponses` needs.

    def find(self, opaque: int) -> Waiting | None:
        return self._waiting if opaque == self._opaque else None

    def discard(self, opaque: int) -> None:
        self._waiting = None

    def shut_down(self) -> None:
        """Ends a request of another thread with ConnectionLost."""
        with self._lock:
            if not self._is_closed:
                network.shut_down(self._socket)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._socket.close()
