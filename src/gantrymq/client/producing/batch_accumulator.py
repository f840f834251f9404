"""Automatic batching: single messages wait a few milliseconds and are sent together (`ProduceAccumulator`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from gantrymq.background.shared_task import own_copy
from gantrymq.background.tasks import Tasks
from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.message_encoder import UNIQUE_KEY_SIZE, EncodedMessage
from gantrymq.client.producing.options import ProducerOptions
from gantrymq.client.producing.sender import is_timeout
from gantrymq.errors import ClientClosed, RequestTimeout, SendOutcomeUnknown
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue

log = peer_log(__name__)

#: Largest number of batches in flight. There is a limit because a broker stores a late request even after its timeout.
MAX_UNDER_WAY = 64
#: Bytes that `encode_batch` adds to the body and the properties of a message.
_OVERHEAD = 22


#: Key of a batch: the topic, and the queue if the caller named one.
BatchKey = tuple[str, MessageQueue | None]


class _Batch:
    __slots__ = ("futures", "is_sent", "key", "parts", "size", "timeout_ms", "timer")

    def __init__(self, key: BatchKey, timer: asyncio.TimerHandle) -> None:
        self.key = key
        self.timer = timer
        self.parts: list[EncodedMessage] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.size = 0
        self.timeout_ms = 0
        self.is_sent = False


#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__

Send = Callable[[BatchKey, Sequence[EncodedMessage], int], Awaitable[SendResult]]


class BatchAccumulator:
    """Collects messages into batches, one open batch for each key.

    A batch is sent when it has `batch_size` bytes, or `linger` after its first message. `send` sends a batch;
    at most MAX_UNDER_WAY batches are in flight. If more than `buffer_bytes` are pending, `wait_for_space` waits.
    """

    def __init__(self, send: Send, options: ProducerOptions) -> None:
        self._send = send
        self._linger_s = options.linger_s
        self._batch_size = options.batch_size
        self.buffer_bytes = options.buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._open: dict[BatchKey, _Batch] = {}
        #: Bytes of all pending messages.
        self.bytes = 0
        #: True if a batch has started since the last `wait_for_space`. A caller must then await `wait_for_space` before
        #: it adds more messages, so that the event loop can send the batch.
        self.has_begun = False
        self._slots = asyncio.Semaphore(MAX_UNDER_WAY)
        #: Loop time of the last response to a batch, in seconds.
        self._answered = 0.0
        self._under_way = Tasks("the send of a batch")
        self._waiters: deque[asyncio.Future[None]] = deque()

    def add(self, key: BatchKey, part: EncodedMessage, timeout_ms: int) -> asyncio.Future[SendResult]:
        """Adds a message to a batch. The future gets the result of this message, or the error of the whole batch.

        The timeout of a batch is the longest of its messages' timeouts; it starts when the batch is sent. The future
        fails with RequestTimeout if all MAX_UNDER_WAY slots are in use and no batch gets a response within this time.
        """
        # Access by index costs half as much as by name.
        size = len(part[1]) + (len(part[2]) or UNIQUE_KEY_SIZE) + _OVERHEAD
        batch = self._open.get(key)
        if batch is not None and batch.size + size > self._batch_size:
            self._start(batch)
            batch = None
        if batch is None:
            timer = self._loop.call_later(self._linger_s, self._linger_over, key)
            batch = self._open[key] = _Batch(key, timer)
        return self._added(batch, part, size, timeout_ms)

    def add_to_open(self, topic: str, part: EncodedMessage, timeout_ms: int) -> asyncio.Future[SendResult] | None:
        """Works like `add` if the topic has an open batch with space for the message. Otherwise returns None."""
        batch = self._open.get((topic, None))
        if batch is None:
            return None
        size = len(part[1]) + (len(part[2]) or UNIQUE_KEY_SIZE) + _OVERHEAD
        if batch.size + size > self._batch_size:
            return None
        return self._added(batch, part, size, timeout_ms)

    def _added(self, batch: _Batch, part: EncodedMessage, size: int, timeout_ms: int) -> asyncio.Future[SendResult]:
        future: asyncio.Future[SendResult] = self._loop.create_future()
        batch.parts.append(part)
        batch.futures.append(future)
        batch.size = total = batch.size + size
        self.bytes += size
        if timeout_ms > batch.timeout_ms:
            batch.timeout_ms = timeout_ms
        if total >= self._batch_size:
            self._start(batch)
        return future

    async def wait_for_space(self) -> None:
        """Waits until fewer than `buffer_bytes` are pending. Callers continue in the order of their calls."""
        self.has_begun = False
        if self.bytes < self.buffer_bytes:
            await asyncio.sleep(0)
        else:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    async def flush(self) -> None:
        """Sends all open batches. Returns when all messages added before this call have a result or an error."""
        for batch in list(self._open.values()):
            self._start(batch)
        await self._under_way.wait_for_running()

    async def close(self, timeout_s: float) -> None:
        """Flushes for at most `timeout_s` seconds, then cancels the rest.

        Messages of a batch in flight fail with SendOutcomeUnknown, all others with ClientClosed.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except TimeoutError:
            await self._under_way.stop()

    def _linger_over(self, key: BatchKey) -> None:
        self._start(self._open[key])

    def _start(self, batch: _Batch) -> None:
        del self._open[batch.key]
        batch.timer.cancel()
        self.has_begun = True
        self._under_way.start(self._run(batch, self._loop.time()))

    async def _run(self, batch: _Batch, begun: float) -> None:
        try:
            # If a slot is free, the batch is always sent, because a busy event loop is no reason for a timeout.
            has_to_wait = self._slots.locked()
            async with self._slots:
                if has_to_wait and self._loop.time() - max(begun, self._answered) >= batch.timeout_ms / 1000:
                    topic = batch.key[0]
                    raise RequestTimeout(
                        f"no batch to {topic} was answered in {batch.timeout_ms} ms, this waited", topic
                    )
                batch.is_sent = True
                result = await self._send(batch.key, batch.parts, batch.timeout_ms)
            self._answered = self._loop.time()
            results = split_result(result, len(batch.parts))
        except BaseException as e:
            if not is_timeout(e):
                self._answered = self._loop.time()
            log.warning("the send of %d messages to %s failed: %s", len(batch.parts), batch.key[0], e or repr(e))
            self._fail(batch, e)
            if not isinstance(e, Exception):
                raise
        else:
            for future, own in zip(batch.futures, results, strict=True):
                if not future.done():
                    future.set_result(own)
        finally:
            self.bytes -= batch.size
            while self._waiters and self.bytes < self.buffer_bytes:
                waiter = self._waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        """Fails the futures of a batch with the error of its send."""
        for future in batch.futures:
            if future.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                # Cancelled by `close`, or at the end of the event loop.
                topic = batch.key[0]
                if batch.is_sent:
                    future.set_exception(SendOutcomeUnknown(f"a batch to {topic} had no answer at the close", topic))
                else:
                    future.set_exception(ClientClosed(f"a batch to {topic} was not sent before the close"))
            else:
                future.set_exception(own_copy(error))
            # `_run` has logged the error. Without this, asyncio logs each future whose caller does not await it.
            future.exception()


def split_result(result: SendResult, count: int) -> list[SendResult]:
    """Splits the result of a batch into one result for each of its `count` messages.

    If the queue has stored the batch as one record (BatchCQ), all messages have the same offset message id.
    """
    if count == 1:
        return [result]
    status, msg_ids, queue, first, ids, *rest = result
    offset_ids = ids.split(",")
    if len(offset_ids) != count:
        offset_ids = [ids] * count
    return [
        _new(SendResult, (status, msg_id, queue, offset, offset_id, *rest))
        for offset, (msg_id, offset_id) in enumerate(zip(msg_ids.split(","), offset_ids, strict=True), first)
    ]
