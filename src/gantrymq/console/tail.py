"""The live tail: what comes to a topic, as it comes, at a rate that a reader and a browser can take.

A round looks at the end of each queue. What came since the last one beyond what is shown isn't read at all; the stream
says how many messages were left out. A tail ends by itself: one that somebody forgot costs brokers nothing for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from gantrymq.client.admin.base import any_address
from gantrymq.client.admin.messages import TOOLS_GROUP
from gantrymq.client.broker_api import PullResult, PullStatus
from gantrymq.client.routes import read_queues
from gantrymq.console.eye import Eye
from gantrymq.console.queries.messages import MessageRow, row_of
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_SQL92, EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.message import MessageQueue, decode_messages

#: Messages a round, seconds between two, messages of one queue that are looked at in a round.
SHOWN = 20
ROUND_S = 0.5
BEHIND = 32
#: Without a message the stream says that it is there, s.
SIGN_OF_LIFE_S = 10.0
MAX_QUEUES = 64
#: A tail's length, and how many there are at once.
LASTS_S = 900.0
MAX_TAILS = 16
_PULL_BYTES = 128 * 1024


class TailArguments(msgspec.Struct, kw_only=True):
    """`filter` is an expression of tags, A || B, or of SQL92 where `sql` is set."""

    topic: str = ""
    filter: str = ""
    sql: bool = False


class TailPage(msgspec.Struct):
    topic: str
    filter: str
    sql: bool


class TailRound(msgspec.Struct):
    """What came since the last round; `left_out` matched or not: they weren't looked at."""

    rows: list[MessageRow]
    left_out: int
    problem: str = ""


@dataclass(slots=True)
class _Place:
    queue: MessageQueue
    address: str
    next: int = -1


async def tail_page(eye: Eye, arguments: TailArguments) -> TailPage:
    """The page that has the stream."""
    return TailPage(arguments.topic.strip(), arguments.filter, arguments.sql)


async def tail(
    eye: Eye, arguments: TailArguments, is_open: Callable[[], bool] = lambda: True
) -> AsyncIterator[TailRound]:
    """Rounds that have something to tell, and signs of life, until `is_open` says no.

    Raises ClientError for what can't be followed.
    """
    topic = arguments.topic.strip()
    if not topic:
        raise ClientError("which topic?")
    expression = (arguments.filter or SUBSCRIBE_ALL, EXPRESSION_SQL92 if arguments.sql else EXPRESSION_TAG)
    route = await eye.admin.topic_route(topic)
    addresses = {data.broker_name: any_address(data) for data in route.broker_datas}
    places = [
        _Place(queue, address)
        for queue in read_queues(topic, route)[:MAX_QUEUES]
        if (address := addresses.get(queue.broker_name))
    ]
    loop = asyncio.get_running_loop()
    began = told = loop.time()
    while loop.time() - began < LASTS_S and is_open():
        one = TailRound([], 0)
        results = await asyncio.gather(*(_look(eye, place, expression) for place in places))
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
        if one.rows or one.left_out or one.problem or loop.time() - told >= SIGN_OF_LIFE_S:
            told = loop.time()
            yield one
        await asyncio.sleep(ROUND_S)


async def _look(eye: Eye, place: _Place, expression: tuple[str, str]) -> tuple[list[MessageRow], int, str]:
    """What is new in a queue; how many of it were left out; why it couldn't be asked."""
    timeout_ms = eye.settings.timeout_ms
    try:
        end = await eye.admin.api.max_offset(place.address, place.queue.topic, place.queue.queue_id, timeout_ms)
        if place.next < 0 or end < place.next:
            # From now on; or a queue that begins anew.
            place.next = end
        if end == place.next:
            return [], 0, ""
        left_out = max(end - place.next - BEHIND, 0)
        place.next += left_out
        result: PullResult = await eye.admin.api.pull_at_once(
            place.address,
            place.queue,
            place.next,
            BEHIND,
            TOOLS_GROUP,
            max_bytes=_PULL_BYTES,
            filter_expression=expression,
            timeout_ms=timeout_ms,
        )
        rows = []
        if result.status is PullStatus.FOUND:
            rows = await asyncio.to_thread(_rows_of, result.body, place.queue.broker_name)
        place.next = max(result.next_begin_offset, place.next)
        return rows, left_out, ""
    except GantryError as e:
        return [], 0, str(e)


def _rows_of(body: bytes, broker_name: str) -> list[MessageRow]:
    return [row_of(message) for message in decode_messages(body, broker_name)]
