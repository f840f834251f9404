"""A master's store with all that a log can have, and how a slave's gets it in pieces."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store_support import BORN_HOST, LOG_FILE, STORE_HOST, finish, put, small_config

from gantrymq.errors import StoreBusy
from gantrymq.protocol.java import tags_code
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.delay_level import parse_delay_levels, tags_code_of
from gantrymq.store.message_store import MessageStore

HOST_V6 = encode_host("2001:db8::1", 10911)
#: Records of this topic are of version 2.
LONG_TOPIC = "T" * 200
TOPICS = ("Fruit", "Fruit", "Nut", LONG_TOPIC, SCHEDULE_TOPIC)
#: A piece that has all there is.
BEHIND = 1 << 30
TAG_CODES = [tags_code(b"t%d" % n) for n in range(5)]


def open_slave(root: Path, *, waits: bool = True, **options: Any) -> MessageStore:
    store = MessageStore(small_config(root, **options), STORE_HOST, waits=waits)
    store.set_slave(True)
    store.open()
    return store


def write(store: MessageStore, rng: random.Random, count: int) -> None:
    """Messages of all kinds, and topics that are deleted and made anew."""
    for n in range(count):
        topic = rng.choice(TOPICS)
        queue = store.queue(topic, rng.randrange(3))
        kind = rng.random()
        if kind < 0.02:
            store.delete_topic("Nut")
        elif kind < 0.1 and topic != SCHEDULE_TOPIC:
            batch = store.begin_batch(queue, 0, 1, BORN_HOST, 0)
            for m in range(rng.randrange(1, 60)):
                batch.add(m, b"%d of a batch" % m, b"TAGS\x01t1\x02", TAG_CODES[1])
            store.append_batch(batch)
        else:
            size = rng.choice((0, 10, 10, 100, 100, 300, 3000, LOG_FILE // 2 + rng.randrange(2000)))
            key = b"%d" % rng.randrange(1 << 40)
            properties = b"KEYS\x01%s\x02UNIQ_KEY\x01u%s\x02" % (key, key)
            code = 0
            if topic == SCHEDULE_TOPIC:
                properties += b"DELAY\x01%d\x02" % rng.randrange(1, 4)
            elif n % 6:
                properties += b"TAGS\x01t%d\x02" % (n % 5)
                code = TAG_CODES[n % 5]
            put(
                store,
                queue,
                rng.randbytes(size),
                properties=properties,
                tags_code=code,
                sys_flag=rng.choice((0, 0, 0, 0, TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)),
                born_host=rng.choice((BORN_HOST, BORN_HOST, BORN_HOST, HOST_V6)),
            )


def write_without_deleting(store: MessageStore, rng: random.Random, count: int) -> None:
    """What is deleted can't be brought back by cutting."""
    for _ in range(count):
        queue = store.queue(rng.choice(("Fruit", "Nut", LONG_TOPIC)), rng.randrange(3))
        key = b"%d" % rng.randrange(1 << 40)
        size = rng.choice((10, 100, 1000, LOG_FILE // 3))
        put(store, queue, rng.randbytes(size), properties=b"KEYS\x01%s\x02UNIQ_KEY\x01u%s\x02" % (key, key))


def append(slave: MessageStore, data: bytes | memoryview) -> list[ConsumeQueue]:
    """The replica's `append`; waits for files that are being made."""
    while True:
        try:
            return slave.replica.append(data)
        except StoreBusy:
            made = threading.Event()
            slave.when_room(made.set)
            assert made.wait(10)


def follow(master: MessageStore, slave: MessageStore, piece: Callable[[], int]) -> None:
    """Brings the slave to the master's end in pieces of `piece()` bytes."""
    while (data := master.log_slice(slave.replica.received, piece())) is not None:
        append(slave, data)
    assert slave.max_physical_offset == slave.replica.received == master.max_physical_offset


def log_bytes(store: MessageStore, start: int) -> bytes:
    """The log's content from there on, as the files have it."""
    pieces = []
    while (data := store.log_slice(start, 1 << 30)) is not None:
        pieces.append(bytes(data))
        start += len(data)
    return b"".join(pieces)


def queues_of(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, list[tuple[int, int, int]]]]:
    """Of each queue that has files where it begins and ends, and its units; those of SCHEDULE_TOPIC as they should be.

    Their tags code is when they are due; the master's broker reads the clock itself.
    """
    found = {}
    delays_ms = parse_delay_levels(store.config.message_delay_level)
    for topic, queue_ids in store.topics().items():
        for queue_id in queue_ids:
            queue = store.queue(topic, queue_id)
            units = [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]
            assert all(units)
            if topic == SCHEDULE_TOPIC:
                units = [(at, size, tags_code_of(store.read_record(at), delays_ms)) for at, size, _ in units]
            found[topic, queue_id] = queue.min_offset, queue.max_offset, units
    return found


def assert_equal(master: MessageStore, slave: MessageStore) -> None:
    """The slave has what the master has from the slave's first offset on: log, queues, and what keys find."""
    first = slave.min_physical_offset
    assert log_bytes(slave, first) == log_bytes(master, first)
    expected = {}
    for key, (_, end, units) in queues_of(master).items():
        units = [unit for unit in units if unit[0] >= first]
        if units:
            expected[key] = end - len(units), end, units
    found = queues_of(slave)
    assert {key: found[key] for key in expected} == expected
    # Nobody told the slave that the topic was deleted.
    assert {topic for topic, _ in found.keys() - expected.keys()} <= {"Nut"}
    for store in (master, slave):
        while not store.keys.build_index(1):
            pass
    for (topic, _), (_, _, units) in list(expected.items()):
        for at, _, _ in units[::7]:
            first_property = slave.read_record(at).properties.partition(b"\x02")[0].decode()
            if first_property.startswith("KEYS\x01"):
                assert at in finish(slave.keys.find_by_unique_key(topic, f"u{first_property[5:]}"))
