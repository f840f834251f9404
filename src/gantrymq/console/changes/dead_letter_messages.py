"""Changes that resend selected dead-letter messages, or all that match a filter."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec

from gantrymq.client.admin.dead_letter_messages import ResentMessages
from gantrymq.console.changes.change import Change, LongChange
from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.links import link
from gantrymq.console.operations import Operation
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.dead_letter_messages import DeadLetterFilter, dead_topic
from gantrymq.console.queries.messages import MessageArguments, find
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.message import MessageExt
from gantrymq.times import point_in_time

#: Largest number of dead-letter messages of one operation.
MAX_RESENT = 10_000
MAX_SELECTED = 200
_PLACE = re.compile(r"(.{1,255}):([0-9]{1,9}):([0-9]{1,18})")


class ResendDeadLetterMessages(DeadLetterFilter, kw_only=True):
    """Resends the dead-letter messages that match a filter.

    `again` includes messages that were resent before. With `to_topic`, all groups of the topic receive them.
    """

    max_messages: int = 1000
    again: bool = False
    to_topic: bool = False


class ResendSelectedMessages(msgspec.Struct):
    """Resends selected dead-letter messages. `places` has one line BROKER:QUEUE:OFFSET for each."""

    group: str
    places: str = ""
    to_topic: bool = False


class StopOperation(msgspec.Struct):
    id: int


async def resend_matching(view: ClusterView, one: ResendDeadLetterMessages, operation: Operation) -> str:
    begin_ms, end_ms = one.times()
    operation.expect(await _count(view, one.group))
    done = await view.admin.resend_dead_letter_messages(
        one.group,
        topic=one.topic or None,
        begin=point_in_time(begin_ms or 0),
        end=None if end_ms is None else point_in_time(end_ms),
        max_messages=one.max_messages,
        again=one.again,
        to_topic=one.to_topic,
        matches=one.matches,
        progress=lambda so_far: operation.report(sum(so_far), _outcome(so_far)),
    )
    return _outcome(done)


async def resend_selected(view: ClusterView, one: ResendSelectedMessages, operation: Operation) -> str:
    selected = _places(one)
    operation.expect(len(selected))
    missing = 0

    async def messages() -> AsyncIterator[MessageExt]:
        nonlocal missing
        for place in selected:
            try:
                message = await find(view, place)
            except ClientError:
                # The message has expired in the meantime.
                missing += 1
                continue
            yield message

    done = await view.admin.resend_selected_messages(
        messages(),
        to_topic=one.to_topic,
        progress=lambda so_far: operation.report(sum(so_far) + missing, _outcome(so_far)),
    )
    return _outcome(done._replace(unreadable=done.unreadable + missing))


async def stop_operation(view: ClusterView, one: StopOperation) -> str:
    operation = view.operations.stop(one.id)
    return f"operation {operation.id} is stopping"


def _check_count(one: ResendDeadLetterMessages) -> None:
    if not 1 <= one.max_messages <= MAX_RESENT:
        raise BadArguments(f"{one.max_messages} dead letters: expected 1 to {MAX_RESENT}")
    one.times()


def _places(one: ResendSelectedMessages) -> list[MessageArguments]:
    """Parses the positions of the selected messages. Raises BadArguments."""
    selected = list(dict.fromkeys(one.places.split("\n"))) if one.places else []
    if not 1 <= len(selected) <= MAX_SELECTED:
        raise BadArguments(f"{len(selected)} dead letters are selected: select 1 to {MAX_SELECTED}")
    return [_place(one.group, text) for text in selected]


def _outcome(done: ResentMessages) -> str:
    return f"{done.resent} dead letters resent, {done.left_out} skipped, {done.unreadable} unreadable"


def _place(group: str, text: str) -> MessageArguments:
    """Parses a position BROKER:QUEUE:OFFSET. Raises BadArguments if it is invalid."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise BadArguments(f"{text[:300]!r}: expected BROKER:QUEUE:OFFSET of a dead letter")
    return MessageArguments(topic=dead_topic(group), broker=match[1], queue=int(match[2]), offset=int(match[3]))


async def _count(view: ClusterView, group: str) -> int | None:
    """Returns how many dead-letter messages the group has; None if unknown."""
    try:
        stats = await view.admin.topic_stats(dead_topic(group))
    except GantryError:
        return None
    return sum(queue.max_offset - queue.min_offset for queue in stats.offset_table.values())


CHANGES = (
    LongChange(
        name="resend-dead-letters",
        arguments=ResendDeadLetterMessages,
        check=_check_count,
        about=lambda one: one.group,
        perform=resend_matching,
    ),
    LongChange(
        name="resend-letters",
        arguments=ResendSelectedMessages,
        check=_places,
        about=lambda one: one.group,
        perform=resend_selected,
    ),
    Change(
        name="stop-operation",
        arguments=StopOperation,
        perform=stop_operation,
        back=lambda one: link("operations"),
    ),
)
