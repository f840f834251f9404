"""Link: the asynchronous part of the transport for Kombu. Runs the clients of a connection in a thread.

Kombu's part requests messages (`ask`) when it may deliver more, and continues with other work. `fileno` becomes
readable when messages arrive. Celery's worker can therefore wait in its own event loop, and fetches no more messages
than its limit permits.
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
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.namespace import wrap_namespace
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, ClientClosed, GantryError, NoRouteInfo
from gantrymq.integrations.in_flight import ConnectionOptions, InFlightMessages
from gantrymq.logs import peer_log
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC

log = peer_log(__name__)

T = TypeVar("T")

#: Longest time that a broker waits for messages, in seconds.
RECEIVE_TIMEOUT_S = 10.0
#: Wait of an immediate request for a message, in seconds. A broker checks all its queues in this time.
_AT_ONCE_S = 0.5
#: Pause before the next request for a queue after an error, s.
_PAUSE_S = 1.0
#: Longest time that `close` waits for pending acknowledgements, s.
_ACK_S = 3.0


class Arrived(NamedTuple):
    """A message, or the error of a queue that cannot be read."""

    queue: str
    message: MessageExt | None
    error: GantryError | None = None


class _Source:
    """Consumer of one queue."""

    def __init__(self, consumer: SimpleConsumer, in_flight: InFlightMessages) -> None:
        self.consumer = consumer
        self.in_flight = in_flight
        self.started = False
        #: Number of requested messages that have not arrived.
        self.asked = 0


class Link:
    """Sends to topics and receives from queues, each with its own group. Can be used from any thread.

    `names` returns the topic and the group of a queue. Calls raise the errors of the producer and the consumers.
    """

    def __init__(
        self, name_servers: str, names: Callable[[str], tuple[str, str]], invisible_s: float, options: ConnectionOptions
    ) -> None:
        self._name_servers = name_servers
        self.names = names
        self._invisible_s = invisible_s
        self._options = options
        self._thread = LoopThread("gantrymq-kombu")
        self._producer = Producer(name_servers, "kombu-clients", **options)
        self._sources: dict[str, _Source] = {}
        self._declared: set[str] = set()
        self._arrived: deque[Arrived] = deque()
        self._acks: set[Future[None]] = set()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def open(self) -> None:
        """Starts the thread and the producer. Raises a RemotingError if no NameServer responds."""
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Waits for pending acknowledgements, requeues all other messages and stops the thread."""
        wait_for(list(self._acks), _ACK_S)
        try:
            self._run(self._close())
        finally:
            self._thread.stop()
            self._woken.close()
            self._wake.close()

    def declare(self, queue: str) -> None:
        """Creates the topic of a queue on all brokers, if it does not exist and the brokers create topics.

        Otherwise the first send would create the topic on one broker.
        """
        if queue not in self._declared and self._run(self._declare(self.topic(queue))):
            self._declared.add(queue)

    def send(self, message: Message) -> None:
        """Sends a message. Returns when a broker has stored it."""
        self._run(self._producer.send(message))

    def topic(self, queue: str) -> str:
        """Returns the topic of a queue."""
        return self.names(queue)[0]

    # -- receiving ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Returns a file descriptor that is readable when something has arrived. `wait` clears it."""
        return self._woken.fileno()

    def asked(self, queue: str) -> int:
        """Returns the number of requested messages of a queue, including those that arrived but were not taken."""
        source = self._sources.get(queue)
        return (source.asked if source else 0) + sum(arrived.queue == queue for arrived in list(self._arrived))

    def is_asking(self) -> bool:
        """Returns whether a request is in flight."""
        return any(source.asked for source in self._sources.values())

    def ask(self, queue: str, count: int) -> None:
        """Requests up to `count` messages, unless a request for this queue is in flight."""
        source = self._source(queue)
        if source.asked == 0:
            source.asked = count
            self._thread.submit(self._fetch(queue, source, count))

    def take(self) -> Arrived | None:
        """Returns the next message or error that has arrived, or None."""
        return self._arrived.popleft() if self._arrived else None

    def wait(self, timeout_s: float) -> None:
        """Waits until something has arrived, for at most `timeout_s` seconds."""
        self._woken.settimeout(max(timeout_s, 0.0))
        with suppress(TimeoutError, BlockingIOError):
            self._woken.recv(4096)

    def receive(self, queue: str) -> MessageExt | None:
        """Returns one message of a queue, or None."""
        try:
            messages = self._run(self._receive(self._source(queue), 1, _AT_ONCE_S))
        except NoRouteInfo:
            # No message has been sent to the topic yet.
            return None
        return messages[0] if messages else None

    def ack(self, queue: str, message: MessageExt) -> None:
        """Acknowledges a message without waiting for the response. Repeats the request while no broker is reachable."""
        self._submit(self._source(queue).in_flight.ack(message), message)

    def give_back(self, queue: str, message: MessageExt) -> None:
        """Requeues a message for immediate redelivery, without waiting for the response."""
        self._submit(self._source(queue).in_flight.give_back(message), message)

    def drop(self, queue: str, message: MessageExt) -> None:
        """Stops renewing a message."""
        self._source(queue).in_flight.drop(message)

    def _source(self, queue: str) -> _Source:
        if queue not in self._sources:
            topic, group = self.names(queue)
            consumer = SimpleConsumer(self._name_servers, group, **self._options)
            consumer.subscribe(topic)
            self._sources[queue] = _Source(consumer, InFlightMessages(consumer, self._invisible_s))
        return self._sources[queue]

    def _submit(self, work: Coroutine[Any, Any, None], message: MessageExt) -> None:
        def done(future: Future[None]) -> None:
            self._acks.discard(future)
            error = None if future.cancelled() else future.exception()
            if error is not None:
                log.warning("%s is redelivered: %s", message.place, error)

        future = self._thread.submit(work)
        self._acks.add(future)
        future.add_done_callback(done)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(work).result()

    # -- in the thread ----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._producer.start()
        # A request for any topic shows whether a NameServer responds.
        with suppress(NoRouteInfo, BrokerError):
            await self._producer.client.routes.get(AUTO_CREATE_TOPIC)

    async def _declare(self, topic: str) -> bool:
        """Returns whether the topic exists. If not, a later call can create it."""
        topic = wrap_namespace(self._options.get("namespace", ""), topic)
        routes = self._producer.client.routes
        try:
            await routes.get(AUTO_CREATE_TOPIC)
        except (NoRouteInfo, BrokerError):
            return False
        with suppress(NoRouteInfo):
            await routes.get(topic)
            return True
        options: Any = {name: value for name, value in self._options.items() if name != "namespace"}
        try:
            async with AdminClient(self._name_servers, **options) as admin:
                await admin.ensure_topic(topic)
        except GantryError as e:
            # The user may lack the permission, or a broker is down. The first send creates the topic on one broker.
            log.info("topic %s is not created on all brokers: %s", topic, e)
            return False
        return True

    async def _receive(self, source: _Source, count: int, timeout_s: float) -> list[MessageExt]:
        if not source.started:
            await source.consumer.start()
            source.in_flight.start()
            source.started = True
        return await source.in_flight.receive(count, timeout_s)

    async def _fetch(self, queue: str, source: _Source, count: int) -> None:
        try:
            messages = await self._receive(source, count, RECEIVE_TIMEOUT_S)
            self._arrived.extend(Arrived(queue, message) for message in messages)
        except ClientClosed:
            pass
        except GantryError as e:
            if not source.started:
                # Kombu's application reconnects on this error.
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
                await source.in_flight.stop()
                await source.consumer.close()
        await self._producer.close()
