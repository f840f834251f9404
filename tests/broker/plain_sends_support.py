"""Brokers with and without the native fast path for sends, and send frames of several clients.

The tests compare the results of both kinds of broker.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from broker_support import config, server_of, set_request_slice
from transports import Keeping
from wrong_clock import set_store_clock

from gantrymq.background.jobs import Jobs
from gantrymq.background.repeating import Repeating, Work
from gantrymq.broker import context as context_module
from gantrymq.broker.broker import Broker
from gantrymq.broker.send import processor as send
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.protocol.record import encode_host
from gantrymq.protocol.sys_flag import COMPRESSED
from gantrymq.remoting.connection import Connection, FirstLook
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.time_slices import SLICE_S, TimeSlices

#: Port in the records of all these brokers, so that their logs are equal.
PORT = 10911
NOW_S = 1_700_000_000.5
TOPICS = ("orders", "trades")


class Rounds(Jobs):
    """Runs the rounds of time slices when the test calls `work`."""

    def repeating(self, name: str, work: Work, *args: Any, **options: Any) -> Repeating:
        self.work = work
        return super().repeating(name, work, *args, **options)


class Client:
    """A connection whose input is passed to the broker directly.

    `first_look` replaces the broker's function that handles plain sends.
    """

    def __init__(self, broker: Broker, host: str = "127.0.0.1", first_look: FirstLook | None = None) -> None:
        self._rounds = Rounds()
        self._slices = TimeSlices(jobs=self._rounds)
        self._transport = Keeping(host)
        self.connection = Connection(
            broker.handlers,
            is_server=True,
            limits=ConnectionLimits(self._slices),
            first_look=first_look or server_of(broker).first_look,
        )
        self.connection.connection_made(self._transport)

    def read(self, data: bytes) -> bytes:
        """Passes one read to the broker and returns its responses."""
        self._transport.data, self._transport.calls = b"", 0
        self.connection.data_received(data)
        while self.connection.is_behind or self._slices.used > SLICE_S:
            self._rounds.work()
        return self._transport.data

    def answers(self, data: bytes) -> list[RemotingCommand]:
        return list(FrameReader().feed(self.read(data)))

    @property
    def written(self) -> int:
        """Number of writes to the client after the last `read` or `taken`."""
        return self._transport.calls

    def taken(self) -> list[RemotingCommand]:
        """Returns the responses written after the last `read` or `taken`."""
        data, self._transport.data, self._transport.calls = self._transport.data, b"", 0
        return list(FrameReader().feed(data))


class Keys:
    """Unique keys that are the same in each run."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"{self._count:032X}"


@asynccontextmanager
async def running(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    natively: bool = True,
    of_store: dict[str, object] | None = None,
    **changed: object,
) -> AsyncIterator[Broker]:
    """Runs a broker with two topics of four queues.

    Its clock is stopped, and time slices are so long that they never end.
    """
    monkeypatch.setattr(context_module, "encode_host", lambda ip, port: encode_host(ip, PORT))
    set_store_clock(monkeypatch, lambda: NOW_S)
    set_request_slice(monkeypatch, 3600.0)
    settings = config(directory, **changed)
    # Queues must stay dirty, however long a test takes.
    settings.store.flush_interval_consume_queue_ms = 24 * 3600 * 1000
    for name, value in (of_store or {}).items():
        setattr(settings.store, name, value)
    with monkeypatch.context() as patch:
        if not natively:
            patch.setattr(send, "native", None)
        patch.setattr(send, "UniqueKeys", lambda host: Keys())
        broker = Broker(settings)
    await broker.start()
    try:
        for topic in TOPICS:
            broker.topics.put(TopicConfig(topic, 4, 4))
        await broker.topics.written()
        # These clients do not retry when the store is preallocating a file.
        with broker.store.waiting():
            yield broker
    finally:
        await broker.stop()


def stop_waiting(broker: Broker) -> None:
    """Makes requests wait in the broker's queue, as usual, while the store is preallocating a file."""
    broker.store._preallocation.waits = False


