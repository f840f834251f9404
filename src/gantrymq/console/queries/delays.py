"""Delayed messages: their number in each delay level, and the state of the timers."""

from __future__ import annotations

import msgspec

from gantrymq.console.cluster_view import ClusterView, Servers
from gantrymq.console.fan_out import Unasked
from gantrymq.console.queries.servers import Nothing, servers_of
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.stats import TopicOffset
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC

#: Prefix of the delay levels' keys in a broker's metrics. A value has the delivered offset and the end offset of the
#: level's queue.
_LEVEL = "scheduleMessageOffset_"


class DelayLevel(msgspec.Struct):
    """One delay level on one broker. Messages from offset `delivered` to `end` are still delayed."""

    broker: str
    level: int
    delivered: int
    end: int

    @property
    def waiting(self) -> int:
        return max(self.end - self.delivered, 0)


class Timers(msgspec.Struct):
    """The timer of a broker: delayed messages, messages that are not enqueued yet, and its delay, s."""

    broker: str
    waiting: str
    not_taken_in: str
    overdue_s: str


class DelaysPage(msgspec.Struct):
    """The delay levels and timers of all brokers. Levels that never had a message are omitted."""

    levels: list[DelayLevel]
    timers: list[Timers]
    unasked: list[Unasked]


async def delays(view: ClusterView, arguments: Nothing) -> DelaysPage:
    return DelaysPage(*await delay_levels(view, await servers_of(view)))


async def delay_levels(view: ClusterView, servers: Servers) -> tuple[list[DelayLevel], list[Timers], list[Unasked]]:
    """Returns the delay levels, timers and failed requests of all brokers."""
    levels: list[DelayLevel] = []
    timers = []
    unasked = list(servers.unasked)
    ends: dict[MessageQueue, TopicOffset] = {}
    try:
        ends = (await view.admin.topic_stats(SCHEDULE_TOPIC)).offset_table
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
    """Returns the delivered offset of a level. Brokers do not report levels without a delivered message."""
    offset = figures.get(f"{_LEVEL}{level}", "").partition(",")[0]
    return int(offset) if offset.isascii() and offset.isdigit() else 0
