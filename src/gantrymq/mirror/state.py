"""StateTopic: the positions of a mirror, in a topic of the target.

Each message contains all positions, so the newest one is the state. The topic has one queue on each broker. A write
goes to any broker that accepts it, and a read takes the newest state of all brokers.

Terms:
- `source_offset`: the mirror has handled all messages of the source queue before this offset.
- `target_offset`: all later messages of the source queue have a copy from this offset of the target queue on.
- `generation`: a counter. It increases if an offset decreases or the target topic changes. Positions with a lower
  generation are ignored.
"""

from __future__ import annotations

import logging

import msgspec

from gantrymq.errors import BodyError, BrokerUnavailable, ClientError, GantryError, NoRouteInfo
from gantrymq.mirror.cluster import Cluster
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import MIRROR_ORIGIN
from gantrymq.system.clock import now_ms

log = logging.getLogger(__name__)

#: Number of messages at the end of a queue that a read searches for a state.
_SEARCHED = 32


class Position(msgspec.Struct, rename="camel", frozen=True):
    """The position in one source queue, and the target queue that gets its messages."""

    target_topic: str
    target_broker: str
    target_queue_id: int
    source_offset: int = 0
    target_offset: int = 0
    generation: int = 0


class State(msgspec.Struct, rename="camel"):
    """All positions, by `cluster/topic/broker/queue` of the source. `written_at` is in ms since the epoch."""

    written_at: int = 0
    positions: dict[str, Position] = {}


class StateTopic:
    """Reads and writes the state of one mirror."""

    def __init__(self, target: Cluster, topic: str) -> None:
        self.topic = topic
        self._target = target

    async def create(self) -> None:
        """Creates the topic on all masters that lack it. Raises BrokerUnavailable if no master accepts it."""
        errors: list[GantryError] = []
        masters = await self._target.masters()
        for address in masters.values():
            try:
                if not await self._target.has_topic(address, self.topic):
                    await self._target.admin.create_topic(TopicConfig(self.topic, 1, 1), broker=address)
            except GantryError as e:
                errors.append(e)
        if len(errors) == len(masters):
            raise BrokerUnavailable(f"no broker of the target accepts the topic {self.topic!r}: {errors[0]}")

    async def read(self) -> State:
        """Returns the newest state; an empty one if there is none. Raises the errors of a pull."""
        newest = State()
        try:
            queues = await self._target.queues(self.topic)
        except NoRouteInfo:
            return newest
        for queue in queues:
            begin, end = await self._target.bounds(queue)
            start = max(begin, end - _SEARCHED)
            while start < end:
                pulled = await self._target.pull(queue, start)
                for message in pulled.messages:
                    state = _decoded(message)
                    if state is not None and state.written_at > newest.written_at:
                        newest = state
                if pulled.next_offset <= start:
                    break
                start = pulled.next_offset
        return newest

    async def target_offset_before(self, key: str, generation: int, source_offset: int) -> int | None:
        """Returns the target offset of the newest stored position that is not after `source_offset`, or None.

        Searches each queue by bisection, because states are stored in the order of their positions.
        """
        newest: int | None = None
        for queue in await self._target.queues(self.topic):
            low, high = await self._target.bounds(queue)
            while low < high:
                middle = (low + high) // 2
                messages = (await self._target.pull(queue, middle, 1)).messages
                state = _decoded(messages[0]) if messages else None
                position = state.positions.get(key) if state is not None else None
                if position is not None and (position.generation, position.source_offset) > (generation, source_offset):
                    high = middle
                    continue
                low = middle + 1
                if position is not None and position.generation == generation:
                    newest = max(newest or 0, position.target_offset)
        return newest

    async def write(self, positions: dict[str, Position]) -> None:
        """Stores the positions on the first broker that accepts them. Raises the error of the last broker."""
        self._target.forget_route(self.topic)
        body = encode_json(State(now_ms(), positions))
        error: GantryError = ClientError(f"topic {self.topic!r} has no writable queue on the target")
        for broker in await self._target.write_queue_nums(self.topic):
            try:
                await self._target.send(MessageQueue(self.topic, broker, 0), body, b"", now_ms())
            except GantryError as e:
                error = e
            else:
                return
        raise error


def _decoded(message: MessageExt) -> State | None:
    if MIRROR_ORIGIN in message.properties:
        # Another mirror has copied a state topic into this one.
        return None
    try:
        return decode_json(message.body, State)
    except BodyError as e:
        log.warning("message at %s is no state of a mirror, it is left out: %s", message.place, e)
        return None
