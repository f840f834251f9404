"""Delayed messages of delay levels and timers, by due time."""

from __future__ import annotations

import asyncio

import msgspec

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.fan_out import Unasked
from gantrymq.console.queries.delays import DelayLevel, delay_levels
from gantrymq.console.queries.messages import MessageRow, row_of
from gantrymq.console.queries.servers import servers_of
from gantrymq.console.queries.timer_reader import read_queue, read_timer
from gantrymq.errors import ConfigError, GantryError
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.properties import REAL_TOPIC, TIMER_DEL_UNIQKEY, UNIQUE_KEY
from gantrymq.protocol.topic_name import REVIVE_TOPIC_PREFIX, SCHEDULE_TOPIC
from gantrymq.store.delay_level import parse_delay_levels
from gantrymq.system.clock import now_ms

#: Limits: messages read of each delay level, and messages shown in total.
MAX_OF_LEVEL = 32
MAX_SHOWN = 200


class DueArguments(msgspec.Struct):
    """Arguments of the page. `topic` limits it to messages of one topic."""

    topic: str = ""


class DueMessage(msgspec.Struct):
    """A delayed message that is due at `due_ms`. `level` is 0 for a timer message. `topic` is its target topic."""

    due_ms: int
    level: int
    topic: str
    row: MessageRow


class DuePage(msgspec.Struct):
    """The next due messages. After `up_to_ms`, some may be missing; `up_to_ms` is None if all were read."""

    topic: str
    rows: list[DueMessage]
    up_to_ms: int | None
    #: Brokers with more timer records than were read. Only their newest records are included.
    partly: list[str]
    unasked: list[Unasked]


async def due(view: ClusterView, arguments: DueArguments) -> DuePage:
    servers = await servers_of(view)
    levels, _, unasked = await delay_levels(view, servers)
    topic = arguments.topic.strip()
    now = now_ms()
    delays = await view.each(servers.masters.values(), lambda address: _delays(view, address))
    addresses = {name: address for name, address in servers.masters.items() if address in delays.results}
    found: list[DueMessage] = []
    up_to: list[int] = []
    partly: list[str] = []

    async def of_level(level: DelayLevel) -> None:
        address = addresses[level.broker]
        delays_ms = delays.results[address]
        delay_ms = delays_ms[level.level - 1] if level.level <= len(delays_ms) else 0
        end = min(level.end, level.delivered + MAX_OF_LEVEL)
        queue = MessageQueue(SCHEDULE_TOPIC, level.broker, level.level - 1)
        rows = [
            DueMessage(one.store_timestamp + delay_ms, level.level, one.properties.get(REAL_TOPIC, ""), row_of(one))
            for one in await read_queue(view, address, queue, level.delivered, end)
        ]
        found.extend(rows)
        if end < level.end and rows:
            up_to.append(rows[-1].due_ms)

    async def of_timer(name: str) -> None:
        recalled: set[str] = set()

        def read(message: MessageExt, out_ms: int) -> tuple[str, DueMessage] | None:
            properties = message.properties
            real_topic = properties.get(REAL_TOPIC, "")
            if TIMER_DEL_UNIQKEY in properties:
                # In some versions of the client, the topic precedes the key.
                recalled.add(properties[TIMER_DEL_UNIQKEY].rpartition("+")[2])
                return None
            if real_topic.startswith(REVIVE_TOPIC_PREFIX):
                return None
            return properties.get(UNIQUE_KEY, ""), DueMessage(out_ms, 0, real_topic, row_of(message))

        rows, is_all = await read_timer(view, name, addresses[name], read, now)
        # If a message is due after the end of the timer wheel, it has a record for each round of the wheel.
        once = {(key or row.row.id, row.due_ms): row for key, row in rows if key not in recalled}
        found.extend(once.values())
        if not is_all:
            partly.append(name)

    tried = await asyncio.gather(
        *(of_level(level) for level in levels if level.waiting and level.broker in addresses),
        *(of_timer(name) for name in addresses),
        return_exceptions=True,
    )
    for error in tried:
        if isinstance(error, GantryError):
            unasked.append(Unasked("delayed messages", str(error)))
        elif error is not None:
            raise error
    rows = sorted((one for one in found if topic in ("", one.topic)), key=lambda one: (one.due_ms, one.row.offset))
    shown_to = min(up_to, default=None)
    if len(rows) > MAX_SHOWN:
        shown_to = min(rows[MAX_SHOWN - 1].due_ms, shown_to if shown_to is not None else rows[MAX_SHOWN - 1].due_ms)
    if shown_to is not None:
        rows = [one for one in rows if one.due_ms <= shown_to]
    return DuePage(topic, rows[:MAX_SHOWN], shown_to, sorted(partly), [*unasked, *delays.unasked])


async def _delays(view: ClusterView, address: str) -> list[int]:
    """Returns the delay of each level, ms."""
    text = (await view.admin.broker_config(address)).get("messageDelayLevel", "")
    try:
        return parse_delay_levels(text)
    except ConfigError as e:
        raise GantryError(f"messageDelayLevel: {e}") from e
