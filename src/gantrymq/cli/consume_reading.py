"""`gantry consume`: reads queues and writes what is in them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from gantrymq.cli.consume_format import Formatter
from gantrymq.cli.options import Target
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.admin.messages import TOOLS_GROUP
from gantrymq.client.consuming.consume_from_where import ConsumeFromWhere
from gantrymq.client.consuming.lite_pull_consumer import MAX_POLL_MESSAGES, POLL_TIMEOUT_MS, LitePullConsumer
from gantrymq.client.consuming.process_queue import FlowLimits
from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_FROM_FIRST_OFFSET,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_FROM_TIMESTAMP,
)
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import is_system_topic
from gantrymq.service import run as run_service

#: Messages of one pull, where the broker gives so many: a reader of everything wants few round trips.
PULL_BATCH_SIZE = 1024
_LIMITS = FlowLimits(max_messages=4 * PULL_BATCH_SIZE, max_span=1 << 62)
#: How long it may take to see that the end is reached.
_END_POLL_MS = 100


class Start(NamedTuple):
    """Where reading begins: a consumer's `from_where`, or `offset` in each queue; below 0 it counts from the end."""

    from_where: ConsumeFromWhere = CONSUME_FROM_FIRST_OFFSET
    timestamp_ms: int = 0
    offset: int | None = None


def run_consume(
    topics: Sequence[str],
    target: Target,
    group: str | None,
    expression: tuple[str, str],
    start: Start,
    form: Formatter,
    *,
    queue_id: int | None,
    count: int | None,
    exit_at_end: bool,
) -> None:
    """Writes messages to standard output until `count` are written, the end is reached or a signal comes.

    `expression` is the filter and its type. With a group what is written is committed, also at the end.
    """
    reader = LitePullConsumer(
        target.name_servers,
        group or TOOLS_GROUP,
        auto_commit=group is not None,
        consume_from_where=start.from_where,
        consume_timestamp_ms=start.timestamp_ms,
        pull_batch_size=PULL_BATCH_SIZE,
        flow_limits=_LIMITS,
        ssl_context=target.ssl_context,
        hooks=target.hooks,
    )

    async def run() -> None:
        names = await _names(topics, target)
        if group is not None:
            for topic in names:
                reader.subscribe(topic, *expression)
        async with reader:
            queues = [queue for topic in names for queue in await reader.queues(topic)]
            if group is None:
                # What a pattern has found needn't be readable.
                for topic in (topic for topic in topics if topic in names):
                    _check_queue(topic, [queue.queue_id for queue in queues if queue.topic == topic], queue_id)
                queues = [queue for queue in queues if queue_id in (None, queue.queue_id)]
                await _begin(reader, queues, expression, start)
            ends = {queue: await reader.end_offset(queue) for queue in queues} if exit_at_end else None
            try:
                await _write(reader, form, count, ends)
            except asyncio.CancelledError:
                # A signal: what was handed out is written.
                if group is not None:
                    await reader.commit()
                raise
            if group is not None:
                await reader.commit()

    run_service(run)


async def _names(topics: Sequence[str], target: Target) -> list[str]:
    """The topics, with those that patterns stand for now. Raises ClientError for a pattern that fits none."""
    # No topic's name has these.
    if not any(char in topic for topic in topics for char in "*?["):
        return list(dict.fromkeys(topics))
    async with AdminClient(target.name_servers, ssl_context=target.ssl_context, hooks=target.hooks) as admin:
        known = await admin.topic_list()
    names: dict[str, None] = {}
    for topic in topics:
        if not any(char in topic for char in "*?["):
            names[topic] = None
            continue
        # Topics of the system are meant by their names.
        found = [name for name in known if fnmatchcase(name, topic) and not _is_special(name, topic)]
        if not found:
            raise ClientError(f"no topic is like {topic!r} at {target.name_servers}: gantry admin topicList shows all")
        names |= dict.fromkeys(found)
    return list(names)


def _is_special(name: str, pattern: str) -> bool:
    return is_system_topic(name) or (name.startswith("%") and not pattern.startswith("%"))


def _check_queue(topic: str, readable: Sequence[int], queue_id: int | None) -> None:
    """Raises ClientError where there is nothing to read."""
    if not readable:
        raise ClientError(f"topic {topic} can't be read: none of its queues has the permission; gantry doctor {topic}")
    if queue_id is not None and queue_id not in readable:
        raise ClientError(f"topic {topic} has no queue {queue_id}, but {min(readable)} to {max(readable)}")


async def _begin(
    reader: LitePullConsumer, queues: Sequence[MessageQueue], expression: tuple[str, str], start: Start
) -> None:
    await reader.assign(queues, *expression)
    # Sought in any case: brokers have new groups begin at 0 while a topic is young, whatever they ask for.
    for queue in queues:
        if start.offset is not None:
            offset = start.offset if start.offset >= 0 else await reader.end_offset(queue) + start.offset
            await reader.seek(queue, max(0, offset))
        elif start.from_where == CONSUME_FROM_TIMESTAMP:
            await reader.seek_to_time(queue, start.timestamp_ms)
        elif start.from_where == CONSUME_FROM_LAST_OFFSET:
            await reader.seek_to_end(queue)
        else:
            await reader.seek_to_begin(queue)


async def _write(
    reader: LitePullConsumer, form: Formatter, count: int | None, ends: dict[MessageQueue, int] | None
) -> None:
    output = sys.stdout.buffer
    left = count
    while left is None or left > 0:
        most = MAX_POLL_MESSAGES if left is None else min(left, MAX_POLL_MESSAGES)
        messages = await reader.poll(POLL_TIMEOUT_MS if ends is None else _END_POLL_MS, most)
        if messages:
            lines: list[bytes] = []
            try:
                lines.extend(map(form, messages))
            finally:
                # Also those before one that can't be written as it should be.
                output.write(b"".join(lines))
                output.flush()
            if left is not None:
                left -= len(messages)
        elif ends is not None and _is_at_end(reader, ends):
            return


def _is_at_end(reader: LitePullConsumer, ends: dict[MessageQueue, int]) -> bool:
    """Whether every queue that is read now has been read to its end; not before there is one."""
    assignment = reader.assignment
    return bool(assignment) and all(reader.position(queue) >= ends.get(queue, 0) for queue in assignment)
