"""Assignment: notifies an application of its consumer's queues. `Health` describes the state of a consumer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gantrymq.errors import ClientError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX

log = peer_log(__name__)

#: A callback of the application: a plain function or a coroutine function. Its errors are only logged.
QueuesCallback = Callable[[set[MessageQueue]], object]
#: A callback that is a plain function.
ErrorCallback = Callable[[Exception], object]

#: Default timeout of `wait_assigned`, in seconds.
WAIT_S = 30.0
#: Longest time that a callback waits for the previous callback, s. Without a limit, a callback that closes its own
#: consumer would wait for itself.
_CALLBACK_S = 10.0


@dataclass(slots=True, frozen=True)
class QueueHealth:
    """State of one queue of a consumer.

    Attributes:
        lag: Number of stored messages that are not consumed, as of the last pull.
        last_pull: Time of the last pull, seconds since the epoch; 0 before the first one.
        error: Error of the last pull.
    """

    lag: int
    last_pull: float
    error: Exception | None = None


@dataclass(slots=True, frozen=True)
class Health:
    """State of a consumer.

    Attributes:
        is_open: Whether the consumer is started and not closed.
        queues: State of each queue.
        last_error: Newest error.
        last_error_time: Time of that error, seconds since the epoch.
    """

    is_open: bool
    queues: dict[MessageQueue, QueueHealth]
    last_error: Exception | None = None
    last_error_time: float = 0.0

    @property
    def is_ready(self) -> bool:
        """True if the consumer has queues and all of their last pulls succeeded."""
        return self.is_open and bool(self.queues) and not any(queue.error for queue in self.queues.values())


class Assignment:
    """Notifies the application of assigned and revoked queues, except queues of retry topics."""

    def __init__(
        self,
        user_queue: Callable[[MessageQueue], MessageQueue],
        on_assigned: QueuesCallback | None,
        on_revoked: QueuesCallback | None,
    ) -> None:
        self._user_queue = user_queue
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        #: One event for each waiting caller, because a consumer can be restarted in another event loop.
        self._waiting: dict[asyncio.Event, None] = {}
        self._threads = False
        #: The last callback that was started in a thread.
        self._running: asyncio.Future[object] | None = None

    def notify_in_threads(self) -> None:
        """Calls plain callbacks in threads, where a callback may block on work of the event loop."""
        self._threads = True

    async def assigned(self, queues: Collection[MessageQueue]) -> None:
        """Notifies the application of new queues, which are pulled from now on."""
        self.wake()
        await self._notify(self._on_assigned, queues)

    async def revoked(self, queues: Collection[MessageQueue]) -> None:
        """Notifies the application of queues that are or will be revoked."""
        await self._notify(self._on_revoked, queues)

    def wake(self) -> None:
        """Wakes all callers of `wait`."""
        for changed in self._waiting:
            changed.set()

    async def wait(self, queues: Callable[[], set[MessageQueue]], timeout_s: float) -> set[MessageQueue]:
        """Waits for queues of the application and returns them. Raises TimeoutError or an error of `queues`."""
        changed = asyncio.Event()
        self._waiting[changed] = None
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := of_user(queues())):
                    changed.clear()
                    await changed.wait()
        finally:
            del self._waiting[changed]
        return found

    async def _notify(self, callback: QueuesCallback | None, queues: Collection[MessageQueue]) -> None:
        told = of_user(queues)
        if callback is None or not told:
            return
        shown = {self._user_queue(queue) for queue in told}
        try:
            if self._threads and not inspect.iscoroutinefunction(callback):
                result = await self._in_thread(callback, shown)
            else:
                result = callback(shown)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("%s failed", getattr(callback, "__name__", callback))

    async def _in_thread(self, callback: QueuesCallback, queues: set[MessageQueue]) -> object:
        """Runs a callback in a thread, after the previous callback, which may outlive its cancelled caller."""
        if self._running is not None and not self._running.done():
            await asyncio.wait({self._running}, timeout=_CALLBACK_S)
        self._running = asyncio.ensure_future(asyncio.to_thread(callback, queues))
        return await asyncio.shield(self._running)


def of_user(queues: Collection[MessageQueue]) -> set[MessageQueue]:
    """Returns the queues without queues of retry topics."""
    return {queue for queue in queues if not queue.topic.startswith(RETRY_TOPIC_PREFIX)}


def not_assigned(group: str, timeout_s: float, last_error: Exception | None) -> ClientError:
    """Returns the error of `wait_assigned`."""
    reason = f"the last error was: {last_error}" if last_error is not None else "others of the group may have them all"
    return ClientError(f"group {group} gave this consumer no queue in {timeout_s:g} s; {reason}")