def known(broker: Broker) -> int:
    """Returns the number of request headers that native code has cached."""
    plain = broker.features.sending.plain
    assert plain is not None
    return plain.known


def stored(broker: Broker, *more: str) -> dict[str, object]:
    """Returns the whole log and the queues of `TOPICS` and of the topics in `more`."""
    store = broker.store
    log = store.log_slice(0, store.max_physical_offset) or b""
    queues = {
        (topic, queue_id): (queue.max_offset, queue.units(0, queue.max_offset))
        for topic in (*TOPICS, *more)
        for queue_id in range(4)
        if (queue := store.find_queue(topic, queue_id)) is not None
    }
    return {"log": bytes(log), "queues": queues}


def properties_of(*items: str) -> str:
    return "".join(f"{item}\x02" for item in items)


PLAIN = properties_of("UNIQ_KEY\x017F000001", "TAGS\x01red")

_LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
#: Field order of a Java HashMap.
_LONG_ORDER = "ehfjmkcdalbgi"

WAYS = ("binary", "java", "java V1", "go")


def frame(
    way: str,
    opaque: int,
    body: bytes = b"body",
    properties: str = PLAIN,
    *,
    code: int = 310,
    flag: int = 0,
    left_out: Sequence[str] = (),
    **fields: object,
) -> bytes:
    """Returns a send request as the client `way` encodes it.

    V1 requests always have code 10. The names in `fields` are the one-letter names of V2.
    """
    values = {
        "a": "producers",
        "b": "orders",
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1_700_000_000_123 + opaque,
        "h": 0,
        "i": properties,
        "j": 0,
        "k": "false",
        "l": 0,
        "m": "false",
        "n": "broker-a",
    } | fields
    texts = {name: str(value) for name, value in values.items() if name not in left_out}
    if way == "binary":
        ext = b"".join(
            pack(">H", len(name)) + name.encode() + pack(">i", len(value.encode())) + value.encode()
            for name, value in texts.items()
        )
        header = pack(">hBhiiii", code, 0, 479, opaque, flag, 0, len(ext)) + ext
    else:
        if way == "java V1":
            code, texts = 10, {_LONG_NAMES[name]: texts[name] for name in _LONG_ORDER if name in texts}
        command: dict[str, object] = {"code": code, "extFields": texts, "flag": flag, "language": "JAVA"}
        command |= {"opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 479}
        if way == "go":
            command = {"code": code, "language": "GO", "version": 317, "opaque": opaque, "flag": flag}
            command |= {"remark": "", "extFields": texts}
        header = json.dumps(command, separators=(",", ":"), ensure_ascii=False).encode()
    return pack(">II", 4 + len(header) + len(body), (way == "binary") << 24 | len(header)) + header + body


PROPERTIES = [
    PLAIN,
    PLAIN[:-1],
    properties_of("TAGS\x01röt", 'a\x01"b\\', "UNIQ_KEY\x017F"),
    properties_of("TAGS\x01", "TAGS\x01blue", "UNIQ_KEY\x017F"),
    properties_of("UNIQ_KEY\x017F", "WAIT\x01true"),
    properties_of("XUNIQ_KEY\x017F"),
    "",
    properties_of("UNIQ_KEY\x017F", "DELAY\x012"),
    properties_of("UNIQ_KEY\x017F", "POP_CK\x01x"),
    properties_of("UNIQ_KEY\x017F", "CLUSTER\x01far", "TRACE_ON\x01false"),
    properties_of("UNIQ_KEY\x017F", "a\x01" + "x" * 32_700),
    properties_of("UNIQ_KEY\x017F", "a\x01\n\x00\x1f"),
]


#: Properties of a batch as Java clients write them.
OF_BATCH = properties_of("WAIT\x01true", "UNIQ_KEY\x017F000002")
#: Properties of the messages in a batch.
IN_BATCH = [
    b"",
    PLAIN.encode(),
    b"TAGS\x01blue",
    "TAGS\x01röt\x02TAGS\x01\x02KEYS\x01a b\x02".encode(),
    b"a\x01\xff\x00\x02",
    b"WAIT\x01false\x02DELAY\x012\x02",
    b"TRAN_MSG\x01true\x02PGROUP\x01producers\x02",
    b"a\x01" + b"x" * 32_700,
]


def batch_frame(
    way: str, opaque: int, messages: Sequence[tuple[int, bytes, bytes]], properties: str = OF_BATCH, **fields: object
) -> bytes:
    """Returns a batch of (flag, body, properties) as the client `way` encodes it."""
    return frame(way, opaque, encode_batch(messages), properties, **{"code": 320, "m": "true"} | fields)  # type: ignore[arg-type]


def any_batch(draw: random.Random, opaque: int) -> bytes:
    """Returns a random batch, mostly a plain one.

    There are few different headers, so native code soon has them in its cache.
    """
    fields: dict[str, object] = {"code": 310 if draw.random() < 0.1 else 320, "m": "true", "e": draw.randrange(2)}
    properties = "" if draw.random() < 0.1 else OF_BATCH
    in_batch = IN_BATCH if draw.random() < 0.05 else IN_BATCH[:-1]
    messages = [
        (draw.choice([0, 7, -1]), draw.randbytes(draw.choice([0, 1, 128])), draw.choice(in_batch))
        for _ in range(draw.choice([1, 2, 32, 100]))
    ]
    kind = draw.random()
    if kind < 0.08:
        messages[draw.randrange(len(messages))] = (0, b"x", b"UNIQ_KEY\x017F\x02POP_CK\x01x\x02")
    elif kind < 0.12:
        messages = draw.choice([[], [(0, b"", b"")] * 5000, [(0, bytes(3_000_000), b"")] * 2])
    elif kind < 0.18:
        properties = draw.choice(PROPERTIES)
    elif kind < 0.24:
        fields |= draw.choice(
            [{"f": 4}, {"f": 8}, {"f": 0x30}, {"j": 3}, {"e": 9}, {"b": "trades"}, {"b": "nobody's"}, {"h": 7}]
        )
    body = bytearray(encode_batch(messages))
    if 0.24 < kind < 0.35 and body:
        for _ in range(draw.randrange(3)):
            body[draw.randrange(min(len(body), 400))] = draw.choice([0, 1, 0x7F, 0xFF])
        del body[draw.choice([len(body), draw.randrange(len(body))]) :]
    flag = 2 if draw.random() < 0.03 else 0
    return frame(draw.choice(["binary", "java"]), opaque, bytes(body), properties, flag=flag, **fields)  # type: ignore[arg-type]


def any_send(draw: random.Random, opaque: int) -> bytes:
    """Returns a random send, mostly a plain one. One in four is a batch."""
    if draw.random() < 0.25:
        return any_batch(draw, opaque)
    fields: dict[str, object] = {"b": draw.choice(TOPICS), "e": draw.randrange(4)}
    properties = PLAIN
    body = draw.randbytes(draw.choice([0, 1, 100, 3000]))
    kind = draw.random()
    if kind < 0.3:
        properties = draw.choice(PROPERTIES)
    elif kind < 0.5:
        fields |= draw.choice(
            [
                {"h": 7},
                {"f": COMPRESSED},
                {"f": 4},
                {"f": 0x30},
                {"j": 3},
                {"e": 9},
                {"b": "nobody's"},
                {"g": 12},
                {"g": "0700000000123"},
                {"a": 'quote"d'},
                {"a": "g"},
                {"a": "opaque"},
                {"n": "x" * 1024},
                {"o": "other"},
            ]
        )
    elif kind < 0.55:
        body = bytes(5 * 1024 * 1024)
    way = draw.choice(WAYS)
    flag = 2 if draw.random() < 0.05 else 0
    left_out = draw.choice(["h", "j", "n", "i"]) if draw.random() < 0.05 else ""
    return frame(way, opaque, body, properties, flag=flag, left_out=left_out, **fields)
