"""Changes between sends, and unusual sends.

A broker with native code behaves like one without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import pack

import pytest
from plain_sends_support import (
    NOW_S,
    PLAIN,
    Client,
    batch_frame,
    frame,
    known,
    properties_of,
    running,
    stop_waiting,
    stored,
)
from slow_disk import SlowMaking
from wait_until import until
from wrong_clock import set_store_clock

from gantrymq.broker.broker import Broker
from gantrymq.kernels import native
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.sys_flag import COMPRESSED
from gantrymq.protocol.topic_name import TRACE_TOPIC

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

Change = Callable[[Broker, pytest.MonkeyPatch], Awaitable[None]]


async def forbid_and_allow(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.topics.put(TopicConfig("orders", 4, 4, perm=4))
    broker.topics.put(TopicConfig("orders", 4, 4))


async def recreate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.topics.remove("orders")
    broker.store.delete_topic("orders")
    broker.topics.put(TopicConfig("orders", 4, 4))


async def have_more_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.topics.put(TopicConfig("orders", 9, 9))


async def have_fewer_to_write(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.topics.put(TopicConfig("orders", 4, 1))


async def forbid_the_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the write permission of the broker.

    The permission concerns NameServers, which return it to producers.
    """
    broker.config.broker_permission = 4
    broker.context.events.config_changed.publish()


