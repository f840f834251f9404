"""Sends that native code stores.

They are stored and answered as by Python. Native code stores only sends with a cached header.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from errno import EIO
from pathlib import Path
from typing import Any

import pytest
from bare_store import commit_log
from broker_support import server_of
from plain_sends_support import TOPICS, WAYS, Client, any_send, batch_frame, frame, known, running, stored
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.errors import StoreFull
from gantrymq.kernels import native
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.remoting.connection import Connection
from gantrymq.store.refusal import Refusal
from gantrymq.system import files

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")


@pytest.mark.parametrize("seed", range(4))
async def test_both_ways_are_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses, log and queues are equal, whatever is sent and however the reads are split."""
    draw = random.Random(seed)
    # Long delays, so that no delayed message is delivered during the test.
    settings: dict[str, Any] = {"auto_create_topic_enable": False, "message_delay_level": "1h 2h"}
    async with (
        running(tmp_path / "python", monkeypatch, natively=False, **settings) as one,
        running(tmp_path / "native", monkeypatch, **settings) as other,
    ):
        by_python, by_native = Client(one), Client(other)
        opaque = 0
        for _ in range(30):
            frames = []
            for _ in range(draw.choice([1, 3, 40])):
                opaque += 1
                frames.append(any_send(draw, opaque))
            data = b"".join(frames)
            cut = draw.randrange(len(data)) if draw.random() < 0.5 else len(data)
            for piece in (data[:cut], data[cut:]):
                if piece:
                    assert by_native.read(piece) == by_python.read(piece)
        assert stored(other) == stored(one)
        # No flush has happened meanwhile.
        assert {
            broker.store.queue(topic, n).dirty for broker in (one, other) for topic in TOPICS for n in range(4)
        } == {True}
        assert known(other) > 8
        assert other.store.max_physical_offset > 100_000


