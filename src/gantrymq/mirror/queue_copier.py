"""QueueCopier: copies one source queue into one target queue, in order.

A copier has one request in flight. After a failure, the outcome of a send can be unknown. The copier therefore first
searches the end of the target queue for the newest copy of its source queue, and continues after it. It does the same
at the start, so that messages which a killed mirror copied after its last state are not copied again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from gantrymq.errors import BrokerError, IllegalMessage, ProtocolError
from gantrymq.logs import peer_log
from gantrymq.mirror.cluster import PULL_MESSAGES, Cluster
from gantrymq.mirror.offset_map import OffsetMap
from gantrymq.mirror.origin import SourceQueue, is_loop
from gantrymq.mirror.rate_limit import RateLimit
from gantrymq.mirror.state import Position
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import PRIORITY

log = peer_log(__name__)

#: Largest size of the bodies and properties of a batch, in bytes. Brokers accept 4 MiB by default.
BATCH_BYTES = 1024 * 1024
#: Number of target messages that one step of the search for the newest copy reads.
_SEARCH_STEP = PULL_MESSAGES
#: Number of messages of one pull of the search for an offset.
_PROBE = 32


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
        target_queue: MessageQueue,
        position: Position | None,
        rate_limit: RateLimit,
    ) -> None:
        self.queue = queue
        self.target_queue = target_queue
        self.position = position or Position(target_queue.broker_name, target_queue.queue_id, 0, 0)
        self.copied = 0
        self.left_out = 0
        #: End of the source queue at the last pull.
        self.end = 0
        self._source = source
        self._target = target
        self._rate_limit = rate_limit
        self._has_position = position is not None
        self._is_located = False
        self._offset_map = OffsetMap()
        self._origin: SourceQueue | None = None
        self._target_clusters: Collection[str] = ()

    @property
    def lag(self) -> int:
        """Number of messages in the source queue that are not copied yet, as of the last pull."""
        return max(0, self.end - self.position.source_offset)

    def failed(self) -> None:
        """Call this after `step` has raised. The next step requests routes again and searches the target."""
        self._is_located = False
        self._source.forget_route(self.queue.topic)
        self._target.forget_route(self.target_queue.topic)

    async def step(self, *, waits: bool) -> None:
        """Copies the messages of one pull. With `waits`, the pull waits for the first message.

        Raises:
            Refused: The target refuses a message. The messages before it are copied.
            GantryError: A request failed.
        """
        if not self._is_located:
            await self._locate()
        limit = self._rate_limit.largest(PULL_MESSAGES)
        offset = self.position.source_offset
        pulled = await self._source.pull(self.queue, offset, limit, waits=waits)
        self.end = pulled.end
        if not pulled.messages and pulled.next_offset != offset:
            log.warning(
                "topic %s, queue %d of %s: the source has no message at offset %d, continuing at %d",
                *self.queue[::2],
                self.queue.broker_name,
                offset,
                pulled.next_offset,
            )
        for request in _requests(self._copies(pulled.messages)):
            await self._rate_limit.take(len(request))
            await self._send(request)
        self._advance(pulled.next_offset, self.position.target_offset)

    def _advance(self, source_offset: int, target_offset: int) -> None:
        queue = self.target_queue
        self.position = Position(queue.broker_name, queue.queue_id, source_offset, target_offset)

    # -- the position -------------------------------------------------------------------------------------------

    async def _locate(self) -> None:
        """Sets the position after the newest copy in the target queue."""
        self._offset_map.clear()
        cluster = await self._source.cluster_of(self.queue)
        origin = self._origin = SourceQueue(cluster, self.queue.broker_name, self.queue.queue_id)
        self._target_clusters = await self._target.cluster_names()
        begin, end = await self._target.bounds(self.target_queue)
        position = self.position
        if not self._has_position:
            first, _ = await self._source.bounds(self.queue)
            self._advance(first, begin)
            position = self.position
        elif position.target_offset > end:
            # The broker lost the end of the queue in a crash, or the topic was created again.
            log.warning(
                "topic %s, queue %d of %s: the target ends at offset %d, before the stored offset %d; searching all of "
                "it for the newest copy",
                *self.target_queue[::2],
                self.target_queue.broker_name,
                end,
                position.target_offset,
            )
            first, _ = await self._source.bounds(self.queue)
            self._advance(first, begin)
            position = self.position
        found = await self._newest_copy(origin, max(begin, position.target_offset), end)
        if found is not None:
            source_offset, target_offset = found
            self._advance(max(source_offset + 1, position.source_offset), target_offset + 1)
        self._has_position = self._is_located = True

    async def _newest_copy(self, origin: SourceQueue, floor: int, end: int) -> tuple[int, int] | None:
        """Returns source and target offset of the newest copy from `floor` on. Searches backwards from `end`."""
        while floor < end:
            start = max(floor, end - _SEARCH_STEP)
            offset, found = start, None
            while offset < end:
                pulled = await self._target.pull(self.target_queue, offset)
                for message in pulled.messages:
                    if message.queue_offset < end and (source_offset := origin.offset_of(message)) is not None:
                        found = source_offset, message.queue_offset
                if pulled.next_offset <= offset:
                    break
                offset = pulled.next_offset
            if found is not None:
                return found
            end = start
        return None

    # -- offsets ------------------------------------------------------------------------------------------------

    async def translate(self, source_offset: int) -> int | None:
        """Returns the offset of the first copy from `source_offset` on, or a lower offset of the target queue.

        The result is None while the position is unknown. Raises the errors of a pull.
        """
        if not self._is_located or self._origin is None:
            return None
        if source_offset >= self.position.source_offset:
            return self.position.target_offset
        translated = self._offset_map.translate(source_offset)
        return await self._search(self._origin, source_offset) if translated is None else translated

    async def _search(self, origin: SourceQueue, source_offset: int) -> int:
        """Searches the target queue by bisection: its copies are in the order of their source offsets."""
        low, _ = await self._target.bounds(self.target_queue)
        high = self.position.target_offset
        while low < high:
            middle = (low + high) // 2
            found = await self._first_copy(origin, middle, high)
            if found is not None and found[0] < source_offset:
                low = found[1] + 1
            else:
                high = middle
        return low

    async def _first_copy(self, origin: SourceQueue, start: int, end: int) -> tuple[int, int] | None:
        """Returns source and target offset of the first copy from `start` to before `end`."""
        while start < end:
            pulled = await self._target.pull(self.target_queue, start, _PROBE)
            for message in pulled.messages:
                if message.queue_offset < end and (source_offset := origin.offset_of(message)) is not None:
                    return source_offset, message.queue_offset
            if pulled.next_offset <= start:
                break
            start = pulled.next_offset
        return None

    # -- copies -------------------------------------------------------------------------------------------------

    def _copies(self, messages: Sequence[MessageExt]) -> Iterator[_Copy]:
        assert self._origin is not None, "step has located the position"
        for message in messages:
            if message.is_damaged:
                log.error("message at %s is not readable and is not copied", message.place)
                self.left_out += 1
            elif is_loop(message, self._target_clusters):
                self.left_out += 1
            else:
                is_single = message.compression_flags != 0 or PRIORITY in message.properties
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
            return
        self.copied += len(request)
        target_offset = self.position.target_offset
        if result.queue.queue_id == self.target_queue.queue_id:
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
