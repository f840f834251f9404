"""Dead letters, sent once more: those that a filter finds, or those that somebody chose."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec

from gantrymq.client.admin.dead_letters import ResentDeadLetters
from gantrymq.console.changes.change import Change, LongChange
from gantrymq.console.eye import Eye
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.letters import LetterFilter, dead_topic
from gantrymq.console.queries.messages import MessageArguments, find
from gantrymq.console.works import Work
from gantrymq.errors import ClientError, GantryError
from gantrymq.protocol.message import MessageExt

#: Sent by one click; more go by another one.
MAX_RESENT = 10_000
MAX_CHOSEN = 200
_PLACE = re.compile(r"(.{1,255}):([0-9]{1,9}):([0-9]{1,18})")


class ResendDeadLetters(LetterFilter, kw_only=True):
    """With `again` those that were sent before, too; `to_topic` sends them to all groups of their topic."""

    max_messages: int = 1000
    again: bool = False
    to_topic: bool = False


class ResendLetters(msgspec.Struct):
    """Dead letters by their places, BROKER:QUEUE:OFFSET, a line each; as ResendDeadLetters."""

    group: str
    places: str = ""
    to_topic: bool = False


class StopWork(msgspec.Struct):
    id: int


async def resend_dead_letters(eye: Eye, one: ResendDeadLetters, work: Work) -> str:
    begin_ms, end_ms = one.times()
    work.of = await _letters(eye, one.group)
    done = await eye.admin.resend_dead_letters(
        one.group,
        topic=one.topic or None,
        begin_ms=begin_ms or 0,
        end_ms=end_ms,
        max_messages=one.max_messages,
        again=one.again,
        to_topic=one.to_topic,
        matches=one.matches,
        progress=lambda so_far: work.tell(sum(so_far), _said(so_far)),
    )
    return _said(done)


async def resend_letters(eye: Eye, one: ResendLetters, work: Work) -> str:
    chosen = _places(one)
    work.of = len(chosen)
    gone = 0

    async def letters() -> AsyncIterator[MessageExt]:
        nonlocal gone
        for place in chosen:
            try:
                letter = await find(eye, place)
            except ClientError:
                # The broker has deleted it meanwhile: it was old.
                gone += 1
                continue
            yield letter

    done = await eye.admin.resend_chosen_dead_letters(
        letters(), to_topic=one.to_topic, progress=lambda so_far: work.tell(sum(so_far) + gone, _said(so_far))
    )
    return _said(done._replace(unreadable=done.unreadable + gone))


async def stop_work(eye: Eye, one: StopWork) -> str:
    work = eye.works.stop(one.id)
    return f"work {work.id} is told to stop"


def _check_count(one: ResendDeadLetters) -> None:
    if not 1 <= one.max_messages <= MAX_RESENT:
        raise BadArguments(f"{one.max_messages} dead letters: 1 to {MAX_RESENT} are sent at once")
    one.times()


def _places(one: ResendLetters) -> list[MessageArguments]:
    """Raises BadArguments."""
    chosen = list(dict.fromkeys(one.places.split("\n"))) if one.places else []
    if not 1 <= len(chosen) <= MAX_CHOSEN:
        raise BadArguments(f"{len(chosen)} dead letters are chosen: 1 to {MAX_CHOSEN} are wanted")
    return [_place(one.group, text) for text in chosen]


def _said(done: ResentDeadLetters) -> str:
    return f"{done.resent} dead letters sent again, {done.left_out} left out, {done.unreadable} unreadable"


def _place(group: str, text: str) -> MessageArguments:
    """Raises BadArguments."""
    match = _PLACE.fullmatch(text.strip())
    if match is None:
        raise BadArguments(f"{text[:300]!r} is no place of a dead letter: BROKER:QUEUE:OFFSET")
    return MessageArguments(topic=dead_topic(group), broker=match[1], queue=int(match[2]), offset=int(match[3]))


async def _letters(eye: Eye, group: str) -> int | None:
    """How many the group has; None when that can't be known."""
    try:
        stats = await eye.admin.topic_stats(dead_topic(group))
    except GantryError:
        return None
    return sum(queue.max_offset - queue.min_offset for queue in stats.offset_table.values())


CHANGES = (
    LongChange(
        name="resend-dead-letters",
        arguments=ResendDeadLetters,
        check=_check_count,
        about=lambda one: one.group,
        perform=resend_dead_letters,
    ),
    LongChange(
        name="resend-letters",
        arguments=ResendLetters,
        check=_places,
        about=lambda one: one.group,
        perform=resend_letters,
    ),
    Change(
        name="stop-work",
        arguments=StopWork,
        perform=stop_work,
        back=lambda one: link("works"),
    ),
)