@pytest.mark.parametrize("way", WAYS)
async def test_python_handles_the_first_one_only(
    way: str, by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        # The first send resolves the peer's address. The second one adds the header to the native cache.
        for opaque in (1, 2):
            assert client.answers(frame(way, opaque))
        assert (by_python, known(broker)) == ([1, 2], 1)
        answers = client.answers(b"".join(frame(way, opaque, b"%d" % opaque) for opaque in range(3, 40)))
        assert by_python == [1, 2]
        assert [(answer.opaque, answer.code) for answer in answers] == [(n, ResponseCode.SUCCESS) for n in range(3, 40)]
        queue = broker.store.find_queue("orders", 0)
        assert queue is not None
        assert (queue.max_offset, queue.dirty) == (39, True)
        physical_offset, size, _ = queue.unit(38) or (0, 0, 0)
        assert broker.store.read_record(physical_offset).body == b"39"
        assert physical_offset + size == broker.store.max_physical_offset


async def told(broker: Broker, **fields: object) -> Client:
    """Returns a client whose header native code has cached."""
    client = Client(broker)
    for opaque in (1, 2):
        assert client.answers(frame("java", opaque, **fields))  # type: ignore[arg-type]
    assert known(broker) == 1
    return client


async def forbid_topic(broker: Broker) -> None:
    broker.topics.put(TopicConfig("orders", 4, 4, perm=4))


async def delete_topic(broker: Broker) -> None:
    broker.topics.remove("orders")
    broker.store.delete_topic("orders")


async def have_fewer_queues(broker: Broker) -> None:
    broker.topics.put(TopicConfig("orders", 1, 1))


async def change_config(broker: Broker) -> None:
    broker.config.region_id = "elsewhere"
    broker.context.events.config_changed.publish()


async def take_smaller_ones(broker: Broker) -> None:
    broker.config.store.max_message_size = 1024
    broker.context.events.config_changed.publish()


async def become_slave(broker: Broker) -> None:
    await broker.features.role_changes.become_slave()


@pytest.mark.parametrize(
    "change",
    [forbid_topic, delete_topic, have_fewer_queues, change_config, take_smaller_ones, become_slave],
    ids=lambda change: change.__name__,
)
async def test_what_changes_is_looked_at_anew(
    change: Callable[[Broker], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change clears the native cache, and both kinds of broker return the same responses."""
    answers = []
    for natively in (False, True):
        async with running(
            tmp_path / str(natively), monkeypatch, natively=natively, auto_create_topic_enable=False
        ) as broker:
            if natively:
                client = await told(broker, e=3)
            else:
                client = Client(broker)
                client.read(frame("java", 1, e=3) + frame("java", 2, e=3))
            await change(broker)
            assert not natively or known(broker) == 0
            await broker.topics.written()
            answers.append([client.read(frame("java", n, bytes(n * 700), e=3)) for n in (3, 4)])
            answers.append([stored(broker)])
    assert answers[:2] == answers[2:]


async def refuse_in_log(broker: Broker) -> None:
    commit_log(broker.store).refuse("somebody", Refusal("the disk is full", StoreFull))


async def refuse_in_appender(broker: Broker) -> None:
    broker.appender.refuse("another broker is master")


async def close_store(broker: Broker) -> None:
    broker.store.close()


@pytest.mark.parametrize("refuse", [refuse_in_log, refuse_in_appender, close_store], ids=lambda do: do.__name__)
async def test_nothing_is_stored_while_the_store_refuses(
    refuse: Callable[[Broker], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        messages = [(0, b"x", b"")] * 3
        client.read(batch_frame("java", 3, messages))
        end = broker.store.max_physical_offset
        await refuse(broker)
        for sent in (frame("java", 4), batch_frame("java", 5, messages)):
            [answer] = client.answers(sent)
            assert answer.code != ResponseCode.SUCCESS
        assert (broker.store.max_physical_offset, known(broker)) == (end, 2)


async def test_what_is_not_shown_yet_is_kept_for_later(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        broker.appender.needs_confirmation(True)
        client.read(frame("java", 3))
        assert (by_python, [queue.queue_id for queue in broker.appender.unconfirmed or ()]) == ([1, 2], [0])


async def test_a_queue_that_was_unmapped_is_mapped_again(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        queue = broker.store.queue("orders", 0)
        queue.unmap()
        client.read(frame("java", 3) + frame("java", 4))
        client.read(frame("java", 5))
        assert (queue.max_offset, by_python) == (5, [1, 2, 3, 4])


@pytest.mark.parametrize(
    "fields",
    [
        {"j": 1},
        {"f": 4},
        {"f": 8},
        {"m": "true"},
        {"e": -1},
        {"flag": 2},
        {"a": 'a"b'},
        {"a": "g"},
        {"n": "x" * 1024},
        {"b": "%RETRY%" + "x" * 200},
    ],
    ids=lambda fields: f"{next(iter(fields))} {str(*fields.values())[:8]}",
)
async def test_headers_of_which_nothing_is_told(
    fields: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = Client(broker)
        for opaque in range(1, 5):
            client.read(frame("java", opaque, **fields))  # type: ignore[arg-type]
        assert known(broker) == 0


async def test_nothing_is_told_of_peers_with_ipv6(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        await told(broker)
        other = Client(broker, "2001:db8::7")
        for opaque in (3, 4):
            other.read(frame("java", opaque))
        assert by_python == [1, 2, 3, 4]


async def test_with_checksums_python_does_all(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch, of_store={"enabled_append_prop_crc": True}) as broker:
        client = Client(broker)
        for opaque in (1, 2, 3):
            client.read(frame("java", opaque))
        assert by_python == [1, 2, 3]


async def test_with_access_control_every_request_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = AuthConfig(authentication_enabled=True)
    async with running(tmp_path, monkeypatch, auth=auth) as broker:
        assert server_of(broker).first_look is None


async def test_python_sees_each_header_of_a_read_once(
    by_python: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        del by_python[:]
        read = b"".join(frame("binary", 10 + number, b"", a=f"group{number % 3}") for number in range(12))
        assert [answer.opaque for answer in client.answers(read)] == list(range(10, 22))
        assert by_python == [10, 11, 12]


async def test_the_headers_of_thousands_of_topics_stay_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        before = known(broker)
        for number in range(3, 5003):
            client.read(frame("binary", number, b"", a=f"group{number}"))
        assert known(broker) == before + 5000
        end = broker.store.max_physical_offset
        for opaque in (5001, 5002):
            assert client.answers(frame("java", opaque))[0].code == ResponseCode.SUCCESS
        assert broker.store.max_physical_offset > end


async def test_who_waits_for_messages_gets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        arrived = []
        broker.polling.watch(broker.store.queue("orders", 0), arrived.append)
        client.read(b"".join(frame("java", opaque) for opaque in range(3, 9)))
        await until(lambda: bool(arrived))
        assert [queue.max_offset for queue in arrived] == [8]


async def test_a_closed_connection_stores_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        client.connection.close()
        assert client.read(frame("java", 3)) == b""
        assert broker.store.queue("orders", 0).max_offset == 2


async def test_a_role_counts_from_the_moment_on_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the broker becomes a slave, native code stores no message.

    The parts of the broker change their role one after the other, and requests arrive meanwhile.
    """
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        codes = []

        async def send() -> None:
            codes.extend(answer.code for answer in client.answers(frame("java", 3)))

        monkeypatch.setattr(broker.features.registration, "become_slave", send)
        await broker.features.role_changes.become_slave()
        await send()
        assert codes == [ResponseCode.SYSTEM_BUSY] * 2
        assert broker.store.queue("orders", 0).max_offset == 2
        await broker.features.role_changes.become_master()
        for opaque in (4, 5):
            assert client.answers(frame("java", opaque))[0].code == ResponseCode.SUCCESS
        assert known(broker) == 1


async def test_a_disk_that_fails_is_told_each_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as broker:
        client = await told(broker)
        queue = broker.store.queue("orders", 0)
        end = broker.store.max_physical_offset
        sends = b"".join(frame("java", opaque, b"x" * 20_000) for opaque in (7, 8))

        def fails(*args: object) -> int:
            raise OSError(EIO, "planted")

        with monkeypatch.context() as patch:
            patch.setattr(files, "pwrite", fails)
            answers = client.answers(sends)
        assert [(answer.opaque, answer.code) for answer in answers] == [
            (7, ResponseCode.SYSTEM_ERROR),
            (8, ResponseCode.SYSTEM_ERROR),
        ]
        assert (broker.store.max_physical_offset, queue.max_offset) == (end, 2)
        assert not any(queue.mapping[queue.position :])  # type: ignore[index]
        assert [answer.code for answer in client.answers(sends)] == [0, 0]
        assert (queue.max_offset, known(broker)) == (4, 1)


@pytest.mark.parametrize("position", [(1 << 63) - 1, "no number"])
async def test_with_a_fault_of_native_code_python_does_all(
    position: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If native code fails, Python handles the whole read.

    Examples are an overflow in native code, and a value that it cannot accept.
    """
    # The flusher's thread must not read the faulty position.
    seldom: dict[str, object] = {"flush_interval_commit_log_ms": 24 * 3600 * 1000}
    async with running(tmp_path, monkeypatch, of_store=seldom) as broker:
        look, is_faulty = server_of(broker).first_look, False
        assert look is not None

        def first_look(connection: Connection, data: bytes) -> tuple[int, bytes]:
            with pytest.MonkeyPatch.context() as patch:
                if is_faulty:
                    patch.setattr(commit_log(broker.store), "position", position)
                return look(connection, data)

        client, queue = Client(broker, first_look=first_look), broker.store.queue("orders", 0)
        for opaque in (1, 2):
            assert client.answers(frame("java", opaque))
        before = queue.max_offset
        assert known(broker) == 1
        is_faulty = True
        assert [answer.code for answer in client.answers(frame("java", 7) + frame("java", 8))] == [0, 0]
        assert queue.max_offset == before + 2
        is_faulty = False
        client.read(frame("java", 9))
        broker.context.events.config_changed.publish()
        client.read(frame("java", 10) + frame("java", 11))
        assert (queue.max_offset, known(broker)) == (before + 5, 1)
