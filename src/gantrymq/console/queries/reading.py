"""Messages of a topic's queues by time, a page at a time.

Each queue is in the order of its store times: the next message of all is the earliest of those that come next in each
queue. A page's token says where each queue goes on, so nothing is kept here between two pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gantrymq.client.admin.base import any_address
from gantrymq.client.admin.messages import TOOLS_GROUP
from gantrymq.client.broker_api import PullStatus
from gantrymq.client.routes import read_queues
from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye
from gantrymq.console.pages import BadArguments
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt, MessageQueue, decode_messages
from gantrymq.system.clock import monotonic

#: Queues that are read at all.
MAX_QUEUES = 256
#: Pulls at once, and bytes of each: a body may have 4 MiB, and of a message in a list some words are kept.
_PULLS = 4
_PULL_BYTES = 256 * 1024
#: Bodies that a page looks into, as stored.
MAX_LOOKED_BYTES = 64 * 1024 * 1024
#: And for so long, s.
LOOK_WITHIN_S = 10.0

Row = msgspec.Struct


class Place(msgspec.Struct):
    """A queue that is read, from `next` up to `end`."""

    queue: MessageQueue
    address: str
    next: int
    end: int


@dataclass(slots=True)
class _Looked:
    """The messages of one pull: (store time, offset, row) of those that are wanted; the reader goes on at `next`."""

    found: list[tuple[int, int, Row]]
    count: int = 0
    stored_bytes: int = 0
    next: int = 0
    #: The reader's time is over, and the pull has more messages.
    is_cut: bool = False


def parse_token(text: str) -> dict[str, int]:
    """{broker:queue: offset}. Raises BadArguments."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=dict[str, int])
    except (msgspec.DecodeError, msgspec.ValidationError, binascii.Error, ValueError):
        raise BadArguments("the page token can't be read") from None


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


