"""BlockingSends: ordinary sends in the thread of the caller, for `SyncProducer`.

A send over a connection of its own needs no other thread, whose wake-ups cost more than the rest of the send. If the
first attempt fails, the event loop continues the send (`Sender.send_after`). If several threads send at the same time,
they use the event loop (`CrossThreadSends`), where one write has the requests of all.

Figures: docs/decisions/plain-sends.md.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.direct_sends import DirectSends, WriterTo
from gantrymq.client.producing.send_attempt import SendAttempt, take_responses
from gantrymq.logs import peer_log
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.remoting.blocking_connection import BlockingConnection
from gantrymq.remoting.connection import Connection
from gantrymq.system import threads
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: After a connection has failed, all sends use the event loop for this time, in seconds.
FAILED_S = 5.0
#: The same after several threads have sent at the same time: one write with all their requests costs less.
SHARED_S = 0.1


class _Outcome:
    """The outcome of an attempt, for the thread that waits for it."""

    __slots__ = ("_error", "value")

    def __init__(self) -> None:
        self.value: SendResult | RemotingCommand | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self.value is not None or self._error is not None

    def set_result(self, result: SendResult | RemotingCommand, /) -> None:
        self.value = result

    def set_exception(self, exception: Exception, /) -> None:
        self._error = exception

    def result(self) -> SendResult | RemotingCommand:
        if self._error is not None:
            raise self._error
        assert self.value is not None
        return self.value


class BlockingSends:
    """The sends of one thread at a time. `new_sends` creates the `DirectSends` that write to these connections."""

    def __init__(self, new_sends: Callable[[WriterTo], DirectSends]) -> None:
        self._new_sends = new_sends
        #: Created by the first send, because most producers send in the event loop only.
        self._sends: DirectSends | None = None
        #: Connections by the address of their broker.
        self._connections: dict[str, BlockingConnection] = {}
        #: Locked by the thread that sends.
        self._lock = threads.Lock()
        self._paused_until = 0.0
        self._is_closed = False

    def send(self, message: Message, timeout_ms: int) -> SendResult | SendAttempt | None:
        """Sends in this thread.

        Returns the result, or the attempt if it has ended without a result. Returns None if the event loop must send
        this message: it is not ordinary, no connection is open, or another thread sends. Raises IllegalMessage.
        """
        if self._paused_until and monotonic() < self._paused_until:
            return None
        if not self._lock.acquire(blocking=False):
            self._pause(SHARED_S)
            return None
        try:
            return self._send(message, timeout_ms)
        finally:
            self._lock.release()
            if self._is_closed:
                self.close()

    def _send(self, message: Message, timeout_ms: int) -> SendResult | SendAttempt | None:
        sends, outcome = self._sends, _Outcome()
        if sends is None:
            sends = self._sends = self._new_sends(self._writer_to)
        attempt = sends.begin(message, timeout_ms, outcome)
        if attempt is None:
            return None
        try:
            is_open = self._connections[attempt.connection.address].exchange()
        except BaseException:
            sends.sender.cancelled(attempt)
            raise
        if not is_open:
            self._pause(FAILED_S)
        result = outcome.value
        if type(result) is not SendResult:
            return attempt
        if attempt.fault is not None:
            sends.sender.stored(attempt)
        return result

    def _writer_to(self, connection: Connection) -> BlockingConnection | None:
        own = self._connections.get(connection.address)
        if own is not None and own.beside is connection and own.is_writable:
            return own
        # Also closes the connections with brokers that are gone or not used any more.
        for address, other in list(self._connections.items()):
            if other is own or not other.is_writable:
                other.close()
                del self._connections[address]
        try:
            own = BlockingConnection(connection, take_responses)
        except (OSError, ValueError) as e:
            log.info("can't connect to %s again: %s", connection.address, e)
            self._pause(FAILED_S)
            return None
        self._connections[connection.address] = own
        # Another thread may have closed the producer in the meantime.
        return None if self._is_closed else own

    def _pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, monotonic() + seconds)

    def close(self) -> None:
        """Closes the connections. A send in another thread ends with ConnectionLost."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            for connection in self._connections.values():
                connection.close()
            self._lock.release()
        else:
            # The sending thread closes them.
            for connection in list(self._connections.values()):
                connection.shut_down()
