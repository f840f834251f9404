"""What is done with single messages."""

from __future__ import annotations

import msgspec

from gantrymq.console.changes.change import Change
from gantrymq.console.eye import Eye
from gantrymq.console.links import link
from gantrymq.console.pages import BadArguments
from gantrymq.console.queries.messages import MessageArguments, find


class ConsumeDirectly(msgspec.Struct):
    """Has one consumer consume a message now."""

    topic: str
    broker: str
    queue: int
    offset: int
    group: str
    client_id: str


class EndGivenUp(msgspec.Struct):
    """`how` is commit or rollback."""

    how: str
    max_messages: int = 100


async def consume_directly(eye: Eye, one: ConsumeDirectly) -> str:
    place = MessageArguments(topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset)
    result = await eye.admin.consume_directly(one.group, one.client_id, await find(eye, place))
    return f"{one.client_id} answers {result.consume_result} after {result.spent_time_mills} ms: {result.remark or '-'}"


async def end_given_up(eye: Eye, one: EndGivenUp) -> str:
    if one.how not in ("commit", "rollback"):
        raise BadArguments(f"{one.how!r}: commit or rollback")
    ended = await eye.admin.end_given_up(commit=one.how == "commit", max_messages=max(one.max_messages, 0))
    return f"{ended} transactions ended: {one.how}"


CHANGES = (
    Change(
        name="consume-directly",
        arguments=ConsumeDirectly,
        perform=consume_directly,
        back=lambda one: link("message", topic=one.topic, broker=one.broker, queue=one.queue, offset=one.offset),
    ),
    Change(
        name="end-given-up",
        arguments=EndGivenUp,
        perform=end_given_up,
        back=lambda one: link("transactions"),
    ),
)
