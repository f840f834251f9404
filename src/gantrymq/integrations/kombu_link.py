"""The asynchronous half of the transport for Kombu: one connection's clients, on an event loop in a thread.

Kombu's side asks for messages when it has room for them (`ask`), goes on with its work, and is woken (`fileno`) when
some have arrived. So Celery's worker waits in its own event loop, and none is fetched that it has no room for.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from gantrymq.background.loop_thread import LoopThread
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ClientClosed, GantryError, NoRouteInfo
from gantrymq.integrations.held import ConnectionOptions, HeldMessages
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC

log = peer_log(__name__)

T = TypeVar("T")

#: How long a broker may wait for messages before it answers, ms.
AWAIT_MS = 10_000
#: How long who asks for a message at once waits for it, ms: a broker looks into all its queues in it.
_AT_ONCE_MS = 500
#: How soon a queue is asked again after an error, s.
_PAUSE_S = 1.0
#: How long the close waits for acknowledgements under way, s.
_ACK_S = 3.0


class Arrived(NamedTuple):
    """A message, or why a queue can't be read."""

    queue: str
    message: MessageExt | None
    error: GantryError | None = None


class _Source:
    """One queue's consumer."""

    def __init__(self, consumer: SimpleConsumer, held: HeldMessages) -> None:
        self.consumer = consumer
        self.held = held
        self.started = False
        #: Messages asked for, that haven't arrived yet.
        self.asked = 0


class Link:
    """Sends to topics and receives from them, each with a group of its own; for callers in any thread.

    `names` says a queue's topic and group. Calls raise what the producer and the consumers raise.
    """

    def __init__(
        self, name_servers: str, names: Callable[[str], tuple[str, str]], invisible_ms: int, options: ConnectionOptions
    ) -> None:
        self._name_servers = name_servers
        self._names = names
        self._invisible_ms = invisible_ms
        self._options = options
        self._thread = LoopThread("gantrymq-kombu")
        self._producer = Producer(name_servers, "kombu-clients", **options)
        self._sources: dict[str, _Source] = {}
        self._arrived: deque[Arrived] = deque()
        self._acks: set[Future[None]] = set()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def open(self) -> None:
        """Starts the thread and the producer. Raises a RemotingError when no NameServer answers."""
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives back what is held, after acknowledgements under way have been sent."""
        wait_for(list(self._acks), _ACK_S)
        try:
            self._run(self._close())
        finally:
            self._thread.stop()
            self._woken.close()
            self._wake.close()

    def send(self, message: Message) -> None:
        """Returns when a broker has it."""
        self._run(self._producer.send(message))

    def topic(self, queue: str) -> str:
        """The topic of a queue."""
        return self._names(queue)[0]

    # -- receiving ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Can be read when something has arrived; `wait` empties it."""
        return self._woken.fileno()

    def asked(self, queue: str) -> int:
        """How many messages of a queue are on their way, or here and not taken."""
        source = self._sources.get(queue)
        return (source.asked if source else 0) + sum(arrived.queue == queue for arrived in list(self._arrived))

    def is_asking(self) -> bool:
        """Whether something may arrive."""
        return any(source.asked for source in self._sources.values())

    def ask(self, queue: str, count: int) -> None:
        """Has up to so many messages fetched, unless some of that queue are on their way."""
        source = self._source(queue)
        if source.asked == 0:
            source.asked = count
            self._thread.submit(self._fetch(queue, source, count))

    def take(self) -> Arrived | None:
        """What has arrived, one at a time; None: nothing."""
        return self._arrived.popleft() if self._arrived else None

    def wait(self, timeout_s: float) -> None:
        """Returns when something has arrived, or after that time."""
        self._woken.settimeout(max(timeout_s, 0.0))
        with suppress(TimeoutError, BlockingIOError):
            self._woken.recv(4096)

    def receive(self, queue: str) -> MessageExt | None:
        """One message of a queue, if there is one."""
        try:
            messages = self._run(self._receive(self._source(queue), 1, _AT_ONCE_MS))
        except NoRouteInfo:
            # Nobody has sent it anything.
            return None
        return messages[0] if messages else None

    def ack(self, queue: str, message: MessageExt) -> None:
        """Says that a message is done; doesn't wait for the answer. It is said again while no broker is there."""
        self._tell(self._source(queue).held.ack(message), message)

    def give_back(self, queue: str, message: MessageExt) -> None:
        """Has a message come again at once; doesn't wait for the answer."""
        self._tell(self._source(queue).held.give_back(message), message)

    def drop(self, queue: str, message: MessageExt) -> None:
        """Holds a message no longer."""
        self._source(queue).held.drop(message)

    def _source(self, queue: str) -> _Source:
        if queue not in self._sources:
            topic, group = self._names(queue)
            consumer = SimpleConsumer(self._name_servers, group, **self._options)
            consumer.subscribe(topic)
            self._sources[queue] = _Source(consumer, HeldMessages(consumer, self._invisible_ms))
        return self._sources[queue]

    def _tell(self, work: Coroutine[Any, Any, None], message: MessageExt) -> None:
        def told(future: Future[None]) -> None:
            self._acks.discard(future)
            error = None if future.cancelled() else future.exception()
            if error is not None:
                log.warning("%s comes again: %s", message.place, error)

        future = self._thread.submit(work)
        self._acks.add(future)
        future.add_done_callback(told)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(work).result()

    # -- in the thread ----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._producer.start()
        # Which topic doesn't matter: somebody answers.
        with suppress(NoRouteInfo, BrokerError):
            await self._producer.client.routes.get(AUTO_CREATE_TOPIC)

    async def _receive(self, source: _Source, count: int, await_ms: int) -> list[MessageExt]:
        if not source.started:
            await source.consumer.start()
            source.held.start()
            source.started = True
        return await source.held.receive(count, await_ms)

    async def _fetch(self, queue: str, source: _Source, count: int) -> None:
        try:
            messages = await self._receive(source, count, AWAIT_MS)
            self._arrived.extend(Arrived(queue, message) for message in messages)
        except ClientClosed:
            pass
        except GantryError as e:
            if not source.started:
                # Kombu's user connects again.
                self._arrived.append(Arrived(queue, None, e))
            else:
                level = log.debug if isinstance(e, NoRouteInfo) else log.warning
                level("no messages of queue %s: %s", queue, e)
                await asyncio.sleep(_PAUSE_S)
        finally:
            source.asked = 0
            with suppress(OSError):
                self._wake.send(b"\0")

    async def _close(self) -> None:
        for source in self._sources.values():
            if source.started:
                await source.held.stop()
                await source.consumer.close()
        await self._producer.close()
