"""Implements `gantry consume`: reads queues and writes their messages to standard output."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from gantrymq.cli.consume_format import DecodeBody, Formatter
from gantrymq.cli.target import Target
from gantrymq.client.consuming.consumer_base import MessageFilter
from gantrymq.client.consuming.lite_pull_consumer import MAX_POLL_MESSAGES, POLL_TIMEOUT_S, LitePullConsumer
from gantrymq.client.consuming.process_queue import FlowLimits
from gantrymq.client.consuming.start_position import StartFrom
from gantrymq.errors import ClientError
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.topic_name import TOOLS_GROUP, is_system_topic
from gantrymq.service import run as run_service

#: The number of messages that a pull requests. The command reads whole queues, so large pulls save round trips.
PULL_BATCH_SIZE = 1024
_LIMITS = FlowLimits(max_messages=4 * PULL_BATCH_SIZE, max_span=1 << 62)
#: The poll timeout with `--exit`, in seconds, so that the command soon detects the end of the queues.
_END_POLL_S = 0.1


class Start(NamedTuple):
    """The position at which reading starts.

    Attributes:
        start_from: The option of a consumer.
        offset: The offset in each queue, in place of `start_from`. A negative offset counts from the end.
    """

    start_from: StartFrom = "earliest"
    offset: int | None = None


class Output(NamedTuple):
    """The form of the output.

    Attributes:
        form: Formats a message.
        decode: Decodes the body of a message for `form`; None to show bodies as they were sent.
    """

    form: Formatter
    decode: DecodeBody | None = None


def run_consume(
    topics: Sequence[str],
    target: Target,
    group: str | None,
    message_filter: MessageFilter,
    start: Start,
    output: Output,
    *,
    queue_id: int | None,
    count: int | None,
    exit_at_end: bool,
) -> None:
    """Writes messages to standard output. With a group, commits the offsets of the written messages.

    The command ends after `count` messages, at the end of the queues (`exit_at_end`), or on a signal.

    Args:
        topics: Topics and patterns.
        target: The cluster.
        group: The consumer group; None to read all queues without a group.
        message_filter: The tags or the condition.
        start: The start of reading.
        output: The form of the output.
        queue_id: If given, only queues with this id are read.
        count: The number of messages after which the command ends.
        exit_at_end: If true, the command ends after the messages that the queues had at its start.
    """
    reader = LitePullConsumer(
        target.name_servers,
        group or TOOLS_GROUP,
        auto_commit=group is not None,
        start_from=start.start_from,
        pull_batch_size=PULL_BATCH_SIZE,
        flow_limits=_LIMITS,
        ssl_context=target.ssl_context,
        credentials=target.credentials,
    )

    async def run() -> None:
        names = await _names(topics, target)
        if group is not None:
            for topic in names:
                reader.subscribe(topic, **message_filter)
        async with reader:
            queues = [queue for topic in names for queue in await reader.queues(topic)]
            if group is None:
                # Named topics must be readable; topics that match a pattern need not be.
                for topic in (topic for topic in topics if topic in names):
                    _check_queue(topic, [queue.queue_id for queue in queues if queue.topic == topic], queue_id)
                queues = [queue for queue in queues if queue_id in (None, queue.queue_id)]
                await _begin(reader, queues, message_filter, start)
            ends = {queue: await reader.end_offset(queue) for queue in queues} if exit_at_end else None
            await _write(reader, output, count, ends, commits=group is not None)
            if group is not None:
                await reader.commit()

    run_service(run)


async def _names(topics: Sequence[str], target: Target) -> list[str]:
    """Returns the topics, with patterns replaced by the topics that match at present.

    Raises ClientError for a pattern without a match.
    """
    # Names of topics never contain these characters.
    if not any(char in topic for topic in topics for char in "*?["):
        return list(dict.fromkeys(topics))
    # Imported here, because reading without patterns does not need it.
    from gantrymq.client.admin.client import AdminClient

    async with AdminClient(
        target.name_servers, ssl_context=target.ssl_context, credentials=target.credentials
    ) as admin:
        known = await admin.topic_list()
    names: dict[str, None] = {}
    for topic in topics:
        if not any(char in topic for char in "*?["):
            names[topic] = None
            continue
        # A pattern does not match system topics, which must be named.
        found = [name for name in known if fnmatchcase(name, topic) and not _is_special(name, topic)]
        if not found:
            raise ClientError(f"no topic is like {topic!r} at {target.name_servers}: gantry admin topicList shows all")
        names |= dict.fromkeys(found)
    return list(names)


def _is_special(name: str, pattern: str) -> bool:
    return is_system_topic(name) or (name.startswith("%") and not pattern.startswith("%"))


def _check_queue(topic: str, readable: Sequence[int], queue_id: int | None) -> None:
    """Raises ClientError if the topic has no readable queue, or not the requested one."""
    if not readable:
        raise ClientError(f"topic {topic} can't be read: none of its queues has the permission; gantry doctor {topic}")
    if queue_id is not None and queue_id not in readable:
        raise ClientError(f"topic {topic} has no queue {queue_id}, but {min(readable)} to {max(readable)}")


async def _begin(
    reader: LitePullConsumer, queues: Sequence[MessageQueue], message_filter: MessageFilter, start: Start
) -> None:
    await reader.assign(queues, **message_filter)
    # Always seeks, because brokers start a new group at 0 in a new topic, regardless of `start_from`.
    for queue in queues:
        if start.offset is not None:
            offset = start.offset if start.offset >= 0 else await reader.end_offset(queue) + start.offset
            await reader.seek(queue, max(0, offset))
        elif isinstance(start.start_from, datetime):
            await reader.seek_to_time(queue, start.start_from)
        elif start.start_from == "latest":
            await reader.seek_to_end(queue)
        else:
            await reader.seek_to_begin(queue)


async def _write(
    reader: LitePullConsumer,
    output: Output,
    count: int | None,
    ends: dict[MessageQueue, int] | None,
    *,
    commits: bool,
) -> None:
    left = count
    while left is None or left > 0:
        most = MAX_POLL_MESSAGES if left is None else min(left, MAX_POLL_MESSAGES)
        try:
            messages = await reader.poll(max_messages=most, timeout=POLL_TIMEOUT_S if ends is None else _END_POLL_S)
        except asyncio.CancelledError:
            # After a signal, all messages of earlier polls have been written.
            if commits:
                await reader.commit()
            raise
        if messages:
            # A signal during this call ends the command without a commit, because a part of the messages is not
            # written. They are delivered again.
            await _write_messages(messages, output)
            if left is not None:
                left -= len(messages)
        elif ends is not None and _is_at_end(reader, ends):
            return


async def _write_messages(messages: Sequence[MessageExt], output: Output) -> None:
    form, decode = output
    lines: list[bytes] = []
    try:
        if decode is None:
            lines.extend(map(form, messages))
        else:
            for message in messages:
                lines.append(form(message, await decode(message)))
    finally:
        # If a message can't be formatted, still write the messages before it.
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.buffer.flush()


def _is_at_end(reader: LitePullConsumer, ends: dict[MessageQueue, int]) -> bool:
    """Whether all assigned queues have been read to their end. False if no queue is assigned yet."""
    assignment = reader.assignment
    return bool(assignment) and all(reader.position(queue) >= ends.get(queue, 0) for queue in assignment)
