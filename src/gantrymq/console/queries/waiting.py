"""Messages that wait in the system's own topics: delayed ones, timed ones, transactions that nobody has ended."""

from __future__ import annotations

import msgspec

from gantrymq.console.asking import Unasked
from gantrymq.console.eye import Eye, Servers
from gantrymq.console.queries.messages import MessageRow, row_of
from gantrymq.console.queries.servers import Nothing, servers_of
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.stats import TopicOffset
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import PRODUCER_GROUP, REAL_TOPIC, TRANSACTION_CHECK_TIMES
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC

#: The key in a broker's figures; its value is how far the level's queue is delivered, and its end.
_LEVEL = "scheduleMessageOffset_"
#: Half messages that are shown.
MAX_GIVEN_UP = 200


class DelayLevel(msgspec.Struct):
    """Messages of one delay level that wait on one broker."""

    broker: str
    level: int
    delivered: int
    end: int

    @property
    def waiting(self) -> int:
        return max(self.end - self.delivered, 0)


class Timers(msgspec.Struct):
    """A broker's timer: messages in it that have come in and wait, are to be taken in, and for how long overdue, s."""

    broker: str
    waiting: str
    not_taken_in: str
    overdue_s: str


class DelaysPage(msgspec.Struct):
    """Levels of which no message ever came are left out."""

    levels: list[DelayLevel]
    timers: list[Timers]
    unasked: list[Unasked]


class GivenUp(msgspec.Struct):
    """A half message that its broker doesn't ask about any more."""

    row: MessageRow
    topic: str
    producer_group: str
    checks: str


class TransactionsPage(msgspec.Struct):
    """In the order in which they came on each broker: in this order they can be ended."""

    given_up: list[GivenUp]
    is_all: bool


async def delays(eye: Eye, arguments: Nothing) -> DelaysPage:
    return DelaysPage(*await delay_levels(eye, await servers_of(eye)))


async def delay_levels(eye: Eye, servers: Servers) -> tuple[list[DelayLevel], list[Timers], list[Unasked]]:
    """What brokers say of their delays, and what they didn't say."""
    levels: list[DelayLevel] = []
    timers = []
    unasked = list(servers.unasked)
    ends: dict[MessageQueue, TopicOffset] = {}
    try:
        ends = (await eye.admin.topic_stats(SCHEDULE_TOPIC)).offset_table
    except GantryError as e:
        unasked.append(Unasked(SCHEDULE_TOPIC, str(e)))
    for name, address in servers.masters.items():
        figures = servers.runtime.get(address)
        if figures is None:
            continue
        levels += [
            DelayLevel(name, queue.queue_id + 1, _delivered(figures, queue.queue_id + 1), offsets.max_offset)
            for queue, offsets in ends.items()
            if queue.broker_name == name and offsets.max_offset
        ]
        timers.append(
            Timers(
                name,
                figures.get("timerCongestNum", ""),
                figures.get("timerOffsetBehind", ""),
                figures.get("timerReadBehind", ""),
            )
        )
    return sorted(levels, key=lambda one: (one.broker, one.level)), timers, unasked


def _delivered(figures: dict[str, str], level: int) -> int:
    """How far a level's queue is delivered: brokers don't tell it of one of which they have delivered nothing."""
    offset = figures.get(f"{_LEVEL}{level}", "").partition(",")[0]
    return int(offset) if offset.isascii() and offset.isdigit() else 0


async def transactions(eye: Eye, arguments: Nothing) -> TransactionsPage:
    halves = await eye.admin.given_up_transactions(MAX_GIVEN_UP + 1)
    return TransactionsPage([_given_up(half) for half in halves[:MAX_GIVEN_UP]], len(halves) <= MAX_GIVEN_UP)


def _given_up(half: MessageExt) -> GivenUp:
    properties = half.properties
    return GivenUp(
        row_of(half),
        properties.get(REAL_TOPIC, ""),
        properties.get(PRODUCER_GROUP, ""),
        properties.get(TRANSACTION_CHECK_TIMES, ""),
    )
