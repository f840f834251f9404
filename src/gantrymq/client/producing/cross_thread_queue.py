"""CrossThreadQueue: passes messages of other threads to the event loop of a producer that makes batches.

A wake-up of the event loop costs more than the rest of an enqueue. Threads therefore only append to a deque, and one
wake-up serves all messages in the deque.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ClientClosed
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.system import threads

log = peer_log(__name__)

#: Largest number of messages in the queue. If the queue is full, threads wait.
MAX_MESSAGES = 10_000
#: Interval at which a waiting thread checks that the event loop still runs, s.
_CHECK_S = 0.5


class _Item(NamedTuple):
    message: Message
    queue: MessageQueue | None
    timeout: float | timedelta
    future: Future[SendResult]


class CrossThreadQueue:
    """The messages of one producer that its event loop has not enqueued yet.

    Attributes:
        thread: Thread of the event loop.
    """

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self.thread = thread
        #: Messages, and futures of `drained` calls.
        self._items: deque[_Item | asyncio.Future[None]] = deque()
        #: True from a wake-up until the queue is empty again.
        self._is_woken = False
        self._draining: asyncio.Task[None] | None = None
        self._has_space = threads.Condition()

    def add(self, message: Message, queue: MessageQueue | None, timeout: float | timedelta) -> Future[SendResult]:
        """Adds a message from any other thread. Waits while the queue is full. Raises ThreadDied."""
        if len(self._items) >= MAX_MESSAGES:
            with self._has_space:
                while len(self._items) >= MAX_MESSAGES and self.thread.is_alive:
                    self._has_space.wait(_CHECK_S)
        future: Future[SendResult] = Future()
        self.thread.watch(future)
        self._items.append(_Item(message, queue, timeout, future))
        if not self._is_woken:
            self._is_woken = True
            self.thread.call_soon(self._wake)
        return future

    async def drained(self) -> None:
        """Waits until all messages added before this call are enqueued. Called in the event loop."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._items.append(reached)
        self._wake()
        await reached

    def _wake(self) -> None:
        if self._draining is None or self._draining.done():
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        items = self._items
        while True:
            if not items:
                self._is_woken = False
                # A thread may have added a message before it saw the change of the flag.
                if not items:
                    return
            item = items.popleft()
            if isinstance(item, asyncio.Future):
                if not item.done():
                    item.set_result(None)
                continue
            if len(items) == MAX_MESSAGES // 2:
                with self._has_space:
                    self._has_space.notify_all()
            if item.future.done():
                _is_open(item.future)
            else:
                await self._enqueue(item)

    async def _enqueue(self, item: _Item) -> None:
        message, queue, timeout, future = item
        try:
            sent = await self._producer.enqueue(message, queue=queue, timeout=timeout)
        except asyncio.CancelledError:
            # The event loop ends.
            if _is_open(future):
                future.set_exception(ClientClosed("this producer was closed before the message was sent"))
            raise
        except Exception as e:
            # A caller that ignores futures would not notice.
            log.warning("a message to %r can't be enqueued: %s", message.topic, e)
            if _is_open(future):
                future.set_exception(e)
        else:
            sent.add_done_callback(partial(_copy_result, future))


def _is_open(future: Future[SendResult]) -> bool:
    """Returns true if `future` still needs a result: the caller has not cancelled it, and the thread has not died."""
    if future.cancelled():
        # Wakes callers of `concurrent.futures.wait`.
        future.set_running_or_notify_cancel()
        return False
    return not future.done() and future.set_running_or_notify_cancel()


def _copy_result(future: Future[SendResult], sent: asyncio.Future[SendResult]) -> None:
    if not _is_open(future):
        return
    if sent.cancelled():
        future.set_exception(ClientClosed("this producer was closed before the broker responded"))
    elif (error := sent.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(sent.result())
