"""Blocking clients, for programs without asyncio.

Example:
    with SyncProducer(Producer("127.0.0.1:9876", "group")) as producer:
        producer.send(Message("topic", b"body"))

Each client wraps an asyncio client and runs it on an event loop in its own thread. A method has the same effect as the
wrapped client's method, and blocks until it is done.

Methods are thread-safe. However, the thread of the event loop, which also runs coroutine handlers, must not call them.
After a fork, the child process must create new clients.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.broker_api import SendResult
from gantrymq.client.consuming.assignment import WAIT_S, Health
from gantrymq.client.consuming.consumer_base import GroupConsumer, GroupMember, PullingConsumer
from gantrymq.client.consuming.lite_pull_consumer import MAX_POLL_MESSAGES, POLL_TIMEOUT_S, LitePullConsumer
from gantrymq.client.consuming.push_consumer import HandlerT, PushConsumer
from gantrymq.client.lifecycle import CLOSE_TIMEOUT_S
from gantrymq.client.popping.lite_consumer import LiteConsumer
from gantrymq.client.popping.lite_push_consumer import LiteHandlerT, LitePushConsumer
from gantrymq.client.popping.lite_simple_consumer import LiteSimpleConsumer
from gantrymq.client.popping.poll_rotation import INVISIBLE_S, MAX_MESSAGES, RECEIVE_TIMEOUT_S
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.cross_thread_queue import CrossThreadQueue
from gantrymq.client.producing.cross_thread_sends import CrossThreadSends
from gantrymq.client.producing.producer import TIMEOUT_S, Producer
from gantrymq.client.producing.queue_selector import QueueSelector
from gantrymq.client.producing.transaction_producer import TransactionProducer, TransactionSendResult
from gantrymq.errors import ClientClosed, ClientError, GantryError, ThreadDied
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.lite import OffsetOption
from gantrymq.protocol.message import Message, MessageExt, MessageQueue

log = peer_log(__name__)

AFTER_FORK = "this client was started before a fork: make a new one in the child"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S", bound="type[_Sync]")


class _Pending(Protocol[T_co]):
    """A future that one thread waits for."""

    def result(self) -> T_co: ...
    def cancel(self) -> bool: ...


def _documented_by(asynchronous: type) -> Callable[[S], S]:
    """Returns a decorator that copies missing docstrings of public members from the asyncio class."""

    def document(synchronous: S) -> S:
        for name, member in vars(synchronous).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)) and not member.__doc__:
                member.__doc__ = inspect.getdoc(getattr(asynchronous, name))
        return synchronous

    return document


class _Sync:
    """Runs an asyncio client on an event loop in its own thread.

    If a handler, a middleware or a listener in the thread raises SystemExit or KeyboardInterrupt, the thread ends and
    the client is closed. Pending calls and the next call raise ThreadDied.

    Ctrl-C cancels the interrupted call. If this call is `start`, the client is closed again. If the interrupted call is
    `close`, the close continues until it is done or its timeout ends. A second Ctrl-C ends this wait.
    """

    def __init__(self, client: Producer | GroupMember) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        #: Id of the process that started the thread.
        self._started_in = 0
        #: True after a call has raised ThreadDied.
        self._death_is_told = False
        #: Guards the submission of work, so that no work is submitted after the thread has ended.
        self._lock = threading.Lock()
        #: Guards the end of the thread, which can take as long as a close. If the end is interrupted, the next call
        #: continues it.
        self._ending = threading.Lock()
        self._is_ending = False

    def start(self) -> None:
        """Starts the thread and the client.

        Raises:
            ClientError: The client is already started.
            GantryError: The wrapped client could not start. The thread is ended.
        """
        with self._lock:
            if self._thread is not None:
                raise ClientError("this client is already started")
            self._death_is_told = self._is_ending = False
            self._started_in = os.getpid()
            self._thread = LoopThread("gantrymq-client", self._client.close)
        try:
            self._thread.start()
            self._wait(self._client.start())
        except BaseException:
            self._stop_thread()
            raise

    def close(self) -> None:
        """Closes the client and ends its thread. Further calls have no effect.

        Pending calls of other threads raise ClientClosed. In a forked child process, `close` has no effect.

        Raises:
            ThreadDied: The thread ended with an exception, and no earlier call has raised this error.
            ClientError: A coroutine handler called this method.
        """
        self._refuse_own_thread()
        if self._thread is None or self._was_forked:
            return
        is_told = self._death_is_told
        try:
            self._wait(self._close_client())
        except ClientClosed:
            log.debug("closed by another thread meanwhile")
        except ThreadDied:
            if not is_told:
                raise
        finally:
            self._stop_thread()

    async def _close_client(self) -> None:
        await self._client.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the event loop, blocks until it ends, and returns its result.

        Raises the error of `work`. Raises ClientClosed if the client is closed, and ThreadDied if its thread has ended.
        """
        try:
            future = self._submit(work)
        except GantryError as e:
            work.close()
            self._death_is_told |= isinstance(e, ThreadDied)
            raise
        return self._result_of(future)

    def _result_of(self, future: _Pending[T]) -> T:
        """Blocks until `future` is done, and returns its result or raises its error. Cancels it on Ctrl-C."""
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed("this client was closed meanwhile") from None
        except ThreadDied:
            self._death_is_told = True
            raise
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _in_loop(self, change: Callable[[], T]) -> T:
        """Runs `change` and returns its result. If the client is started, it runs in the event loop's thread."""

        async def work() -> T:
            return change()

        return change() if self._thread is None else self._wait(work())

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Submits `work` to the event loop. Raises ClientError, ClientClosed or ThreadDied."""
        self._refuse_own_thread()
        if self._was_forked:
            raise ClientClosed(AFTER_FORK)
        with self._lock:
            return self._running_thread().submit(work)

    def _running_thread(self) -> LoopThread:
        """Returns the thread of a started client, for a caller that has `_lock`. Raises ClientClosed."""
        if self._thread is None or self._is_ending:
            raise ClientClosed("this client is not started, or closed: use it inside `with`")
        return self._thread

    @property
    def _was_forked(self) -> bool:
        """True in a forked child process, which has the parent's memory but not its threads."""
        return self._thread is not None and self._started_in != os.getpid()

    def _refuse_own_thread(self) -> None:
        """Raises ClientError in the thread of the event loop, where a blocking call would be a deadlock."""
        if self._thread is not None and self._thread.is_current:
            raise ClientError("the client's own thread would wait for itself: make the handler a plain function")

    def _stop_thread(self) -> None:
        """Closes the client if it is still open, and ends the thread."""
        with self._ending:
            with self._lock:
                self._is_ending = True
            thread = self._thread
            if thread is None:
                return
            if thread.is_alive and thread.error is None:
                # After an interrupted start or close, connections are still open. Only the event loop can close them.
                with suppress(GantryError, CancelledError):  # The error is logged, and the thread ends in any case.
                    thread.submit(self._client.close(timeout=0.0)).result()
            thread.stop()
            self._thread = None


