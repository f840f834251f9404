"""DirectSends: starts an ordinary send without a coroutine for each layer. The hot path of `Producer.send`.

A send is ordinary if its request can be written at once, and its message needs none of the special headers. `Sender`
handles all other sends and all further attempts.

Figures: docs/decisions/plain-sends.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from gantrymq.client.producing.message_encoder import Encoder
from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.client.producing.send_attempt import Outcome, SendAttempt
from gantrymq.client.producing.send_command import plain_frame, send_frame
from gantrymq.client.producing.sender import Sender
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.properties import DEDUPLICATE_ID, LITE_TOPIC, MESSAGE_TYPE, SHARDING_KEY, TRANSACTION_PREPARED
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.pending_requests import Waiting
from gantrymq.remoting.responses import LARGE_BODY
from gantrymq.system.clock import monotonic, now_ms

#: Largest number of cached topics with their timeouts.
MAX_TOPICS = 1024

#: Messages with one of these properties need the sender: another request code, another header, or a certain queue.
_SPECIAL = frozenset({DEDUPLICATE_ID, LITE_TOPIC, MESSAGE_TYPE, SHARDING_KEY, TRANSACTION_PREPARED})
#: Creates a NamedTuple in half the time of its own constructor.
_new = tuple.__new__


class FrameWriter(Protocol):
    """Writes requests: a connection of the event loop, or a blocking one."""

    @property
    def is_writable(self) -> bool: ...
    def next_opaque(self) -> int: ...
    def send_frame(self, frame: bytes, opaque: int, timeout_ms: int, waiting: Waiting) -> None: ...


#: Returns the writer of the requests to the server of an open connection, or None if there is none.
WriterTo = Callable[[Connection], FrameWriter | None]


class _Target(NamedTuple):
    """The open connection to a queue's master, the writer and the constant bytes of its requests."""

    connection: Connection
    writer: FrameWriter
    before: bytes
    after: bytes


class _Topic(NamedTuple):
    """A topic's queues in the present routes, with the targets that were used."""

    #: `Routes.changes` when the queues were found.
    changes: int
    info: TopicPublishInfo
    try_timeout_ms: int
    targets: dict[MessageQueue, _Target]


class DirectSends:
    """Starts the ordinary sends of a producer without a namespace, middleware and hooks, in one thread at a time.

    Without `writer_to`, the connections of the event loop write the requests.
    """

    def __init__(self, sender: Sender, encoder: Encoder, writer_to: WriterTo | None = None) -> None:
        self.sender = sender
        self._writer_to = writer_to
        self._faults = sender.faults
        self._encoder = encoder
        self._routes = sender.client.routes
        self._topics: dict[tuple[str, int], _Topic] = {}
        self._largest = min(encoder.largest_uncompressed, LARGE_BODY)
        self._largest_plain = min(self._largest, encoder.max_message_size)

    def begin(self, message: Message, timeout_ms: int, outcome: Outcome) -> SendAttempt | None:
        """Writes the request of the first attempt, and passes its outcome to `outcome`.

        Returns None if the send is not ordinary. Raises IllegalMessage.
        """
        topic, body, properties = message.topic, message.body, message.properties
        known = self._topics.get((topic, timeout_ms))
        if known is None or known[0] != self._routes.changes:
            known = self._find(topic, timeout_ms)
            if known is None:
                return None
        size = len(body) if type(body) is bytes else 0
        if message.flag != 0 or size > self._largest:
            return None
        encoder = self._encoder
        if properties or not 0 < size <= self._largest_plain:
            if properties and not properties.keys().isdisjoint(_SPECIAL):
                return None
            encoded = encoder.encode(topic, message, properties)
            msg_id, own_properties = encoded.msg_id, encoded.properties
        else:
            msg_id, own_properties = "", b""
        _, info, try_timeout_ms, targets = known
        began = monotonic()
        faults = self._faults
        if faults is None or not info.has_several_brokers:
            queue = info.select()
        else:
            queue = faults.select(info, None, int(began * 1000))
        target = targets.get(queue)
        if target is None or not target.writer.is_writable:
            target = self._find_target(queue, timeout_ms, targets)
            if target is None:
                # The sender opens the connection.
                info.put_back()
                return None
        connection, writer, before, after = target
        opaque, born_ms = writer.next_opaque(), now_ms()
        if own_properties:
            frame = send_frame(before, after, opaque, born_ms, own_properties, body)
        else:
            head, number = encoder.unique_keys.take(born_ms)
            frame, msg_id = plain_frame(before, after, opaque, born_ms, head, number, body)
        fault = None if faults is None else faults.begin(queue.broker_name, int(began * 1000))
        attempt = _new(
            SendAttempt,
            (
                outcome,
                msg_id,
                body,
                own_properties,
                queue,
                connection,
                opaque,
                info,
                fault,
                began,
                try_timeout_ms,
                timeout_ms,
            ),
        )
        writer.send_frame(frame, opaque, try_timeout_ms, attempt)
        return attempt

    def _find(self, topic: str, timeout_ms: int) -> _Topic | None:
        """Caches the topic's queues. Returns None if its route must be requested or no time is left."""
        info = self.sender.known_publish_info(topic)
        if info is None or timeout_ms <= 0 or topic.startswith(RETRY_TOPIC_PREFIX):
            return None
        if len(self._topics) >= MAX_TOPICS:
            self._topics.clear()
        try_timeout_ms = self.sender.first_try_timeout_ms(info, timeout_ms)
        known = _Topic(self._routes.changes, info, try_timeout_ms, {})
        self._topics[topic, timeout_ms] = known
        return known

    def _find_target(
        self, queue: MessageQueue, timeout_ms: int, targets: dict[MessageQueue, _Target]
    ) -> _Target | None:
        """Caches the connection to the queue's master. Returns None if it is not open, or if it is full."""
        address = self._routes.master_address(queue.broker_name)
        connection = None if address is None else self.sender.client.remoting.open_connection(address)
        if connection is None or not connection.is_writable:
            return None
        writer = connection if self._writer_to is None else self._writer_to(connection)
        if writer is None:
            return None
        target = targets[queue] = _Target(connection, writer, *self.sender.constant_fields(queue, timeout_ms))
        return target
