"""Reads messages of all queues of a topic by time, one page after the other.

Each queue is ordered by store time. The next message of the topic is therefore the earliest of the queues' next
messages. The token of a page contains the next offset of each queue, so the console keeps no state between two pages.
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

from gantrymq.client.admin.base import any_address, transport_of
from gantrymq.client.broker_api import PullStatus
from gantrymq.client.routes import read_queues
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.pages import BadArguments
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.topic_name import TOOLS_GROUP
from gantrymq.system.clock import monotonic

#: Largest number of queues that are read.
MAX_QUEUES = 256
#: Largest number of concurrent pulls, and largest size of a pull, bytes. A body can have 4 MiB; a list keeps only the
#: beginning of a body.
_PULLS = 4
_PULL_BYTES = 256 * 1024
#: Largest size of the stored bodies that a page reads, bytes.
MAX_READ_BYTES = 64 * 1024 * 1024
#: Longest time to read a page with a filter, s.
READ_WITHIN_S = 10.0

Row = msgspec.Struct


class QueueRange(msgspec.Struct):
    """The unread part of a queue: from offset `next` up to `end`."""

    queue: MessageQueue
    address: str
    next: int
    end: int
    #: True if a pull failed. The rest of the queue is then skipped.
    is_failed: bool = False


@dataclass(slots=True)
class _PullResult:
    """The matching messages of one pull, as (store time, offset, row). The reader continues at `next`."""

    found: list[tuple[int, int, Row]]
    count: int = 0
    stored_bytes: int = 0
    next: int = 0
    #: True if the time limit was reached before all messages of the pull were read.
    is_cut: bool = False


def parse_token(text: str) -> dict[str, int]:
    """Decodes a page token. Returns {broker:queue: offset}. Raises BadArguments if it is invalid."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=dict[str, int])
    except (msgspec.DecodeError, msgspec.ValidationError, binascii.Error, ValueError):
        raise BadArguments("the page token can't be read") from None


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


