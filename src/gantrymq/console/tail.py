"""The live tail: shows new messages of a topic at a limited rate.

Each round reads the end of each queue. If there are more messages than the limit, the round skips the oldest ones and
reports their number. A tail ends after LASTS_S, so that a forgotten browser tab does not load the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from gantrymq.client.admin.base import any_address, transport_of
from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.client.routes import read_queues
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.queries.messages import MessageRow, row_of
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue, decode_messages
from gantrymq.protocol.topic_name import TOOLS_GROUP

#: Limit of the messages in a round, interval of rounds in s, limit of the messages read from one queue in a round.
SHOWN = 20
ROUND_S = 0.5
MAX_PER_QUEUE = 32
#: Interval of empty rounds, which keep the connection open, s.
KEEPALIVE_S = 10.0
MAX_QUEUES = 64
#: Longest duration of a tail, s, and limit of concurrent tails.
LASTS_S = 900.0
MAX_TAILS = 16
_PULL_BYTES = 128 * 1024


class TailArguments(msgspec.Struct, kw_only=True):
    """Arguments of a tail. `filter` is a tag expression such as A || B, or an SQL92 expression if `sql` is set."""

    topic: str = ""
    filter: str = ""
    sql: bool = False


class TailPage(msgspec.Struct):
    topic: str
    filter: str
    sql: bool


class TailRound(msgspec.Struct):
    """The new messages of one round. `left_out` counts the skipped messages, whether or not they match."""

    rows: list[MessageRow]
    left_out: int
    problem: str = ""


@dataclass(slots=True)
class _Position:
    queue: MessageQueue
    address: str
    next: int = -1


async def tail_page(view: ClusterView, arguments: TailArguments) -> TailPage:
    """Returns the page that contains the stream."""
    return TailPage(arguments.topic.strip(), arguments.filter, arguments.sql)


async def tail(
    view: ClusterView, arguments: TailArguments, is_open: Callable[[], bool] = lambda: True
) -> AsyncIterator[TailRound]:
    """Yields rounds until `is_open` returns false.

    Raises ClientError without a topic, and NoRouteInfo if the topic does not exist.
    """
    topic = arguments.topic.strip()
    if not topic:
        raise ClientError("a topic is required")
    expression = (arguments.filter or SUBSCRIBE_ALL, EXPRESSION_SQL92 if arguments.sql else EXPRESSION_TAG)
    route = await view.admin.topic_route(topic)
    addresses = {data.broker_name: any_address(data) for data in route.broker_datas}
    positions = [
        _Position(queue, address)
        for queue in read_queues(topic, route)[:MAX_QUEUES]
        if (address := addresses.get(queue.broker_name))
    ]
    loop = asyncio.get_running_loop()
    began = sent = loop.time()
    while loop.time() - began < LASTS_S and is_open():
        one = TailRound([], 0)
        results = await asyncio.gather(*(_read_new(view, position, expression) for position in positions))
        if not is_open():
            return
        for rows, left_out, problem in results:
            one.rows += rows
            one.left_out += left_out
            one.problem = one.problem or problem
        one.rows.sort(key=lambda row: (row.stored_ms, row.broker, row.queue_id, row.offset))
        if len(one.rows) > SHOWN:
            one.left_out += len(one.rows) - SHOWN
            one.rows = one.rows[-SHOWN:]
        if one.rows or one.left_out or one.problem or loop.time() - sent >= KEEPALIVE_S:
            sent = loop.time()
            yield one
        await asyncio.sleep(ROUND_S)


async def _read_new(
    view: ClusterView, position: _Position, expression: tuple[str, str]
) -> tuple[list[MessageRow], int, str]:
    """Returns the new messages of a queue, how many were skipped, and an error text (empty without an error)."""
    timeout_ms = view.settings.timeout_ms
    try:
        end = await transport_of(view.admin).api.max_offset(
            position.address, position.queue.topic, position.queue.queue_id, timeout_ms
        )
        if position.next < 0 or end < position.next:
            # Either this is the first round, or the queue was deleted and created again.
            position.next = end
        if end == position.next:
            return [], 0, ""
        left_out = max(end - position.next - MAX_PER_QUEUE, 0)
        position.next += left_out
        result: PullResult = await transport_of(view.admin).api.pull_at_once(
            position.address,
            position.queue,
            position.next,
            MAX_PER_QUEUE,
            TOOLS_GROUP,
            max_bytes=_PULL_BYTES,
            filter_expression=expression,
            timeout_ms=timeout_ms,
        )
        rows = []
        if result.status is PullStatus.FOUND:
            rows = await asyncio.to_thread(_rows_of, result.body, position.queue.broker_name)
        position.next = max(result.next_begin_offset, position.next)
        return rows, left_out, ""
    except GantryError as e:
        return [], 0, str(e)


def _rows_of(body: bytes, broker_name: str) -> list[MessageRow]:
    return [row_of(message) for message in decode_messages(body, broker_name)]
