"""Messages to a topic whose current configuration is not on disk yet.

They are not acknowledged, because after a crash no consumer would find them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from broker_support import Disk, Peer, config, longest_step, set_preallocation_wait
from constants import change_constant
from transaction_support import Producer
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.append import preallocation_waits as preallocation_waits
from gantrymq.broker.append.new_topics import NewTopics
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.broker.tables.topics import BrokerTopics
from gantrymq.errors import StoreError
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.message_id import decode_offset_message_id
from gantrymq.remoting.client import RemotingClient

Ask = Callable[[], Awaitable[RemotingCommand]]


def create(queue_nums: int) -> CreateTopicRequestHeader:
    return CreateTopicRequestHeader(
        topic="orders", default_topic="TBW102", read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=6
    )


async def test_a_topic_that_could_not_be_written_takes_no_message(disk: Disk, broker: Broker, peer: Peer) -> None:
    disk.error = StoreError("no room")
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create(1))).code == ResponseCode.SYSTEM_ERROR
    for ask in (
        lambda: peer.send("orders", b"x"),
        lambda: peer.send("orders", encode_batch([(0, b"x", b"")]), code=RequestCode.SEND_BATCH_MESSAGE),
    ):
        answer = await ask()
        assert (answer.code, "no room" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.store.max_physical_offset == 0
    disk.error = None
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    assert b'"orders"' in (broker.config.store.config_directory / "topics.json").read_bytes()


@pytest.mark.parametrize("what", ["written", "reply"])
async def test_an_error_takes_nobody_along(what: str) -> None:
    """After a single error, pending requests are answered in a later round.

    The wait queue is empty afterwards.
    """
    errors = [RuntimeError("once")]
    answered: list[object] = []

    async def written() -> None:
        if what == "written" and errors:
            raise errors.pop()

    def reply(request: object, answer: object) -> None:
        if what == "reply" and errors:
            raise errors.pop()
        answered.append(request)

    jobs = Jobs()
    waiting = NewTopics(SimpleNamespace(written=written), jobs)  # type: ignore[arg-type]
    connection: Any = SimpleNamespace(reply=reply, address="peer", attributes={})
    requests = [RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, body=b"x") for _ in range(4)]
    await waiting.start()
    for request in requests[:3]:
        waiting.hold(connection, request, lambda connection, request: RemotingCommand.response(), "orders")
    await until(lambda: not errors)
    await until(lambda: jobs.failing())
    waiting.hold(connection, requests[3], lambda connection, request: RemotingCommand.response(), "orders")
    # The request whose response raised is dropped.
    expected = requests if what == "written" else requests[1:]
    await until(lambda: answered == expected)
    assert not waiting.is_waiting("orders")
    await waiting.stop()


async def test_a_queue_that_a_topic_got_just_now_takes_no_message(disk: Disk, broker: Broker, peer: Peer) -> None:
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create(1))).code == ResponseCode.SUCCESS
    assert (await peer.send("orders", b"x")).code == ResponseCode.SUCCESS
    disk.error = StoreError("no room")
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create(2))).code == ResponseCode.SYSTEM_ERROR
    assert (await peer.send("orders", b"x", queue_id=1)).code == ResponseCode.SYSTEM_ERROR
    disk.error = None
    assert (await peer.send("orders", b"x", queue_id=1)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", ["sent back", "sent back too often", "sent to a retry topic too often"])
async def test_retries_and_dead_letters_wait_for_their_topics(
    disk: Disk, broker: Broker, peer: Peer, kind: str
) -> None:
    answer = await peer.send("orders", b"x")
    offset = decode_offset_message_id(answer.ext_fields["msgId"])[1]
    broker.groups.get("consumers")
    if kind.startswith("sent to"):
        assert (await peer.send("%RETRY%consumers", b"x")).code == ResponseCode.SUCCESS
        ask: Ask = lambda: peer.send("%RETRY%consumers", b"x", reconsume_times=17, max_reconsume_times=16)  # noqa: E731
    else:
        level = -1 if kind.endswith("often") else 1
        header = ConsumerSendMsgBackRequestHeader(offset=offset, group="consumers", delay_level=level)
        ask = lambda: peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)  # noqa: E731
    stored = broker.store.max_physical_offset
    disk.error = StoreError("no room")
    for _ in range(2):
        answer = await ask()
        assert (answer.code, "no room" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.store.max_physical_offset == stored
    disk.error = None
    assert (await ask()).code == ResponseCode.SUCCESS
    assert broker.store.max_physical_offset > stored
    name = b"%DLQ%" if kind.endswith("often") else b"%RETRY%"
    assert name in (broker.config.store.config_directory / "topics.json").read_bytes()


async def test_a_half_message_that_is_given_up_waits_for_its_topic(disk: Disk, tmp_path: Path) -> None:
    settings = config(
        tmp_path / "store", transaction_time_out=0, transaction_check_interval=20, transaction_check_max=0
    )
    broker, producer = Broker(settings), Producer()
    await broker.start()
    try:
        await producer.connect(broker.port)
        # This send creates `orders`. `TRANS_CHECK_MAX_TIME_TOPIC` is created when it is needed.
        await producer.send("orders", b"x")
        disk.error = StoreError("no room")
        await producer.prepare("orders", b"x")
        await until(lambda: broker.topics.get("TRANS_CHECK_MAX_TIME_TOPIC"))
        rounds = next(report for report in broker.jobs if report.name == "ask about open transactions")
        done = rounds.runs + 3
        await until(lambda: rounds.runs >= done)
        given_up = broker.store.queue("TRANS_CHECK_MAX_TIME_TOPIC", 0)
        assert given_up.max_offset == 0
        disk.error = None
        await until(lambda: given_up.max_offset == 1)
        assert rounds.failures == 0
    finally:
        await producer.client.close()
        await broker.stop()


async def test_a_topic_knows_until_its_last_change_is_written(disk: Disk, tmp_path: Path) -> None:
    settings = config(tmp_path)
    persistence = TablePersistence(settings, Jobs())
    topics = BrokerTopics(settings, tmp_path / "topics.json", lambda names: None, persistence=persistence)
    topics.load()
    await persistence.start()
    assert topics.is_written("TBW102")
    topics.put(TopicConfig("a"))
    await topics.written()
    disk.may_go_on.clear()
    begun = len(disk.begun)
    topics.put(TopicConfig("a"), TopicConfig("b"))
    first = topics.written()
    await until(lambda: len(disk.begun) > begun)
    topics.put(TopicConfig("b", 1, 1))
    assert [topics.is_written(name) for name in "abc"] == [False, False, True]
    disk.may_go_on.set()
    await first
    assert topics.is_written("a")
    await topics.written()
    assert [topics.is_written(name) for name in "abc"] == [True, True, True]
    assert not topics.unwritten
    await persistence.stop()


async def test_nobody_waits_for_the_topics_of_others(disk: Disk, broker: Broker, peer: Peer) -> None:
    assert (await peer.send("known", b"x")).code == ResponseCode.SUCCESS
    disk.may_go_on.clear()
    others = asyncio.ensure_future(peer.send("orders", b"x"))
    await until(lambda: broker.topics.get("orders"))
    # All topics are checked again, as after a deletion of queues.
    broker.context.events.topics_changed.publish(())
    async with asyncio.timeout(10):
        assert (await peer.send("known", b"y")).code == ResponseCode.SUCCESS
    assert not others.done()
    disk.may_go_on.set()
    assert (await others).code == ResponseCode.SUCCESS


async def test_first_sends_of_a_connection_keep_their_order(
    disk: Disk, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sends to a topic are stored in order.

    Some of them arrive while earlier ones are being processed in several event-loop iterations.
    """
    change_constant(monkeypatch, "new_topics.SLICE_S", 0.0)
    disk.may_go_on.clear()
    bodies = [b"%d" % number for number in range(30)]
    sends = [asyncio.ensure_future(peer.send("orders", body)) for body in bodies[:15]]
    await until(lambda: broker.topics.get("orders"))
    disk.may_go_on.set()
    for body in bodies[15:]:
        sends.append(asyncio.ensure_future(peer.send("orders", body)))
        await asyncio.sleep(0)
    assert {answer.code for answer in await asyncio.gather(*sends)} == {ResponseCode.SUCCESS}
    found = broker.store.get(broker.store.queue("orders", 0), 0, 100, 1 << 20)
    stored = decode_messages(b"".join(bytes(buffer) for buffer in found.buffers))
    assert [message.body for message in stored] == bodies


async def test_thousands_of_first_sends_go_on_in_many_turns(
    broker: Broker, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write covers all topics that arrive together.

    Their responses are spread over several event-loop iterations.
    """
    # Each queue needs a file. On a busy disk, sends that wait too long for it are refused.
    set_preallocation_wait(monkeypatch, 60.0)
    peer = Peer(await remoting.connection(broker.address))
    await peer.send("first", b"x")
    sends = [asyncio.ensure_future(peer.send(f"topic-{n}", b"x")) for n in range(1000)]
    done = asyncio.ensure_future(asyncio.gather(*sends))
    assert await longest_step(done.done) < 0.05
    assert {answer.code for answer in await done} == {ResponseCode.SUCCESS}
    assert len(asyncio.all_tasks()) < 30
