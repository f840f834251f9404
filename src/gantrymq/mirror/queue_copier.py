"""QueueCopier: copies one source queue into one target queue, in order.

A copier has one request in flight. After a failure, the outcome of a send can be unknown. The copier therefore first
searches the end of the target queue for the newest copy of its source queue, and continues after it. It does the same
at the start, so that messages which a killed mirror copied after its last state are not copied again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gantrymq.errors import BrokerError, IllegalMessage, ProtocolError
from gantrymq.logs import peer_log
from gantrymq.mirror.cluster import PULL_MESSAGES, Cluster
from gantrymq.mirror.copies import Copies
from gantrymq.mirror.message_rate import MessageRate
from gantrymq.mirror.offset_map import OffsetMap
from gantrymq.mirror.origin import SourceQueue, is_loop
from gantrymq.mirror.state import Position
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.multi_dispatch import MULTI_DISPATCH
from gantrymq.protocol.properties import LITE_TOPIC, PRIORITY

log = peer_log(__name__)

#: Largest size of the bodies and properties of a batch, in bytes. Brokers accept 4 MiB by default.
BATCH_BYTES = 1024 * 1024
#: Brokers ignore these properties in batches: a message would get no priority, and no place in its light queues.
_NOT_IN_BATCHES = frozenset({PRIORITY, LITE_TOPIC, MULTI_DISPATCH})


class Refused(IllegalMessage):
    """The target refuses a message. A repetition has the same result until its configuration changes."""


class _Copy(NamedTuple):
    """An encoded copy. `is_single` is true if the message cannot be in a batch."""

    message: MessageExt
    body: bytes
    properties: bytes
    is_single: bool

    @property
    def size(self) -> int:
        return len(self.body) + len(self.properties)


class QueueCopier:
    """Copies `queue`. `position` is where it continues; `is_located` is false until the target was searched."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        queue: MessageQueue,
        origin: SourceQueue,
        position: Position,
        rate: MessageRate,
    ) -> None:
        self.queue = queue
        self.target_queue = MessageQueue(position.target_topic, position.target_broker, position.target_queue_id)
        self.position = position
        #: Key of the position in the state.
        self.key = origin.key(queue.topic)
        self.is_located = False
        self.copied = 0
        self.left_out = 0
        #: End of the source queue at the last pull.
        self.end = 0
        self._source = source
        self._target = target
        self._rate = rate
        self._origin = origin
        self._copies = Copies(source, target, queue, self.target_queue, origin)
        self._offset_map = OffsetMap()
        #: If set, the target queue has lost its messages before this offset, and copies from it on do not count.
        self._lost_before: int | None = None
        self._target_clusters: Collection[str] = ()

    @property
    def lag(self) -> int:
        """Number of messages in the source queue that are not copied yet, as of the last pull."""
        return max(0, self.end - self.position.source_offset)

    def failed(self) -> None:
        """Call this after `step` has raised. The next step requests routes again and searches the target."""
        self.is_located = False
        self._source.forget_route(self.queue.topic)
        self._target.forget_route(self.target_queue.topic)

    async def step(self, *, waits: bool) -> None:
        """Copies the messages of one pull. With `waits`, the pull waits for the first message.

        Raises:
            Refused: The target refuses a message. The messages before it are copied.
            GantryError: A request failed.
        """
        if not self.is_located:
            await self._locate()
            # A queue that has recovered must not be reported as failed until the next message.
            waits = False
        limit = self._rate.largest(PULL_MESSAGES)
        offset = self.position.source_offset
        pulled = await self._source.pull(self.queue, offset, limit, waits=waits)
        self.end = pulled.end
        if pulled.next_offset < offset:
            # The source has lost its newest messages, or its topic was created again.
            self.is_located = False
            return
        # A position of 0 is before the first message if the source has removed old messages.
        if not pulled.messages and pulled.next_offset != offset != 0:
            log.warning("%s: no message at offset %d, continuing at %d", self.name, offset, pulled.next_offset)
        for request in _requests(self._encoded(pulled.messages)):
            await self._rate.take(len(request))
            await self._send(request)
            if not self.is_located:
                return
        self._advance(pulled.next_offset, self.position.target_offset)

    def _advance(self, source_offset: int, target_offset: int) -> None:
        self.position = msgspec.structs.replace(self.position, source_offset=source_offset, target_offset=target_offset)

    @property
    def name(self) -> str:
        """The source queue, for log lines."""
        return f"topic {self.queue.topic}, queue {self.queue.queue_id} of {self.queue.broker_name}"

    # -- the position -------------------------------------------------------------------------------------------

    async def _locate(self) -> None:
        """Sets the position after the newest copy in the target queue."""
        self._offset_map.clear()
        self._target_clusters = await self._target.cluster_names()
        # Raises if there is no master: a slave can lack copies.
        await self._target.address(self.target_queue, master=True)
        position = self.position
        source = await self._source.bounds(self.queue)
        begin, end = await self._target.bounds(self.target_queue)
        if self._lost_before is not None:
            end = self._lost_before
        target_is_behind = position.target_offset > end
        newest = await self._copies.newest(begin, begin if target_is_behind else position.target_offset, end, source)
        next_offset = source.begin if newest.source_offset is None else newest.source_offset + 1
        source_is_behind = position.source_offset > (next_offset if newest.is_replaced else source.end)
        if newest.is_replaced or source_is_behind:
            # Raises if there is no master: a slave can lag behind, and only a master shows that messages are lost.
            await self._source.address(self.queue, master=True)
        if target_is_behind or source_is_behind:
            log.warning(
                "%s: %s lost messages, or its topic was created again; continuing at offset %d",
                self.name,
                "the source has" if source_is_behind else "the target has",
                next_offset,
            )
            self._advance(next_offset, end)
            self.position = msgspec.structs.replace(self.position, generation=position.generation + 1)
        elif newest.source_offset is not None:
            self._advance(
                max(next_offset, position.source_offset),
                max(newest.target_offset + 1, position.target_offset),
            )
        self._lost_before = None
        self.is_located = True

    # -- offsets ------------------------------------------------------------------------------------------------

    def translate(self, source_offset: int) -> int | None:
        """Returns the offset of the first copy from `source_offset` on, or a lower one; None if `search` is needed."""
        if source_offset >= self.position.source_offset:
            return self.position.target_offset
        return self._offset_map.translate(source_offset)

    async def search(self, source_offset: int, start: int | None) -> int:
        """Returns the same as `translate`. The search begins at `start`, or at the begin of the target queue."""
        end = self.position.target_offset
        if start is None:
            start = (await self._target.bounds(self.target_queue)).begin
        return await self._copies.first(source_offset, start, end)

    # -- copies -------------------------------------------------------------------------------------------------

    def _encoded(self, messages: Sequence[MessageExt]) -> Iterator[_Copy]:
        for message in messages:
            if message.is_damaged:
                log.error("message at %s is not readable and is not copied", message.place)
                self.left_out += 1
            elif is_loop(message, self._target_clusters):
                self.left_out += 1
            else:
                is_single = message.compression_flags != 0 or not _NOT_IN_BATCHES.isdisjoint(message.properties)
                yield _Copy(message, message.stored_body, self._origin.properties_of(message), is_single)

    async def _send(self, request: Sequence[_Copy]) -> None:
        """Sends a request. If the target refuses a batch, sends its messages one by one."""
        first = request[0].message
        try:
            if len(request) == 1:
                copy = request[0]
                result = await self._target.send(
                    self.target_queue,
                    copy.body,
                    copy.properties,
                    first.born_timestamp,
                    flag=first.flag,
                    sys_flag=first.compression_flags,
                )
            else:
                body = encode_batch((copy.message.flag, copy.body, copy.properties) for copy in request)
                result = await self._target.send(self.target_queue, body, b"", first.born_timestamp, batch=True)
        except (BrokerError, ProtocolError) as e:
            if isinstance(e, BrokerError) and e.code != ResponseCode.MESSAGE_ILLEGAL:
                raise
            if len(request) == 1:
                raise Refused(
                    f"the target refuses the message at {first.place} ({request[0].size:,} bytes): {e}; this queue "
                    "stops here until the target accepts it (broker setting 'maxMessageSize')"
                ) from e
            for copy in request:
                await self._send([copy])
                if not self.is_located:
                    break
            return
        self.copied += len(request)
        target_offset = self.position.target_offset
        if result.queue.queue_id == self.target_queue.queue_id:
            if result.queue_offset < target_offset:
                # A failover or a new topic of the same name: the target queue has lost copies.
                self._lost_before = result.queue_offset
                self.is_located = False
                return
            target_offset = result.queue_offset + len(request)
            last = request[-1].message.queue_offset
            self._offset_map.add(first.queue_offset, last, result.queue_offset, len(request))
        self._advance(request[-1].message.queue_offset + 1, target_offset)


def _requests(copies: Iterator[_Copy]) -> Iterator[list[_Copy]]:
    """Groups copies into requests of at most BATCH_BYTES, in order."""
    request: list[_Copy] = []
    size = 0
    for copy in copies:
        if request and (copy.is_single or request[0].is_single or size + copy.size > BATCH_BYTES):
            yield request
            request, size = [], 0
        request.append(copy)
        size += copy.size
    if request:
        yield request
