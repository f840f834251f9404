"""Counts the records of each message in the brokers' logs at the end of a run: delayed and delivered ones.

A producer that gets no response sends again, so a message can be stored and delivered several times. If the queues of
the topic have more copies than were delayed, a broker has repeated a delivery.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from gantrymq.errors import GantryError
from gantrymq.protocol import properties as names
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC, TIMER_TOPIC
from gantrymq.store.message_store import MessageStore
from sim.cluster import Servers
from sim.plan import QUEUES, TOPIC
from sim.system import EPOCH_S

#: Number of delay levels.
_LEVELS = 18


@dataclass
class Copies:
    """Copies of one message in the logs of all masters."""

    #: Number of copies in the queues of delayed and timed messages.
    waited: int = 0
    #: Store times of the copies in the topic, in seconds by the clocks of their brokers.
    stored_at: list[float] = field(default_factory=list)
    #: Store times of committed copies, by broker and physical offset of the half message.
    committed_at: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))


def copies_of(servers: Servers) -> dict[str, Copies]:
    """Returns the copies of all messages, by message name."""
    found: dict[str, Copies] = defaultdict(Copies)
    masters = servers.masters()
    for program, broker in servers.looked_into():
        name = broker.config.broker_name
        if masters.get(name) is broker:
            program.look(partial(_look, found, name, broker.store))
    return found


def _look(found: dict[str, Copies], broker: str, store: MessageStore) -> None:
    waiting = [(SCHEDULE_TOPIC, level) for level in range(_LEVELS)] + [(TIMER_TOPIC, 0)]
    for record in _records(store, waiting):
        if decode_properties(record.properties).get(names.REAL_TOPIC) == TOPIC:
            found[_name(record)].waited += 1
    for record in _records(store, [(TOPIC, queue_id) for queue_id in range(QUEUES)]):
        copies, at = found[_name(record)], record.store_timestamp / 1000 - EPOCH_S
        copies.stored_at.append(at)
        if record.prepared_transaction_offset:
            copies.committed_at[broker, record.prepared_transaction_offset].append(at)


def _records(store: MessageStore, queues: list[tuple[str, int]]) -> Iterator[Record]:
    known = store.topics()
    for topic, queue_id in queues:
        if queue_id not in known.get(topic, ()):
            continue
        queue = store.queue(topic, queue_id)
        for offset in range(queue.min_offset, queue.max_offset):
            if (unit := queue.unit(offset)) is not None:
                try:
                    yield store.read_record(unit[0])
                except GantryError:
                    # A fault (`rot` or `lies`) has damaged the record.
                    continue


def _name(record: Record) -> str:
    return record.body.decode(errors="replace").strip()
