"""CrossThreadSends: passes the `send` calls of other threads to the event loop of their producer.

One wake-up of the event loop serves all calls in the deque. A call needs a task only if its first attempt fails, or if
the send is not an ordinary one (`DirectSends`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from datetime import timedelta
from functools import partial

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.send_attempt import SendAttempt
from gantrymq.client.producing.sender import Sender
from gantrymq.errors import ThreadDied
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.system import threads


class CrossThreadSend:
    """A call of `send`, and the future for its one waiting thread. The first outcome counts.

    It has the methods of `concurrent.futures.Future` that LoopThread needs. The condition of that class is slow.
    Figures: docs/decisions/plain-sends.md.
    """

    __slots__ = ("_callbacks", "_claim", "_ended", "_error", "_is_done", "_result", "message", "timeout")

    def __init__(self, message: Message, timeout: float | timedelta) -> None:
        self.message = message
        self.timeout = timeout
        self._result: SendResult | None = None
        self._error: BaseException | None = None
        self._is_done = False
        self._callbacks: deque[Callable[[CrossThreadSend], object]] = deque()
        #: Locked by the thread that sets the outcome.
        self._claim = threads.Lock()
        #: Locked until the call has ended.
        self._ended = threads.Lock()
        self._ended.acquire()

    def result(self) -> SendResult:
        """Waits for the outcome. Returns the result, or raises the error. Must be called once."""
        self._ended.acquire()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return isinstance(self._error, CancelledError)

    def cancel(self) -> bool:
        return self._end(None, CancelledError())

    def set_running_or_notify_cancel(self) -> bool:
        return not self.cancelled()

    def set_result(self, result: SendResult, /) -> None:
        self._end(result, None)

    def set_exception(self, exception: BaseException | None, /) -> None:
        self._end(None, exception)

    def add_done_callback(self, callback: Callable[[CrossThreadSend], object], /) -> None:
        """Calls `callback` in the thread that ends the call, or at once if the call has ended."""
        self._callbacks.append(callback)
        if self._is_done:
            self._call_back()

    def _end(self, result: SendResult | None, error: BaseException | None) -> bool:
        if not self._claim.acquire(blocking=False):
            return False
        self._result, self._error = result, error
        self._is_done = True
        try:
            self._call_back()
        finally:
            self._ended.release()
        return True

    def _call_back(self) -> None:
        # Two threads can be here, and each callback is called once.
        while self._callbacks:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback(self)


class _FirstOutcome:
    """Receives the outcome of the first attempt of a call, and ends the call or continues it in a task."""

    __slots__ = ("_attempt", "_call", "_error", "_response", "_sender", "_sends")

    def __init__(self, call: CrossThreadSend, sends: CrossThreadSends) -> None:
        self._call = call
        self._sends = sends
        self._attempt: SendAttempt | None = None
        #: The sender that continues the call. A closed producer has no sender.
        self._sender: Sender | None = None
        self._response: RemotingCommand | None = None
        self._error: Exception | None = None

    def begin(self, attempt: SendAttempt, sender: Sender) -> None:
        self._attempt, self._sender = attempt, sender
        self._sends.attempts[self._call] = self

    def done(self) -> bool:
        return self._call not in self._sends.attempts

    def set_result(self, result: SendResult | RemotingCommand, /) -> None:
        if isinstance(result, RemotingCommand):
            self._response = result
            self._continue()
            return
        assert self._attempt is not None
        assert self._sender is not None
        del self._sends.attempts[self._call]
        if self._attempt.fault is not None:
            self._sender.stored(self._attempt)
        # Another thread may have cancelled the call. This then has no effect.
        self._call.set_result(result)

    def set_exception(self, exception: Exception, /) -> None:
        self._error = exception
        self._continue()

    def result(self) -> SendResult | RemotingCommand:
        if self._error is not None:
            raise self._error
        assert self._response is not None
        return self._response

    def cancel(self) -> None:
        """Ends the attempt, which is in flight. A later response is ignored."""
        assert self._attempt is not None
        assert self._sender is not None
        del self._sends.attempts[self._call]
        self._attempt.connection.pending.discard(self._attempt.opaque)
        self._sender.cancelled(self._attempt)

    def _continue(self) -> None:
        assert self._attempt is not None
        assert self._sender is not None
        del self._sends.attempts[self._call]
        self._sends.thread.begin(self._sender.send_after(self._attempt), self._call)


class CrossThreadSends:
    """The `send` calls for one producer.

    Attributes:
        thread: Thread of the event loop.
        attempts: Calls whose first attempt is in flight.
    """

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self.thread = thread
        self._calls: deque[CrossThreadSend] = deque()
        #: True from a wake-up until the event loop takes the calls.
        self._is_woken = False
        self.attempts: dict[CrossThreadSend, _FirstOutcome] = {}

    def add(self, message: Message, timeout: float | timedelta) -> CrossThreadSend:
        """Starts a send from any other thread. Raises ThreadDied. To give it up, call `cancel`."""
        call = CrossThreadSend(message, timeout)
        self.thread.watch(call)
        try:
            self._calls.append(call)
            if not self._is_woken:
                self._is_woken = True
                self.thread.call_soon(self._start_all)
        except BaseException:
            # After an interruption, the loop may not be woken. Other threads may have added calls that wait for it.
            call.cancel()
            self._is_woken = False
            with suppress(ThreadDied):
                self.thread.call_soon(self._start_all)
            raise
        return call

    def cancel(self, call: CrossThreadSend) -> None:
        """Cancels a send from any other thread. Raises ThreadDied."""
        call.cancel()
        self.thread.call_soon(partial(self._cancel, call))

    def _start_all(self) -> None:
        # Set first: a thread that adds a call later wakes the loop again.
        self._is_woken = False
        while self._calls:
            self._start(self._calls.popleft())

    def _start(self, call: CrossThreadSend) -> None:
        if call.done():
            return
        outcome = _FirstOutcome(call, self)
        try:
            attempt = self._producer.begin_send(call.message, outcome, timeout=call.timeout)
        except Exception as e:
            call.set_exception(e)
            return
        if attempt is None:
            self.thread.begin(self._producer.send(call.message, timeout=call.timeout), call)
        else:
            outcome.begin(attempt, self._producer.sender)

    def _cancel(self, call: CrossThreadSend) -> None:
        if call in self.attempts:
            self.attempts[call].cancel()