@_documented_by(Producer)
class SyncProducer(_Sync):
    """A blocking producer: `SyncProducer(Producer(...))`.

    `send` waits for the result. While only one thread sends, it uses a second connection to each broker, in this
    thread. For many messages, `enqueue` returns at once, and `flush` waits for all results.

    Args:
        producer: The asyncio producer to wrap. It must not be started.
    """

    def __init__(self, producer: Producer) -> None:
        super().__init__(producer)
        self._producer = producer
        self._enqueued: CrossThreadQueue | None = None
        self._sends: CrossThreadSends | None = None

    async def _close_client(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_TIMEOUT_S
        if self._enqueued is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._enqueued.drained()
        await self._client.close(timeout=max(deadline - loop.time(), 0.0))

    def enqueue(
        self, message: Message, *, queue: MessageQueue | None = None, timeout: float | timedelta = TIMEOUT_S
    ) -> Future[SendResult]:
        """Adds `message` to a batch and returns a `concurrent.futures.Future` for its result.

        The producer needs `linger`. The call blocks only while 10,000 messages of all threads wait for the producer,
        whose batches have at most `buffer_bytes`. Batches can overtake each other. To keep an order, wait for each
        result. A message that cannot be sent fails its future, and is logged.

        Args:
            message: Message to send. Must not be changed afterwards.
            queue: Queue to send to. Default: the client selects one, as in `send`.
            timeout: Timeout from the send of the batch, in seconds or as a timedelta. Default: 3.0.

        Raises:
            ClientClosed: The producer is not started, or closed.
            ThreadDied: The thread of the producer has ended.
        """
        self._refuse_own_thread()
        if self._was_forked:
            raise ClientClosed(AFTER_FORK)
        with self._lock:
            thread = self._running_thread()
            enqueued = self._enqueued
            if enqueued is None or enqueued.thread is not thread:
                enqueued = self._enqueued = CrossThreadQueue(self._producer, thread)
        return enqueued.add(message, queue, timeout)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        timeout: float | timedelta = TIMEOUT_S,
    ) -> SendResult:
        if queue is not None or select is not None:
            return self._wait(self._producer.send(message, queue=queue, select=select, timeout=timeout))
        self._refuse_own_thread()
        if self._was_forked:
            raise ClientClosed(AFTER_FORK)
        sent = self._producer.send_blocking(message, timeout=timeout)
        if isinstance(sent, SendResult):
            return sent
        if sent is not None:
            return self._wait(sent)
        try:
            with self._lock:
                thread, sends = self._running_thread(), self._sends
                if sends is None or sends.thread is not thread:
                    sends = self._sends = CrossThreadSends(self._producer, thread)
                future = sends.add(message, timeout)
        except ThreadDied:
            self._death_is_told = True
            raise
        try:
            return self._result_of(future)
        except KeyboardInterrupt:
            with suppress(ThreadDied):
                sends.cancel(future)
            raise

    def flush(self) -> None:
        """Sends all open batches at once, and waits until the sends of all threads in them have a result or an error.

        Without `linger` there are no batches, and the call has no effect.
        """
        self._wait(self._flush())

    async def _flush(self) -> None:
        if self._enqueued is not None:
            await self._enqueued.drained()
        await self._producer.flush()

    def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        self._wait(self._producer.send_oneway(message, queue))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout: float | timedelta = TIMEOUT_S
    ) -> SendResult:
        return self._wait(self._producer.send_batch(messages, queue=queue, timeout=timeout))

    def request(self, message: Message, *, timeout: float | timedelta = TIMEOUT_S) -> MessageExt:
        return self._wait(self._producer.request(message, timeout=timeout))

    def recall(self, topic: str, recall_handle: str, *, timeout: float | timedelta = TIMEOUT_S) -> str:
        return self._wait(self._producer.recall(topic, recall_handle, timeout=timeout))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return self._wait(self._producer.queues(topic))


