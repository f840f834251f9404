"""Automatic batches: messages sent one by one gather for some ms and go out together (client ProduceAccumulator)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from gantrymq.background.shared import own_copy
from gantrymq.background.tasks import Tasks
from gantrymq.client.broker_api import SendResult
from gantrymq.client.producing.outgoing import Outgoing
from gantrymq.client.producing.sender import is_timeout
from gantrymq.errors import ClientClosed, ClientError, RequestTimeout, SendOutcomeUnknown
from gantrymq.logs import peer_log
from gantrymq.protocol.message import MessageQueue

log = peer_log(__name__)

#: Bytes of a batch (batchMaxBytes).
BATCH_SIZE = 32 * 1024
#: Bytes that wait or are under way before senders wait (totalBatchMaxBytes).
BUFFER_BYTES = 32 * 1024 * 1024
#: Batches that are sent at a time. What a broker has not begun with when its time is over would be stored nevertheless.
MAX_UNDER_WAY = 64
#: The longest wait (batchMaxDelayMs) and the largest batch that Java's producer takes.
MAX_LINGER_MS = 30_000
MAX_BATCH_SIZE = 2 * 1024 * 1024
#: What `encode_batch` adds to a message's body and properties.
_OVERHEAD = 22


#: What the messages of a batch have in common: the topic, and the queue if they are for one.
BatchKey = tuple[str, MessageQueue | None]


class _Batch:
    __slots__ = ("futures", "is_sent", "key", "parts", "size", "timeout_ms", "timer")

    def __init__(self, key: BatchKey, timer: asyncio.TimerHandle) -> None:
        self.key = key
        self.timer = timer
        self.parts: list[Outgoing] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.size = 0
        self.timeout_ms = 0
        self.is_sent = False


Send = Callable[[BatchKey, Sequence[Outgoing], int], Awaitable[SendResult]]


class BatchAccumulator:
    """Gathers messages until there are `batch_size` bytes of a key, or `linger_ms` have passed since its first.

    `send` sends a batch, MAX_UNDER_WAY at a time. While more than `buffer_bytes` are held, `room` waits.
    """

    def __init__(
        self, send: Send, linger_ms: float, batch_size: int = BATCH_SIZE, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        """Raises ClientError for sizes and times that are out of bounds."""
        if not 0 < linger_ms <= MAX_LINGER_MS:
            raise ClientError(f"linger_ms {linger_ms}: more than 0, at most {MAX_LINGER_MS} are possible")
        if not 0 < batch_size <= MAX_BATCH_SIZE:
            raise ClientError(f"batch_size {batch_size}: 1 to {MAX_BATCH_SIZE} are possible")
        if buffer_bytes < 1:
            raise ClientError(f"buffer_bytes {buffer_bytes}: must be more than 0")
        self._send = send
        self._linger_s = linger_ms / 1000
        self._batch_size = batch_size
        self.buffer_bytes = buffer_bytes
        self._loop = asyncio.get_running_loop()
        self._open: dict[BatchKey, _Batch] = {}
        #: Held now.
        self.bytes = 0
        #: A batch has begun: whoever goes on adding should let the event loop go round, by `room`.
        self.has_begun = False
        self._slots = asyncio.Semaphore(MAX_UNDER_WAY)
        #: When a batch was answered last, in the loop's time.
        self._answered = 0.0
        self._under_way = Tasks("the send of a batch")
        self._waiters: deque[asyncio.Future[None]] = deque()

    def add(self, key: BatchKey, part: Outgoing, timeout_ms: int) -> asyncio.Future[SendResult]:
        """Puts a message into a batch; the future is its own result, or the error of the whole batch.

        A batch's time is the longest of its messages', from when it is sent. It isn't sent at all when MAX_UNDER_WAY
        others were, and none of them was answered for so long.
        """
        size = len(part[1]) + len(part[2]) + _OVERHEAD
        batch = self._open.get(key)
        if batch is not None and batch.size + size > self._batch_size:
            self._start(batch)
            batch = None
        if batch is None:
            timer = self._loop.call_later(self._linger_s, self._linger_over, key)
            batch = self._open[key] = _Batch(key, timer)
        future: asyncio.Future[SendResult] = self._loop.create_future()
        batch.parts.append(part)
        batch.futures.append(future)
        batch.size += size
        self.bytes += size
        if timeout_ms > batch.timeout_ms:
            batch.timeout_ms = timeout_ms
        if batch.size >= self._batch_size:
            self._start(batch)
        return future

    async def room(self) -> None:
        """Returns when less than `buffer_bytes` are held, or were a moment ago; in the order of the calls."""
        self.has_begun = False
        if self.bytes < self.buffer_bytes:
            await asyncio.sleep(0)
        else:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    async def flush(self) -> None:
        """Sends what has gathered; returns when everything is answered, or has failed."""
        for batch in list(self._open.values()):
            self._start(batch)
        await self._under_way.wait()

    async def close(self, timeout_s: float) -> None:
        """`flush`, for so long at most: what isn't answered then ends with ClientClosed."""
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
            # Who needn't wait is sent, however long this loop was busy with other things.
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
            results = split_result(result, batch.parts)
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
        """Whatever ended the send, nobody waits for it any more."""
        for future in batch.futures:
            if future.done():
                continue
            if isinstance(error, asyncio.CancelledError):
                # By the close, or at the end of the loop.
                topic = batch.key[0]
                if batch.is_sent:
                    future.set_exception(SendOutcomeUnknown(f"a batch to {topic} had no answer at the close", topic))
                else:
                    future.set_exception(ClientClosed(f"a batch to {topic} was not sent before the close"))
            else:
                future.set_exception(own_copy(error))
            # It is in the log: asyncio need not tell of each message whose sender doesn't look.
            future.exception()


def split_result(result: SendResult, parts: Sequence[Outgoing]) -> list[SendResult]:
    """Each message's own result out of its batch's.

    A queue that keeps batches whole (BatchCQ) has one offset message id for all.
    """
    if len(parts) == 1:
        return [result]
    status, _, queue, first, ids, transaction_id, recall_handle, region_id, trace_on = result
    offset_ids = ids.split(",")
    if len(offset_ids) != len(parts):
        offset_ids = [ids] * len(parts)
    return [
        SendResult(status, part.msg_id, queue, first + i, offset_id, transaction_id, recall_handle, region_id, trace_on)
        for i, (part, offset_id) in enumerate(zip(parts, offset_ids, strict=True))
    ]