async def reject_transactions(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.config.reject_transaction_message = True
    broker.context.events.config_changed.publish()


async def take_larger_ones(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.config.store.max_message_size = 8192
    broker.context.events.config_changed.publish()


async def go_back_in_time(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    set_store_clock(monkeypatch, lambda: NOW_S - 3600)


async def be_a_slave_for_a_while(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.features.role_changes.become_slave()
    await broker.features.role_changes.become_master()


CHANGES: list[Change] = [
    forbid_and_allow,
    recreate,
    have_more_queues,
    have_fewer_to_write,
    forbid_the_broker,
    reject_transactions,
    take_larger_ones,
    go_back_in_time,
    be_a_slave_for_a_while,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_after_a_change(change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for natively in (False, True):
        with monkeypatch.context() as patch:
            async with running(
                tmp_path / str(natively), patch, natively=natively, of_store={"max_message_size": 4096}
            ) as broker:
                client = Client(broker)
                few, more = [(0, b"x", b"TAGS\x01t\x02")] * 3, [(0, bytes(500), b"")] * 9
                for opaque in (1, 2):
                    client.read(frame("java", opaque, e=1))
                    client.read(batch_frame("java", 100 + opaque, few, e=1))
                assert not natively or known(broker) == 2
                await change(broker, patch)
                await broker.topics.written()
                half = properties_of("UNIQ_KEY\x017F", "TRAN_MSG\x01true", "PGROUP\x01producers")
                answers.append(
                    [
                        client.read(read)
                        for read in (
                            frame("java", 3, e=1) + frame("java", 4, e=1),
                            frame("java", 5, bytes(5000), e=1),
                            frame("java", 6, properties=half, e=1) + frame("java", 7, properties=half, e=1, f=4),
                            frame("java", 8, e=8),
                            frame("java", 9, e=1) + frame("java", 10, e=1),
                            batch_frame("java", 11, few, e=1) + batch_frame("java", 12, few, e=1),
                            batch_frame("java", 13, more, e=1) + batch_frame("java", 14, few, half, e=1, f=4),
                            batch_frame("java", 15, few, e=1) + batch_frame("java", 16, few, e=1),
                        )
                    ]
                )
                answers.append([stored(broker)])
                # Native code is in use again afterwards.
                assert not natively or known(broker) > 0
    assert answers[:2] == answers[2:]


@pytest.mark.parametrize(
    "fields",
    [
        {"f": COMPRESSED | 0x300},
        {"f": 0x10},
        {"f": 0x20},
        {"f": 0x40},
        {"f": 0x80},
        {"f": 0x400},
        {"f": -1},
        {"f": 0x7FFFFFFF},
        {"h": -1},
        {"h": 0x7FFFFFFF},
        {"k": "true"},
        {"b": TRACE_TOPIC},
        {"b": "x" * 127},
        {"b": "%RETRY%" + "x" * 120},
        {"b": "%RETRY%" + "x" * 121},
        {"b": "SCHEDULE_TOPIC_XXXX"},
        {"b": "rmq_sys_wheel_timer"},
        {"b": "no such/topic"},
    ],
    ids=lambda fields: " ".join(f"{name} {str(value)[:12]} {len(str(value))}" for name, value in fields.items()),
)
async def test_what_a_header_says(fields: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = str(fields.get("b", "orders"))
    answers = []
    for natively in (False, True):
        async with running(
            tmp_path / str(natively), monkeypatch, natively=natively, auto_create_topic_enable=False
        ) as broker:
            broker.topics.put(TopicConfig(topic, 4, 4))
            await broker.topics.written()
            client = Client(broker)
            for opaque in range(1, 12, 2):
                read = frame("java", opaque, **fields) + frame("binary", opaque + 1, **fields)  # type: ignore[arg-type]
                answers.append(client.read(read))
            answers.append(str(stored(broker, topic)).encode())
    assert answers[:7] == answers[7:]


async def test_the_longest_properties_and_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest properties have 32767 bytes, including those that the broker adds.

    The longest body has `maxMessageSize` bytes.
    """
    answers, ends = [], []
    for natively in (False, True):
        async with running(
            tmp_path / str(natively), monkeypatch, natively=natively, of_store={"max_message_size": 1000}
        ) as broker:
            client = Client(broker)
            for opaque in (1, 2):
                client.read(frame("java", opaque))
            first = broker.store.queue("orders", 0).unit(0)
            assert first is not None
            own = len(broker.store.read_record(first[0]).properties) - len(PLAIN)
            opaque = 2
            for length in (32766, 32767, 32768, 32767 + own, 40_000, 70_000):
                for separator in ("", "\x02"):
                    opaque += 1
                    head = "UNIQ_KEY\x017F\x02a\x01"
                    properties = head + "x" * (length - own - len(head) - 1) + separator
                    answers.append(client.read(frame("java", opaque, properties=properties)))
            ends.append(broker.store.queue("orders", 0).max_offset)
            for size in (0, 999, 1000, 1001):
                opaque += 1
                answers.append(client.read(frame("java", opaque, bytes(size))))
            ends.append(broker.store.queue("orders", 0).max_offset)
            answers.append(str(stored(broker)).encode())
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
    assert ends == [6, 9, 6, 9]


async def test_files_that_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full files of the log and of a queue."""
    answers = []
    for natively in (False, True):
        async with running(tmp_path / str(natively), monkeypatch, natively=natively) as broker:
            client = Client(broker)
            opaque = 0
            for count, size in ((1, 9), (1, 9), (1100, 9), (30, 300_000), (1100, 9)):
                frames = []
                for _ in range(count):
                    opaque += 1
                    frames.append(frame("java", opaque, b"%d" % opaque + bytes(size)))
                answers.append(client.read(b"".join(frames)))
            assert broker.store.max_physical_offset > 2 * broker.config.store.mapped_file_size_commit_log
            ends = [stored(broker), broker.store.queue("orders", 0).max_offset]
            answers.append(str(ends).encode())
    assert answers[:6] == answers[6:]
    assert answers[5].endswith(b"2232]")


async def test_nobody_overtakes_who_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No send overtakes one that waits for preallocation, even if it fits into the rest of the current file."""
    async with running(tmp_path, monkeypatch, of_store={"message_index_enable": False}) as broker:
        first, second = Client(broker), Client(broker)
        for client in (first, second):
            for opaque in (1, 2):
                client.read(frame("java", opaque))
        assert known(broker) == 1
        stop_waiting(broker)
        making = SlowMaking(monkeypatch)
        making.works.clear()
        try:
            opaque = 3
            while first.read(frame("java", opaque, bytes(100_000))):
                opaque += 1
            queue = broker.store.queue("orders", 0)
            end = queue.max_offset
            assert second.read(frame("java", 7, b"second")) == b""
            assert queue.max_offset == end
        finally:
            making.works.set()
        await until(lambda: queue.max_offset == end + 2)
        bodies = [broker.store.read_record((queue.unit(at) or (0,))[0]).body for at in (end, end + 1)]
        assert bodies == [bytes(100_000), b"second"]


async def test_each_property_that_asks_for_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of these messages is cached in native code."""
    asking = [
        "DELAY\x010",
        "TRAN_MSG\x01true",
        "TRAN_MSG\x01false",
        "POP_CK\x01x",
        "CLUSTER\x01c",
        "WAIT\x01false",
        "INNER_NUM\x012",
        "MSG_TYPE\x01reply",
        "__CONSUME_TIME\x013",
        "a\x01DELAY",
    ]
    answers = []
    for natively in (False, True):
        async with running(tmp_path / str(natively), monkeypatch, natively=natively) as broker:
            client = Client(broker)
            for opaque in (1, 2):
                client.read(frame("java", opaque))
            for opaque, item in enumerate(asking, 3):
                properties = PLAIN + properties_of(item)
                answers.append(client.read(frame("java", opaque, properties=properties) + frame("java", 100 + opaque)))
            answers.append(str(stored(broker)).encode())
    half = len(answers) // 2
    assert answers[:half] == answers[half:]
    assert b'"code":0' in answers[0]


@pytest.mark.parametrize(
    "item",
    ["DELAY\x011", "TIMER_DELAY_SEC\x013600", "TIMER_DELAY_MS\x013600000", "TIMER_DELIVER_MS\x019000000000000"],
    ids=lambda item: item.partition("\x01")[0],
)
async def test_what_is_for_later_goes_elsewhere(item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch, message_delay_level="1h") as broker:
        client = Client(broker)
        for opaque in (1, 2):
            client.read(frame("java", opaque))
        later = PLAIN + properties_of(item)
        client.read(frame("java", 3, properties=later) + frame("java", 4) + frame("java", 5, properties=later))
        assert (known(broker), broker.store.queue("orders", 0).max_offset) == (1, 3)


async def test_a_code_that_is_answered_differently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache compares all bytes of a header, including the request code."""
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        for opaque in (1, 2):
            client.read(frame("java", opaque))
        other = frame("java", 3).replace(b'"code":310', b'"code":999')
        [answer] = client.answers(other)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert known(broker) == 1


@pytest.mark.parametrize(
    "asked",
    [
        frame("java", 7, bytes(2000), b="trades"),
        frame("java", 7, b="trades", e=9),
        frame("java", 7, b="trades").replace(b'"code":310', b'"code":320'),
        frame("java", 7, b="trades", flag=1),
        frame("java", 7, b="trades", m="true"),
    ],
    ids=["too large", "no such queue", "another code", "an answer", "a batch"],
)
async def test_what_is_said_of_one_is_not_taken_for_another(
    asked: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code passes a send to Python, and then a plain send follows.

    Both have the same number, timestamp and properties.
    """
    async with running(tmp_path, monkeypatch, of_store={"max_message_size": 1000}) as broker:
        client = Client(broker)
        client.read(frame("java", 1))
        client.read(asked + frame("java", 7, b"other"))
        orders, trades = broker.store.queue("orders", 0), broker.store.queue("trades", 0)
        assert (orders.max_offset, known(broker)) == (2, 0)
        # The same header again, with a body that is small enough.
        again = asked.replace(bytes(2000), b"")
        again = pack(">I", len(again) - 4) + again[4:]
        before = trades.max_offset
        client.read(again)
        client.read(again)
        assert (orders.max_offset, trades.max_offset) == (2, before + (2 if len(again) < len(asked) else 0))