@_documented_by(TransactionProducer)
class SyncTransactionProducer(SyncProducer):
    """A blocking transaction producer: `SyncTransactionProducer(TransactionProducer(...))`.

    The methods of its listener should be plain functions, not coroutine functions.

    Args:
        producer: The asyncio producer to wrap. It must not be started.
    """

    def __init__(self, producer: TransactionProducer) -> None:
        super().__init__(producer)
        self._transactions = producer

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout: float | timedelta = TIMEOUT_S
    ) -> TransactionSendResult:
        return self._wait(self._transactions.send_in_transaction(message, arg, timeout=timeout))


@_documented_by(GroupConsumer)
class _SyncConsumer(_Sync):
    """A blocking consumer. Its subscriptions can change while it runs."""

    def __init__(self, consumer: GroupConsumer) -> None:
        super().__init__(consumer)
        self._group_consumer = consumer

    def subscribe(self, topic: str, *, tags: str | None = None, sql: str | None = None) -> None:
        self._in_loop(lambda: self._group_consumer.subscribe(topic, tags=tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        self._in_loop(lambda: self._group_consumer.unsubscribe(topic))


@_documented_by(PullingConsumer)
class _SyncPullingConsumer(_SyncConsumer):
    """A blocking consumer with assigned queues.

    If its callbacks `on_assigned` and `on_revoked` are plain functions, they run in other threads and can therefore
    call this consumer.
    """

    def __init__(self, consumer: PullingConsumer) -> None:
        super().__init__(consumer)
        self._pulling = consumer
        consumer.notify_in_threads()

    @property
    def assignment(self) -> set[MessageQueue]:
        return self._in_loop(lambda: self._pulling.assignment)

    def wait_assigned(self, *, timeout: float | timedelta = WAIT_S) -> set[MessageQueue]:
        return self._wait(self._pulling.wait_assigned(timeout=timeout))

    def health(self) -> Health:
        return self._in_loop(self._pulling.health)

    def lag(self) -> dict[MessageQueue, int]:
        return self._in_loop(self._pulling.lag)


@_documented_by(PushConsumer)
class SyncPushConsumer(_SyncPullingConsumer):
    """A blocking push consumer: `SyncPushConsumer(PushConsumer(...))`.

    It calls the handler from `start` to `close`. The handler should be a plain function, not a coroutine function.

    Args:
        consumer: The asyncio consumer to wrap. It must not be started.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer)
        self._push = consumer

    def handler(self, handler: HandlerT) -> HandlerT:
        return self._push.handler(handler)


@_documented_by(SimpleConsumer)
class SyncSimpleConsumer(_SyncConsumer):
    """A blocking simple consumer: `SyncSimpleConsumer(SimpleConsumer(...))`.

    Args:
        consumer: The asyncio consumer to wrap. It must not be started.
    """

    def __init__(self, consumer: SimpleConsumer) -> None:
        super().__init__(consumer)
        self._consumer = consumer

    def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_time: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = RECEIVE_TIMEOUT_S,
    ) -> list[MessageExt]:
        return self._wait(self._consumer.receive(max_messages, invisible_time=invisible_time, timeout=timeout))

    def ack(self, message: MessageExt) -> None:
        self._wait(self._consumer.ack(message))

    def change_invisible_time(self, message: MessageExt, invisible_time: float | timedelta) -> None:
        self._wait(self._consumer.change_invisible_time(message, invisible_time))


@_documented_by(LiteConsumer)
class _SyncLiteConsumer(_Sync):
    """A blocking consumer of lite topics."""

    def __init__(self, consumer: LiteConsumer) -> None:
        super().__init__(consumer)
        self._lite_consumer = consumer

    def subscribe_lite(self, lite_topic: str, *, offset_option: OffsetOption | None = None) -> None:
        self._wait(self._lite_consumer.subscribe_lite(lite_topic, offset_option=offset_option))

    def unsubscribe_lite(self, lite_topic: str) -> None:
        self._wait(self._lite_consumer.unsubscribe_lite(lite_topic))

    @property
    def lite_topic_set(self) -> frozenset[str]:
        return self._in_loop(lambda: self._lite_consumer.lite_topic_set)


@_documented_by(LiteSimpleConsumer)
class SyncLiteSimpleConsumer(_SyncLiteConsumer):
    """A blocking simple consumer of lite topics: `SyncLiteSimpleConsumer(LiteSimpleConsumer(...))`.

    Args:
        consumer: The asyncio consumer to wrap. It must not be started.
    """

    def __init__(self, consumer: LiteSimpleConsumer) -> None:
        super().__init__(consumer)
        self._consumer = consumer

    def receive(
        self,
        max_messages: int = MAX_MESSAGES,
        *,
        invisible_time: float | timedelta = INVISIBLE_S,
        timeout: float | timedelta = RECEIVE_TIMEOUT_S,
    ) -> list[MessageExt]:
        return self._wait(self._consumer.receive(max_messages, invisible_time=invisible_time, timeout=timeout))

    def ack(self, message: MessageExt) -> None:
        self._wait(self._consumer.ack(message))

    def change_invisible_time(self, message: MessageExt, invisible_time: float | timedelta) -> None:
        self._wait(self._consumer.change_invisible_time(message, invisible_time))


@_documented_by(LitePushConsumer)
class SyncLitePushConsumer(_SyncLiteConsumer):
    """A blocking push consumer of lite topics: `SyncLitePushConsumer(LitePushConsumer(...))`.

    It calls the handler from `start` to `close`. The handler should be a plain function, not a coroutine function.

    Args:
        consumer: The asyncio consumer to wrap. It must not be started.
    """

    def __init__(self, consumer: LitePushConsumer) -> None:
        super().__init__(consumer)
        self._push = consumer

    def handler(self, handler: LiteHandlerT) -> LiteHandlerT:
        return self._push.handler(handler)


@_documented_by(LitePullConsumer)
class SyncLitePullConsumer(_SyncPullingConsumer):
    """A blocking pull consumer: `SyncLitePullConsumer(LitePullConsumer(...))`.

    Example:
        consumer = SyncLitePullConsumer(LitePullConsumer("127.0.0.1:9876", "group"))
        consumer.subscribe("topic")
        with consumer:
            for message in consumer:
                ...

    Args:
        consumer: The asyncio consumer to wrap. It must not be started.
    """

    def __init__(self, consumer: LitePullConsumer) -> None:
        super().__init__(consumer)
        self._consumer = consumer

    def poll(
        self, *, max_messages: int = MAX_POLL_MESSAGES, timeout: float | timedelta = POLL_TIMEOUT_S
    ) -> list[MessageExt]:
        return self._wait(self._consumer.poll(max_messages=max_messages, timeout=timeout))

    def __iter__(self) -> Iterator[MessageExt]:
        """Yields messages until the client is closed. Blocks while there are no messages."""
        while self._thread is not None:
            try:
                messages = self.poll(max_messages=1)
            except ClientClosed:
                return
            yield from messages

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self._wait(self._consumer.commit(offsets))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._wait(self._consumer.queues(topic))

    def assign(self, queues: Iterable[MessageQueue], *, tags: str | None = None, sql: str | None = None) -> None:
        self._wait(self._consumer.assign(queues, tags=tags, sql=sql))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._in_loop(lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._in_loop(lambda: self._consumer.resume(queues))

    @property
    def paused(self) -> set[MessageQueue]:
        return self._in_loop(lambda: self._consumer.paused)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._wait(self._consumer.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._wait(self._consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._wait(self._consumer.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp: datetime | int) -> None:
        self._wait(self._consumer.seek_to_time(queue, timestamp))

    def offset_for_time(self, queue: MessageQueue, timestamp: datetime | int) -> int:
        return self._wait(self._consumer.offset_for_time(queue, timestamp))

    def end_offset(self, queue: MessageQueue) -> int:
        return self._wait(self._consumer.end_offset(queue))

    def position(self, queue: MessageQueue) -> int:
        return self._in_loop(lambda: self._consumer.position(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._wait(self._consumer.committed(queue))