class Reader:
    """Reads one page. `read` makes of a message what is kept of it; those that aren't `wanted` are left out.

    With `max_looked`, a page ends when the reader has looked at so many messages, or at MAX_LOOKED_BYTES of them, or
    for LOOK_WITHIN_S. Then messages of one queue may come before earlier ones of another. `read` and `wanted` run in a
    thread: they may decompress.
    """

    def __init__(
        self,
        eye: Eye,
        topic: str,
        read: Callable[[MessageExt], Row],
        *,
        wanted: Callable[[MessageExt], bool] | None = None,
        max_looked: int | None = None,
    ) -> None:
        self._eye = eye
        self._topic = topic
        self._read = read
        self._wanted = wanted
        self._max_looked = max_looked
        #: Messages that were looked at, wanted or not.
        self.looked = 0
        self._looked_bytes = 0
        self._until = monotonic() + LOOK_WITHIN_S
        self._pulls = asyncio.Semaphore(_PULLS)
        self.places: list[Place] = []
        self.unasked: list[Unasked] = []

    async def look(self, begin_ms: int | None, end_ms: int | None) -> None:
        """Finds the queues, and where in them the times are. Raises NoRouteInfo."""
        eye, topic = self._eye, self._topic
        route = await eye.admin.topic_route(topic)
        addresses = {data.broker_name: any_address(data) for data in route.broker_datas}
        queues = {_name(queue): queue for queue in read_queues(topic, route)[:MAX_QUEUES]}

        async def place(name: str) -> Place:
            queue = queues[name]
            address = addresses.get(queue.broker_name)
            if address is None:
                raise GantryError("no broker answers to this name")
            of_queue = (address, topic, queue.queue_id)
            timeout_ms = eye.settings.timeout_ms
            first, end = await asyncio.gather(
                eye.admin.api.min_offset(*of_queue, timeout_ms), eye.admin.api.max_offset(*of_queue, timeout_ms)
            )
            if begin_ms is not None:
                first = max(first, await eye.admin.api.search_offset(*of_queue, begin_ms, timeout_ms))
            if end_ms is not None and end > first:
                end = min(end, await eye.admin.api.search_offset(*of_queue, end_ms + 1, timeout_ms))
            return Place(queue, address, first, end)

        answers = await eye.each(queues, place, 2 * eye.settings.timeout_ms / 1000)
        self.places = [answers.answers[name] for name in sorted(answers.answers)]
        self.unasked += answers.unasked

    def go_on(self, token: dict[str, int]) -> None:
        """Where the page before ended."""
        for place in self.places:
            place.next = max(place.next, token.get(_name(place.queue), 0))

    def token(self) -> str | None:
        """Where the next page begins; None when this was the last one."""
        rest = {_name(place.queue): place.next for place in self.places}
        if not any(place.next < place.end for place in self.places):
            return None
        return base64.urlsafe_b64encode(msgspec.json.encode(rest)).decode()

    async def latest(self, size: int) -> list[Row]:
        """About `size` of the newest, the newest first."""
        if not self.places:
            return []
        each = -(-size // len(self.places))
        found: list[tuple[int, str, int, Row]] = []

        async def ask(place: Place) -> None:
            place.next = max(place.next, place.end - each)
            while place.next < place.end:
                rows = await self._pull(place, each)
                found.extend((time, _name(place.queue), offset, row) for time, offset, row in rows)

        await asyncio.gather(*(ask(place) for place in self.places))
        found.sort(key=lambda entry: entry[:3], reverse=True)
        return [row for *_, row in found[:size]]

    async def next_ones(self, size: int) -> list[Row]:
        """The earliest `size` of those that are left."""
        if not self.places:
            return []
        each = min(size, max(4, -(-2 * size // len(self.places))))
        held: dict[int, deque[tuple[int, int, Row]]] = {n: deque() for n in range(len(self.places))}
        heap: list[tuple[int, int]] = []

        async def fill(n: int) -> None:
            place = self.places[n]
            while not held[n] and place.next < place.end and not self._is_enough():
                held[n].extend(await self._pull(place, each))
            if held[n]:
                heapq.heappush(heap, (held[n][0][0], n))

        await asyncio.gather(*(fill(n) for n in held))
        rows: list[Row] = []
        while heap and len(rows) < size:
            _, n = heapq.heappop(heap)
            _, _, row = held[n].popleft()
            rows.append(row)
            if held[n]:
                heapq.heappush(heap, (held[n][0][0], n))
            elif len(rows) < size:
                await fill(n)
        for n, rest in held.items():
            if rest:
                self.places[n].next = rest[0][1]
        return rows

    def _is_enough(self) -> bool:
        if self._max_looked is None:
            return False
        is_enough = self.looked >= self._max_looked or self._looked_bytes >= MAX_LOOKED_BYTES
        return is_enough or monotonic() >= self._until

    async def _pull(self, place: Place, count: int) -> list[tuple[int, int, Row]]:
        """(store time, offset, row) of the next; none when they are gone. A broker that fails ends its queue."""
        async with self._pulls, self._eye.bodies:
            try:
                result = await self._eye.admin.api.pull_at_once(
                    place.address,
                    place.queue,
                    place.next,
                    min(count, place.end - place.next),
                    TOOLS_GROUP,
                    max_bytes=_PULL_BYTES,
                    timeout_ms=self._eye.settings.timeout_ms,
                )
                if result.status is not PullStatus.FOUND:
                    place.next = result.next_begin_offset if result.next_begin_offset > place.next else place.end
                    return []
                looked = await asyncio.to_thread(self._look_at, place, result.body)
                self.looked += looked.count
                self._looked_bytes += looked.stored_bytes
                forward = looked.next if looked.is_cut else max(result.next_begin_offset, looked.next)
                place.next = forward if forward > place.next else place.end
                return looked.found
            except GantryError as e:
                self.unasked.append(Unasked(_name(place.queue), str(e)))
                place.next = place.end
                return []

    def _look_at(self, place: Place, body: bytes) -> _Looked:
        """Reads the messages of a pull; runs in a thread."""
        looked = _Looked([])
        for message in decode_messages(body, place.queue.broker_name):
            if not place.next <= message.queue_offset < place.end:
                continue
            if looked.count and self._max_looked is not None and monotonic() >= self._until:
                looked.is_cut = True
                break
            looked.count += 1
            looked.stored_bytes += len(message.stored_body)
            looked.next = message.queue_offset + 1
            if self._wanted is None or self._wanted(message):
                looked.found.append((message.store_timestamp, message.queue_offset, self._read(message)))
        return looked
