"""ConsumeOrderly: a handler gets the messages of a queue one after the other; several queues at a time.

Source: client/impl/consumer/ConsumeMessageOrderlyService, RebalancePushImpl (tryRemoveOrderMessageQueue).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.held_locks import HeldLocks
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt

log = logging.getLogger(__name__)

#: suspendCurrentQueueTimeMillis: a queue stands still so long after its handler failed.
SUSPEND_S = 1.0
#: UNLOCK_DELAY_TIME_MILLS: how long a queue's message in hand is waited for before the queue is given up.
RELEASE_TIMEOUT_S = 20.0
#: tryLockLaterAndReconsume: the pause before a queue is looked at again whose lock was lost.
LOCK_RETRY_S = 3.0


@dataclass(slots=True)
class _Line:
    """A queue's messages in their order. `waiting` is the timer of a queue that stands still."""

    messages: deque[MessageExt] = field(default_factory=deque)
    in_hand: bool = False
    waiting: asyncio.TimerHandle | None = None
    idle: asyncio.Event | None = None


class ConsumeOrderly:
    """Runs the handler on the first message of each queue; when it fails, on the same one again, a moment later.

    After `max_reconsume_times` (None: never) a message is sent to the dead letter queue and the next one's turn comes.
    Nothing is handled without the queue's lock; without `locks`, for a consumer that reads everything, there are none.
    """

    def __init__(
        self,
        handler: MessageHandler,
        concurrency: int,
        locks: HeldLocks | None,
        send_back: SendBack | None,
        max_reconsume_times: int | None,
        suspend_s: float,
        wire_topic: Callable[[MessageExt], str],
    ) -> None:
        self.pool: HandlerPool = handler_pool(handler, concurrency, self._handled)
        self._locks = locks
        self._send_back = send_back
        self._max_reconsume_times = max_reconsume_times
        self._suspend_s = suspend_s
        self._wire_topic = wire_topic
        self._lines: dict[ProcessQueue, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        line = self._lines.setdefault(process_queue, _Line())
        line.messages.extend(messages)
        if not line.in_hand and line.waiting is None:
            self._next(process_queue, line)

    async def release(self, process_queue: ProcessQueue) -> None:
        """Waits until the queue, which is dropped, has no message in hand any more."""
        line = self._lines.get(process_queue)
        if line is None:
            return
        if line.waiting is not None:
            line.waiting.cancel()
        # Only what is in a handler is waited for: what waits for its turn in the pool is skipped there.
        if line.in_hand and any(running.message is line.messages[0] for running in self.pool.running()):
            line.idle = asyncio.Event()
            try:
                async with asyncio.timeout(RELEASE_TIMEOUT_S):
                    await line.idle.wait()
            except TimeoutError:
                log.warning("%s is given up with a message in its handler", process_queue.queue)
        self._lines.pop(process_queue, None)

    async def close(self, timeout_s: float) -> None:
        """Waits for handlers at most `timeout_s`, and for what is on its way to the dead letter queue."""
        self._closing = True
        for line in self._lines.values():
            if line.waiting is not None:
                line.waiting.cancel()
        await self.pool.close(timeout_s)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _next(self, process_queue: ProcessQueue, line: _Line) -> None:
        line.waiting = None
        if process_queue.dropped or self._closing or not line.messages:
            return
        line.in_hand = True
        if self._locks is not None and not self._locks.holds(process_queue.queue):
            self._start(self._lock_again(process_queue, line, self._locks))
        else:
            self.pool.submit(process_queue, (line.messages[0],))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _next_later(self, process_queue: ProcessQueue, line: _Line, delay_s: float) -> None:
        if not process_queue.dropped and not self._closing:
            loop = asyncio.get_running_loop()
            line.waiting = loop.call_later(delay_s, self._next, process_queue, line)

    async def _lock_again(self, process_queue: ProcessQueue, line: _Line, locks: HeldLocks) -> None:
        locked = False
        if not process_queue.dropped:
            log.warning("the lock of %s was lost: taking it again", process_queue.queue)
            locked = bool(await locks.lock([process_queue.queue]))
        line.in_hand = False
        self._next_later(process_queue, line, 0.0 if locked else LOCK_RETRY_S)

    def _handled(self, process_queue: ProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        line = self._lines.get(process_queue)
        if error is None:
            process_queue.remove(message)
        if line is None or process_queue.dropped:
            if line is not None and line.idle is not None:
                line.idle.set()
            return
        line.in_hand = False
        if error is None:
            line.messages.popleft()
            self._next(process_queue, line)
            return
        log.warning("handler failed on %s, its queue waits", message.msg_id, exc_info=error)
        if self._max_reconsume_times is not None and message.reconsume_times >= self._max_reconsume_times:
            self._start(self._to_dead_letters(process_queue, line, message))
        else:
            message.reconsume_times += 1
            self._next_later(process_queue, line, self._suspend_s)

    async def _to_dead_letters(self, process_queue: ProcessQueue, line: _Line, message: MessageExt) -> None:
        line.in_hand = True
        try:
            if self._send_back is not None:
                await self._send_back.send_anew(message, self._wire_topic(message))
        except GantryError as e:
            log.warning("can't send %s to the dead letters, trying it again here: %s", message.msg_id, e)
            message.reconsume_times += 1
            line.in_hand = False
            self._next_later(process_queue, line, self._suspend_s)
            return
        process_queue.remove(message)
        line.in_hand = False
        line.messages.popleft()
        self._next(process_queue, line)