class QueueReader:
    """Reads one page of messages.

    Args:
        view: The user's view of the cluster.
        topic: The topic to read.
        read: Converts a message to a row. Runs in a thread, because it can decompress the body.
        wanted: Filter. Messages for which the filter returns false are skipped. Runs in a thread, too.
        max_read: If given, a page ends after this number of messages, after MAX_READ_BYTES, or after READ_WITHIN_S.
            Messages of one queue can then precede earlier messages of another queue.
    """

    def __init__(
        self,
        view: ClusterView,
        topic: str,
        read: Callable[[MessageExt], Row],
        *,
        wanted: Callable[[MessageExt], bool] | None = None,
        max_read: int | None = None,
    ) -> None:
        self._view = view
        self._topic = topic
        self._read = read
        self._wanted = wanted
        self._max_read = max_read
        #: Number of messages that were read, including skipped messages.
        self.messages_read = 0
        self._read_bytes = 0
        self._until = monotonic() + READ_WITHIN_S
        self._pulls = asyncio.Semaphore(_PULLS)
        #: The token of the previous page.
        self._token: dict[str, int] = {}
        self.ranges: list[QueueRange] = []
        self.unasked: list[Unasked] = []

    async def open(self, begin_ms: int | None, end_ms: int | None) -> None:
        """Finds the queues and their offsets at the two times. Raises NoRouteInfo if the topic does not exist."""
        view, topic = self._view, self._topic
        route = await view.admin.topic_route(topic)
        addresses = {data.broker_name: any_address(data) for data in route.broker_datas}
        queues = {_name(queue): queue for queue in read_queues(topic, route)[:MAX_QUEUES]}

        async def find_range(name: str) -> QueueRange:
            queue = queues[name]
            address = addresses.get(queue.broker_name)
            if address is None:
                raise GantryError("no broker has this name")
            of_queue = (address, topic, queue.queue_id)
            timeout_ms = view.settings.timeout_ms
            api = transport_of(view.admin).api
            first, end = await asyncio.gather(
                api.min_offset(*of_queue, timeout_ms),
                api.max_offset(*of_queue, timeout_ms),
            )
            if begin_ms is not None:
                first = max(first, await api.search_offset(*of_queue, begin_ms, timeout_ms))
            if end_ms is not None and end > first:
                end = min(end, await api.search_offset(*of_queue, end_ms + 1, timeout_ms))
            return QueueRange(queue, address, first, end)

        answers = await view.each(queues, find_range, 2 * view.settings.timeout_ms / 1000)
        self.ranges = [answers.results[name] for name in sorted(answers.results)]
        self.unasked += answers.unasked

    def resume(self, token: dict[str, int]) -> None:
        """Continues after the previous page, from its token."""
        self._token = token
        for part in self.ranges:
            part.next = max(part.next, token.get(_name(part.queue), 0))

    def resume_backwards(self, token: dict[str, int]) -> None:
        """Continues before the messages of the previous page, which came from `previous_ones`."""
        self._token = token
        for part in self.ranges:
            part.end = min(part.end, token.get(_name(part.queue), part.end))

    def token_backwards(self) -> str | None:
        """Returns the token for `resume_backwards`; None if this is the last page."""
        if not any(part.next < part.end for part in self.ranges):
            return None
        return self._encode({_name(part.queue): part.end for part in self.ranges})

    def token(self) -> str | None:
        """Returns the token of the next page; None if this is the last page."""
        if not any(part.next < part.end for part in self.ranges):
            return None
        return self._encode({_name(part.queue): part.next for part in self.ranges})

    def _encode(self, offsets: dict[str, int]) -> str:
        # A queue whose broker did not respond for this page keeps the offset of the previous page.
        return base64.urlsafe_b64encode(msgspec.json.encode(self._token | offsets)).decode()

    async def latest(self, size: int) -> list[Row]:
        """Returns at most `size` of the newest messages, newest first."""
        if not self.ranges:
            return []
        each = -(-size // len(self.ranges))
        found: list[tuple[int, str, int, Row]] = []

        async def query(part: QueueRange) -> None:
            part.next = max(part.next, part.end - each)
            while part.next < part.end:
                rows = await self._pull(part, each)
                found.extend((time, _name(part.queue), offset, row) for time, offset, row in rows)

        await asyncio.gather(*(query(part) for part in self.ranges))
        found.sort(key=lambda entry: entry[:3], reverse=True)
        return [row for *_, row in found[:size]]

    async def next_ones(self, size: int) -> list[Row]:
        """Returns at most `size` of the remaining messages, earliest first."""
        if not self.ranges:
            return []
        each = min(size, max(4, -(-2 * size // len(self.ranges))))
        buffers: dict[int, deque[tuple[int, int, Row]]] = {n: deque() for n in range(len(self.ranges))}
        heap: list[tuple[int, int]] = []

        async def fill(n: int) -> None:
            part = self.ranges[n]
            while not buffers[n] and part.next < part.end and not self._is_enough():
                buffers[n].extend(await self._pull(part, each))
            if buffers[n]:
                heapq.heappush(heap, (buffers[n][0][0], n))

        await asyncio.gather(*(fill(n) for n in buffers))
        rows: list[Row] = []
        while heap and len(rows) < size:
            _, n = heapq.heappop(heap)
            _, _, row = buffers[n].popleft()
            rows.append(row)
            if buffers[n]:
                heapq.heappush(heap, (buffers[n][0][0], n))
            elif len(rows) < size:
                await fill(n)
        for n, rest in buffers.items():
            if rest:
                self.ranges[n].next = rest[0][1]
        return rows

    async def previous_ones(self, size: int) -> list[Row]:
        """Returns at most `size` of the remaining messages, newest first."""
        if not self.ranges:
            return []
        each = min(size, max(4, -(-2 * size // len(self.ranges))))
        # Rows of each queue, newest first. The next page continues at the offset of the first remaining row.
        buffers: dict[int, deque[tuple[int, int, Row]]] = {n: deque() for n in range(len(self.ranges))}
        heap: list[tuple[int, int]] = []

        async def fill(n: int) -> None:
            part = self.ranges[n]
            while not buffers[n] and part.next < part.end and not self._is_enough():
                block = QueueRange(part.queue, part.address, max(part.next, part.end - each), part.end)
                part.end = block.next
                while block.next < block.end:
                    buffers[n].extendleft(await self._pull(block, each))
                if block.is_failed:
                    part.end = part.next
            if buffers[n]:
                heapq.heappush(heap, (-buffers[n][0][0], n))

        await asyncio.gather(*(fill(n) for n in buffers))
        rows: list[Row] = []
        while heap and len(rows) < size:
            _, n = heapq.heappop(heap)
            _, _, row = buffers[n].popleft()
            rows.append(row)
            if buffers[n]:
                heapq.heappush(heap, (-buffers[n][0][0], n))
            elif len(rows) < size:
                await fill(n)
        for n, rest in buffers.items():
            if rest:
                self.ranges[n].end = rest[0][1] + 1
        return rows

    def _is_enough(self) -> bool:
        if self._max_read is None:
            return False
        is_enough = self.messages_read >= self._max_read or self._read_bytes >= MAX_READ_BYTES
        return is_enough or monotonic() >= self._until

    async def _pull(self, part: QueueRange, count: int) -> list[tuple[int, int, Row]]:
        """Returns the next rows as (store time, offset, row). Empty if they were deleted or the broker fails."""
        async with self._pulls, self._view.bodies:
            try:
                result = await transport_of(self._view.admin).api.pull_at_once(
                    part.address,
                    part.queue,
                    part.next,
                    min(count, part.end - part.next),
                    TOOLS_GROUP,
                    max_bytes=_PULL_BYTES,
                    timeout_ms=self._view.settings.timeout_ms,
                )
                if result.status is not PullStatus.FOUND:
                    part.next = result.next_begin_offset if result.next_begin_offset > part.next else part.end
                    return []
                pull = await asyncio.to_thread(self._read_pull, part, result.body)
                self.messages_read += pull.count
                self._read_bytes += pull.stored_bytes
                forward = pull.next if pull.is_cut else max(result.next_begin_offset, pull.next)
                part.next = forward if forward > part.next else part.end
                return pull.found
            except GantryError as e:
                self.unasked.append(Unasked(_name(part.queue), str(e)))
                part.next = part.end
                part.is_failed = True
                return []

    def _read_pull(self, part: QueueRange, body: bytes) -> _PullResult:
        """Decodes the messages of a pull. Runs in a thread."""
        pull = _PullResult([])
        for message in decode_messages(body, part.queue.broker_name):
            if not part.next <= message.queue_offset < part.end:
                continue
            if pull.count and self._max_read is not None and monotonic() >= self._until:
                pull.is_cut = True
                break
            pull.count += 1
            pull.stored_bytes += len(message.stored_body)
            pull.next = message.queue_offset + 1
            if self._wanted is None or self._wanted(message):
                pull.found.append((message.store_timestamp, message.queue_offset, self._read(message)))
        return pull
