"""A master's store with all kinds of records, and a slave's store that receives its log in pieces."""

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
from gantrymq.store.key_lookup import by_unique_key
from gantrymq.store.message_store import MessageStore

HOST_V6 = encode_host("2001:db8::1", 10911)
#: Records of this topic have version 2 of the format.
LONG_TOPIC = "T" * 200
TOPICS = ("Fruit", "Fruit", "Nut", LONG_TOPIC, SCHEDULE_TOPIC)
#: Piece size for the whole log at once.
BEHIND = 1 << 30
TAG_CODES = [tags_code(b"t%d" % n) for n in range(5)]


def open_slave(root: Path, *, waits: bool = True, **options: Any) -> MessageStore:
    store = MessageStore(small_config(root, **options), STORE_HOST, waits=waits)
    store.set_slave(True)
    store.open()
    return store


def write(store: MessageStore, rng: random.Random, count: int) -> None:
    """Stores messages of all kinds. Some topics are deleted and created again."""
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
    """Stores messages without deleting topics.

    A truncation cannot restore a deleted topic.
    """
    for _ in range(count):
        queue = store.queue(rng.choice(("Fruit", "Nut", LONG_TOPIC)), rng.randrange(3))
        key = b"%d" % rng.randrange(1 << 40)
        size = rng.choice((10, 100, 1000, LOG_FILE // 3))
        put(store, queue, rng.randbytes(size), properties=b"KEYS\x01%s\x02UNIQ_KEY\x01u%s\x02" % (key, key))


def append(slave: MessageStore, data: bytes | memoryview) -> list[ConsumeQueue]:
    """Calls `append` of the replica, and waits for files that are being preallocated."""
    while True:
        try:
            return slave.replica.append(data)
        except StoreBusy:
            made = threading.Event()
            slave.when_preallocated(made.set)
            assert made.wait(10)


def follow(master: MessageStore, slave: MessageStore, piece: Callable[[], int]) -> None:
    """Copies the master's log to the slave up to its end, in pieces of `piece()` bytes."""
    while (data := master.log_slice(slave.replica.received, piece())) is not None:
        append(slave, data)
    assert slave.max_physical_offset == slave.replica.received == master.max_physical_offset


def log_bytes(store: MessageStore, start: int) -> bytes:
    """Returns the content of the log files from `start`."""
    pieces = []
    while (data := store.log_slice(start, 1 << 30)) is not None:
        pieces.append(bytes(data))
        start += len(data)
    return b"".join(pieces)


def queues_of(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, list[tuple[int, int, int]]]]:
    """Returns (first offset, end offset, units) of each queue that has files.

    For units of `SCHEDULE_TOPIC`, the tags code is the delivery time. It is computed here, because the master's broker
    uses its own clock.
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
    """Checks that the slave has the master's log, queues and keys from the slave's first offset."""
    first = slave.min_physical_offset
    assert log_bytes(slave, first) == log_bytes(master, first)
    expected = {}
    for key, (_, end, units) in queues_of(master).items():
        units = [unit for unit in units if unit[0] >= first]
        if units:
            expected[key] = end - len(units), end, units
    found = queues_of(slave)
    assert {key: found[key] for key in expected} == expected
    # The slave was not notified that the topic was deleted.
    assert {topic for topic, _ in found.keys() - expected.keys()} <= {"Nut"}
    for store in (master, slave):
        while not store.keys.build_index(1):
            pass
    for (topic, _), (_, _, units) in list(expected.items()):
        for at, _, _ in units[::7]:
            first_property = slave.read_record(at).properties.partition(b"\x02")[0].decode()
            if first_property.startswith("KEYS\x01"):
                assert at in finish(slave.keys.find(by_unique_key(topic, f"u{first_property[5:]}")))
