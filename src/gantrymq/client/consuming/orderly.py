"""ConsumeOrderly: runs the handler on the messages of a queue one after the other, and on several queues at a time.

`orderly_queue` decides the next step of a queue; this module executes it.
Source: client/impl/consumer/ConsumeMessageOrderlyService, RebalancePushImpl (tryRemoveOrderMessageQueue).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from gantrymq.background.repeating import Repeating
from gantrymq.background.tasks import Tasks
from gantrymq.client.consuming.concurrently import GRACE_S
from gantrymq.client.consuming.consumer_locks import ConsumerLocks
from gantrymq.client.consuming.handler_pool import HandlerPool, MessageHandler, handler_pool
from gantrymq.client.consuming.log_texts import failed_attempt
from gantrymq.client.consuming.orderly_queue import CONSUMED, HANDLE, Event, OrderlyQueue, State, Step
from gantrymq.client.consuming.process_queue import ProcessQueue
from gantrymq.client.consuming.send_back import SendBack
from gantrymq.errors import GantryError
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageExt

log = peer_log(__name__)

#: Longest time that a revoked queue waits for its running message (UNLOCK_DELAY_TIME_MILLS), s.
RELEASE_TIMEOUT_S = 20.0


class _Queue:
    """State of a queue: its messages, the timer that ends its pause, and an event for the end of the current step."""

    def __init__(self, line: OrderlyQueue, resume: Repeating) -> None:
        self.line = line
        self.resume = resume
        self.settled: asyncio.Event | None = None


class ConsumeOrderly:
    """Runs the handler on the first message of each queue. If it fails, repeats the same message after a pause.

    After `max_reconsume_times` (None: no limit) a message goes to the dead-letter queue, and the next message follows.
    A queue is handled only while this consumer has the queue's lock. Broadcasting consumers have no `locks`. If another
    consumer had the lock in the meantime, `take_anew` restarts the queue.
    """

    def __init__(
        self,
        handler: MessageHandler,
        concurrency: int,
        locks: ConsumerLocks | None,
        send_back: SendBack | None,
        max_reconsume_times: int | None,
        suspend_s: float,
        wire_topic: Callable[[MessageExt], str],
        take_anew: Callable[[ProcessQueue], None],
    ) -> None:
        self.pool: HandlerPool = handler_pool(handler, concurrency, self._handled)
        self._locks = locks
        self._send_back = send_back
        self._max_reconsume_times = max_reconsume_times
        self._suspend_s = suspend_s
        self._wire_topic = wire_topic
        self._take_anew = take_anew
        self._queues: dict[ProcessQueue, _Queue] = {}
        self._burials = Tasks("the sending of a message to the dead letters")
        self._locking = Tasks("the locking of a queue")

    def submit(self, process_queue: ProcessQueue, messages: Iterable[MessageExt]) -> None:
        queue = self._queues.get(process_queue)
        if queue is None:
            resume = Repeating(
                f"the consumption of {process_queue.queue}",
                partial(self._resume, process_queue),
                after_error_s=self._suspend_s,
            )
            resume.start()
            line = OrderlyQueue(self._max_reconsume_times, self._suspend_s)
            queue = self._queues[process_queue] = _Queue(line, resume)
        queue.line.messages.extend(messages)
        self._change(process_queue, Event.MESSAGES)

    async def release(self, process_queue: ProcessQueue) -> None:
        """Waits until no message of the dropped queue is in a handler or on its way to the dead-letter queue."""
        queue = self._queues.get(process_queue)
        if queue is None:
            return
        line = queue.line
        # The pool skips messages of this queue that have not started.
        waits = line.state is State.BURYING or (
            line.state is State.HANDLING and any(running.message is line.messages[0] for running in self.pool.running())
        )
        self._change(process_queue, Event.END)
        queue.resume.cancel()
        if waits:
            queue.settled = asyncio.Event()
            try:
                async with asyncio.timeout(RELEASE_TIMEOUT_S):
                    await queue.settled.wait()
            except TimeoutError:
                log.warning("%s is revoked while its handler still processes a message", process_queue.queue)
        self._queues.pop(process_queue, None)

    async def close(self, timeout_s: float) -> None:
        """Waits for handlers and for sends to the dead-letter queue, for at most `timeout_s` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for process_queue, queue in self._queues.items():
            self._change(process_queue, Event.END)
            queue.resume.cancel()
        await self._locking.stop()
        await self.pool.close(timeout_s)
        try:
            async with asyncio.timeout_at(max(deadline, loop.time() + GRACE_S)):
                await self._burials.wait()
        except TimeoutError:
            log.warning("%d messages did not get to the dead letters: they will be delivered again", len(self._burials))
        await self._burials.stop()

    def _change(self, process_queue: ProcessQueue, event: Event) -> None:
        """Passes an event to the state of the queue and executes the next step."""
        queue = self._queues.get(process_queue)
        if queue is None:
            return
        line = queue.line
        step = line.change(event, self._has_lock(process_queue))
        if step is HANDLE:
            self.pool.submit(process_queue, (line.messages[0],))
            return
        match step:
            case Step.BURY:
                self._burials.start(self._bury(process_queue, line.messages[0]))
            case Step.LOCK:
                self._locking.start(self._lock_again(process_queue))
            case Step.SUSPEND:
                queue.resume.wake(line.pause_s)

    def _has_lock(self, process_queue: ProcessQueue) -> bool:
        locks, queue = self._locks, process_queue.queue
        return locks is None or (locks.holds(queue) and not locks.was_lost(queue))

    def _resume(self, process_queue: ProcessQueue) -> None:
        self._change(process_queue, Event.RESUMED)

    def _handled(self, process_queue: ProcessQueue, message: MessageExt, error: BaseException | None) -> None:
        event = CONSUMED
        if error is None:
            process_queue.remove(message)
        else:
            event = Event.FAILED
            queue = self._queues.get(process_queue)
            following = "the next consumer of its queue receives it" if queue is None else queue.line.after_failure()
            log.warning("handler failed: %s; %s", failed_attempt(message), following, exc_info=error)
        self._settled(process_queue, event)

    async def _bury(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        event = Event.NOT_BURIED
        try:
            if self._send_back is not None and not message.is_damaged:
                await self._send_back.send_anew(message, self._wire_topic(message))
            process_queue.remove(message)
            event = Event.BURIED
        except GantryError as e:
            log.warning("can't send %s to the dead letters, trying it again here: %s", message.msg_id, e)
        finally:
            self._settled(process_queue, event)

    async def _lock_again(self, process_queue: ProcessQueue) -> None:
        assert self._locks is not None
        event = Event.NOT_LOCKED
        try:
            if process_queue.dropped:
                return  # The next owner of the queue has the lock.
            log.warning("the lock of %s was lost: taking it again", process_queue.queue)
            if await self._locks.lock([process_queue.queue]):
                event = Event.LOCKED
                if self._locks.was_lost(process_queue.queue):
                    event = Event.NOT_LOCKED
                    self._take_anew(process_queue)
        finally:
            self._change(process_queue, event)

    def _settled(self, process_queue: ProcessQueue, event: Event) -> None:
        queue = self._queues.get(process_queue)
        if queue is not None and queue.settled is not None:
            queue.settled.set()
        self._change(process_queue, event)
