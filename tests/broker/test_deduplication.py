"""Deduplication: a message with an id is stored once within the window of its topic."""

from __future__ import annotations

import asyncio
import random
import time
import tracemalloc
import urllib.request
from pathlib import Path
from shutil import copytree

import pytest
from bare_store import damage, full_disk
from broker_support import Peer, config, run_again
from ports import free_port
from step_timer import StepTimer
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.send.deduplication import FILE_NAME
from gantrymq.broker.send.deduplication_ids import DeduplicationIds, FirstMessage, SavedIds
from gantrymq.errors import RequestRefused
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.remoting.client import RemotingClient

TOPIC = "orders"
ID = "GANTRY_DEDUPLICATE_ID"
WINDOW_S = 60


async def set_window(
    peer: Peer, attributes: str = f"+deduplication.window.ms={WINDOW_S * 1000}", topic: str = TOPIC
) -> None:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6, attributes=attributes
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SUCCESS, response.remark


async def send(
    peer: Peer, body: bytes, message_id: str = "", queue_id: int = 0, topic: str = TOPIC, **properties: str
) -> RemotingCommand:
    own = {**properties, "UNIQ_KEY": f"{random.getrandbits(128):032X}"}
    return await peer.send(topic, body, queue_id=queue_id, properties=own | ({ID: message_id} if message_id else {}))


async def send_batch(peer: Peer, *messages: tuple[bytes, str], queue_id: int = 0) -> RemotingCommand:
    body = encode_batch([(0, body, encode_properties({ID: own} if own else {})) for body, own in messages])
    return await peer.send(TOPIC, body, queue_id=queue_id, code=RequestCode.SEND_BATCH_MESSAGE)


async def stored(peer: Peer, queue_id: int = 0, topic: str = TOPIC) -> list[bytes]:
    """Returns the bodies in a queue."""
    bodies: list[bytes] = []
    while (response := await peer.pull(topic, len(bodies), queue_id=queue_id)).code == ResponseCode.SUCCESS:
        bodies += [message.body for message in decode_messages(response.body)]
    return bodies


def place(response: RemotingCommand) -> tuple[str, ...]:
    """Returns all of a response that identifies the stored message."""
    assert response.code == ResponseCode.SUCCESS, response.remark
    fields = response.ext_fields
    # The rest of the message id is the broker's address, whose port changes with a restart.
    return fields["msgId"][-16:], fields["queueId"], fields["queueOffset"], fields.get("transactionId", "")


async def started(root: Path, remoting: RemotingClient, **changed: object) -> tuple[Broker, Peer]:
    broker = Broker(config(root, **changed))
    await broker.start()
    return broker, Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))


@pytest.fixture
async def deduplicated(peer: Peer) -> Peer:
    """A peer of a broker whose topic has a window."""
    await set_window(peer)
    return peer


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_keeps_the_order_of_the_messages() -> None:
    ids = DeduplicationIds()
    for number in range(3):
        ids.put("a", b"%d" % number, FirstMessage(1000 + number, number))
    ids.put("b", b"0", FirstMessage(5, 1))
    ids.put("a", b"0", FirstMessage(2000, 5))
    assert (len(ids), ids.get("a", b"0"), ids.get("b", b"0")) == (4, (2000, 5), (5, 1))
    assert ids.forget("a", 5, 3, 10) == 1
    assert (len(ids), ids.topics()) == (3, [("a", 2), ("b", 1)])
    ids.limit(2)
    assert (ids.get("a", b"2"), ids.get("a", b"0"), ids.get("b", b"0")) == (None, (2000, 5), (5, 1))
    ids.drop("b")
    assert ids.forget("a", 6, 0, 10) == 1
    assert (len(ids), ids.topics()) == (0, [])


def test_the_cost_of_an_id_does_not_depend_on_the_number_of_ids() -> None:
    """Ids are forgotten in steps. All steps together cost about as much as the insertion."""
    ids, count = DeduplicationIds(), 100_000
    begin = time.process_time()
    for number in range(count):
        ids.put("a", b"%d" % number, FirstMessage(number, number))
    inserted = time.process_time()
    steps = [ids.forget("a", count, 1000, 1000) for _ in range(100)]
    ids.limit(0)
    assert steps == [1000] * 99 + [0]
    assert time.process_time() - inserted < 10 * (inserted - begin)


def test_the_file_has_all_ids() -> None:
    ids = DeduplicationIds(77)
    for number in range(2500):
        ids.put("a", b"\xff%d" % number, FirstMessage(number, 1_700_000_000_000 + number))
    ids.put("b", b"x", FirstMessage(1 << 60, 3))
    content = ids.encode()
    # Changes during the encoding: a new id is left out, a removed one too.
    ids.put("c", b"late", FirstMessage(1, 1))
    ids.limit(2501)
    copy = DeduplicationIds.of(decode_json(b"".join(content), SavedIds))
    assert (copy.position, copy.topics()) == (77, [("a", 2499), ("b", 1)])
    assert (copy.get("a", b"\xff9"), copy.get("b", b"x")) == ((9, 1_700_000_000_009), (1 << 60, 3))
    assert b"".join(DeduplicationIds(5).encode()) == b'{"position":5,"ids":{}}'


def test_the_limit_takes_ids_from_the_largest_topics() -> None:
    ids = DeduplicationIds()
    for topic, count in {"a": 1, "b": 3, "c": 7}.items():
        for number in range(count):
            ids.put(topic, b"%d" % number, FirstMessage(number, number))
    ids.limit(5)
    assert (len(ids), sorted(count for _, count in ids.topics())) == (5, [1, 2, 2])
    assert [ids.get("c", b"%d" % number) is not None for number in range(7)] == [False] * 5 + [True] * 2
    ids.limit(0)
    assert (len(ids), ids.topics()) == (0, [])


def test_ids_from_the_future_begin_their_windows_again() -> None:
    """They do not keep the ids behind them from being forgotten. The file has the new times."""
    ids, hour, window = DeduplicationIds(), 3_600_000, 60_000
    for number in range(3):
        ids.put("a", b"ahead-%d" % number, FirstMessage(number, hour + number))
    ids.put("a", b"slightly ahead", FirstMessage(3, 5000))
    ids.put("a", b"right", FirstMessage(4, 1000))
    assert ids.forget("a", 2000, window, 2) == 2
    assert ids.forget("a", 2000, window, 10) == 1
    assert [ids.get("a", b"ahead-%d" % number) for number in range(3)] == [(n, 2000) for n in range(3)]
    copy = DeduplicationIds.of(decode_json(b"".join(ids.encode()), SavedIds))
    for table in (ids, copy):
        assert table.forget("a", 5000 + window, window, 10) == 0
        assert table.forget("a", 5001 + window, window, 10) == 5
        assert not len(table)


# -- sends ------------------------------------------------------------------------------------------------------------


async def test_a_repeated_message_is_stored_once(deduplicated: Peer, broker: Broker) -> None:
    first = await send(deduplicated, b"1", "a-1")
    other = await send(deduplicated, b"2", "a-2")
    again = await send(deduplicated, b"3", "a-1", queue_id=2)
    assert place(again) == place(first) != place(other)
    assert await stored(deduplicated) == [b"1", b"2"]
    assert not await stored(deduplicated, 2)
    assert (broker.deduplication.topics(), broker.deduplication.repeated) == ([(TOPIC, 2)], {TOPIC: 1})


async def test_messages_without_an_id_are_all_stored(deduplicated: Peer, broker: Broker) -> None:
    for _ in range(3):
        assert (await send(deduplicated, b"x")).code == ResponseCode.SUCCESS
    assert await stored(deduplicated) == [b"x"] * 3
    assert not len(broker.deduplication)


async def test_the_window_begins_with_the_first_message(deduplicated: Peer, wrong_clock: WrongClock) -> None:
    first = await send(deduplicated, b"1", "a")
    wrong_clock.ahead_s = WINDOW_S - 1
    assert place(await send(deduplicated, b"2", "a")) == place(first)
    wrong_clock.ahead_s = WINDOW_S + 1
    second = await send(deduplicated, b"3", "a")
    assert place(second) != place(first)
    assert place(await send(deduplicated, b"4", "a")) == place(second)
    assert await stored(deduplicated) == [b"1", b"3"]


async def test_a_topic_without_a_window_stores_every_message(peer: Peer, broker: Broker) -> None:
    """The attribute takes effect with the next message, when it is set and when it is removed."""
    await set_window(peer, "")
    for body in (b"1", b"2"):
        await send(peer, body, "a")
    await set_window(peer)
    await send(peer, b"3", "a")
    await send(peer, b"4", "a")
    await set_window(peer, "-deduplication.window.ms")
    await send(peer, b"5", "a")
    await send(peer, b"6", "a")
    assert await stored(peer) == [b"1", b"2", b"3", b"5", b"6"]


async def test_concurrent_sends_of_one_id(deduplicated: Peer, remoting: RemotingClient, broker: Broker) -> None:
    another = RemotingClient()
    peers = [deduplicated, Peer(await another.connection(f"127.0.0.1:{broker.port}"))]
    answers = await asyncio.gather(
        *(send(peers[n % 2], b"%d" % n, "a") for n in range(20)),
        *(send_batch(peers[n % 2], (b"b%d" % n, "a")) for n in range(20)),
    )
    assert len({answer.ext_fields["msgId"] for answer in answers}) == 1
    assert len(await stored(deduplicated)) == 1
    await another.close()


@pytest.mark.parametrize("level", [0, 1])
async def test_a_delayed_message_counts_from_its_send(deduplicated: Peer, broker: Broker, level: int) -> None:
    delay = {"DELAY": "1"} if level else {"TIMER_DELAY_MS": "1000"}
    first = await send(deduplicated, b"1", "a", queue_id=3, **delay)
    again = await send(deduplicated, b"2", "a", queue_id=1, **delay)
    assert (place(again), place(again)[1]) == (place(first), "3")
    # A handle contains the unique key, which is the first message's.
    assert again.ext_fields.get("recallHandle") == first.ext_fields.get("recallHandle")
    assert place(await send(deduplicated, b"3", "a")) == place(first)
    async with asyncio.timeout(20):
        while not (bodies := await stored(deduplicated, 3)):
            await asyncio.sleep(0.05)
    assert bodies == [b"1"]
    assert place(await send(deduplicated, b"4", "a")) == place(first)


async def test_a_half_message_has_no_id(deduplicated: Peer) -> None:
    refused = await send(deduplicated, b"1", "a", TRAN_MSG="true", PGROUP="producers")
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert "a half message can't have a deduplication id" in (refused.remark or "")
    assert (await send(deduplicated, b"1", TRAN_MSG="true", PGROUP="producers")).code == ResponseCode.SUCCESS


async def test_a_long_id_is_refused(deduplicated: Peer) -> None:
    assert (await send(deduplicated, b"1", "é" * 64)).code == ResponseCode.SUCCESS
    for refused in (await send(deduplicated, b"2", "a" * 129), await send_batch(deduplicated, (b"2", "a" * 129))):
        assert (refused.code, "has 129 bytes of at most 128" in (refused.remark or "")) == (13, True)


async def test_a_deleted_topic_forgets_its_ids(deduplicated: Peer, broker: Broker) -> None:
    await send(deduplicated, b"1", "a")
    deleted = await deduplicated.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    assert (deleted.code, len(broker.deduplication)) == (ResponseCode.SUCCESS, 0)
    await set_window(deduplicated)
    await send(deduplicated, b"2", "a")
    assert await stored(deduplicated) == [b"2"]


async def test_the_number_of_ids_is_limited(tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock) -> None:
    """At the limit, new ids are refused: dropping others would store their messages twice."""
    broker, peer = await started(tmp_path, remoting, deduplication_max_num=3)
    await set_window(peer)
    for number in range(3):
        await send(peer, b"%d" % number, f"{number}")
    refused = await send(peer, b"3", "3")
    assert (refused.code, "deduplicationMaxNum" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    assert (await send_batch(peer, (b"3", "3"))).code == ResponseCode.SYSTEM_BUSY
    assert (await send(peer, b"x", "1")).code == (await send(peer, b"4")).code == ResponseCode.SUCCESS
    wrong_clock.ahead_s = WINDOW_S + 1
    assert (await send(peer, b"3", "3")).code == ResponseCode.SUCCESS
    assert (await stored(peer), len(broker.deduplication)) == ([b"0", b"1", b"2", b"4", b"3"], 1)
    await broker.stop()


async def test_a_full_table_of_many_topics(tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock) -> None:
    """A search for expired ids passes all topics. Refused sends must not take all the time of the broker."""
    broker, _ = await started(tmp_path, remoting, deduplication_max_num=2000)
    window = {"deduplication.window.ms": f"{WINDOW_S * 1000}"}
    broker.topics.put(*(TopicConfig(f"topic-{number}", 1, 1, attributes=window) for number in range(2000)))
    for number in range(2000):
        broker.deduplication.stored(f"topic-{number}", b"a", 0)

    def refuse(times: int) -> None:
        for _ in range(times):
            with pytest.raises(RequestRefused, match="deduplicationMaxNum"):
                broker.deduplication.check_capacity(1)

    steps = StepTimer()
    with steps.step():
        refuse(100)
    assert steps.longest < 0.1
    wrong_clock.ahead_s = WINDOW_S + 1

    def is_refused() -> bool:
        try:
            broker.deduplication.check_capacity(1)
        except RequestRefused:
            return True
        return False

    await until(lambda: not is_refused())
    await broker.stop()


async def test_a_clock_that_was_ahead_fills_the_table_for_one_window(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    broker, peer = await started(tmp_path, remoting, deduplication_max_num=3)
    await set_window(peer)
    wrong_clock.ahead_s = 3600
    first = [await send(peer, b"x", each) for each in "abc"]
    wrong_clock.ahead_s = 0
    assert (await send(peer, b"x", "d")).code == ResponseCode.SYSTEM_BUSY
    wrong_clock.ahead_s = WINDOW_S - 10
    assert place(await send(peer, b"x", "a")) == place(first[0])
    wrong_clock.ahead_s = WINDOW_S + 10
    assert (await send(peer, b"x", "d")).code == (await send(peer, b"x", "a")).code == ResponseCode.SUCCESS
    assert len(await stored(peer)) == 5
    await broker.stop()


async def test_many_ids_are_forgotten_in_steps(deduplicated: Peer, broker: Broker, wrong_clock: WrongClock) -> None:
    assert (await send_batch(deduplicated, *((b"x", f"{number}") for number in range(5000)))).code == 0
    wrong_clock.ahead_s = WINDOW_S + 1
    await run_again(broker.jobs, "forget deduplication ids")
    assert 0 < len(broker.deduplication) < 5000
    await until(lambda: not len(broker.deduplication))


async def test_a_read_only_topic_refuses_repeated_messages_too(deduplicated: Peer, broker: Broker) -> None:
    await send(deduplicated, b"1", "a")
    topic = broker.topics.get(TOPIC)
    assert topic is not None
    header = CreateTopicRequestHeader(
        topic=TOPIC, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=4
    )
    await deduplicated.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert (await send(deduplicated, b"1", "a")).code == ResponseCode.NO_PERMISSION


async def test_a_master_that_rejects_messages_does_not_answer_repeated_ones(deduplicated: Peer, broker: Broker) -> None:
    """Another broker may be master, whose log lacks them."""

    async def codes() -> set[int]:
        return {(await send(deduplicated, b"x", "a")).code, (await send_batch(deduplicated, (b"x", "a"))).code}

    await send(deduplicated, b"1", "a")
    broker.appender.refuse("another broker may be master")
    assert await codes() == {ResponseCode.SERVICE_NOT_AVAILABLE}
    broker.appender.refuse(None)
    with full_disk(broker.store):
        assert await codes() == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert await codes() == {ResponseCode.SUCCESS}
    assert broker.deduplication.repeated == {TOPIC: 2}


# -- batches ----------------------------------------------------------------------------------------------------------


async def test_a_batch_leaves_out_known_messages(deduplicated: Peer, broker: Broker) -> None:
    first = await send_batch(deduplicated, (b"1", "a"), (b"2", ""), (b"3", "b"), (b"4", "c"))
    assert first.ext_fields["queueOffset"] == "0"
    again = await send_batch(deduplicated, (b"5", "b"), (b"6", "d"), (b"7", "d"), (b"8", ""), (b"9", "a"))
    assert await stored(deduplicated) == [b"1", b"2", b"3", b"4", b"6", b"8"]
    assert again.ext_fields["gantryOffsets"] == "2,4,4,5,0"
    ids, first_ids = (answer.ext_fields["msgId"].split(",") for answer in (again, first))
    assert (ids[0], ids[1], ids[4]) == (first_ids[2], ids[2], first_ids[0])
    assert (len(set(ids)), broker.deduplication.repeated) == (4, {TOPIC: 3})
    whole = await send_batch(deduplicated, (b"x", "b"), (b"y", "c"))
    assert (whole.ext_fields["queueOffset"], whole.ext_fields["msgId"].split(",")) == ("2", first_ids[2:])
    assert "gantryOffsets" not in whole.ext_fields
    # In another queue of the topic.
    elsewhere = await send_batch(deduplicated, (b"z", "c"), (b"10", "e"), queue_id=1)
    assert (elsewhere.ext_fields["gantryOffsets"], await stored(deduplicated, 1)) == ("-1,0", [b"10"])


async def test_messages_of_a_batch_and_single_ones_share_ids(deduplicated: Peer) -> None:
    single = await send(deduplicated, b"1", "a")
    batch = await send_batch(deduplicated, (b"2", "a"), (b"3", "b"))
    assert batch.ext_fields["msgId"].split(",")[0] == single.ext_fields["msgId"]
    assert (await send(deduplicated, b"4", "b")).ext_fields["msgId"] == batch.ext_fields["msgId"].split(",")[1]
    assert await stored(deduplicated) == [b"1", b"3"]


async def test_a_long_batch_is_checked_in_steps(deduplicated: Peer) -> None:
    messages = [(b"%d" % number, f"{number // 2}") for number in range(1000)]
    answers = await asyncio.gather(*(send_batch(deduplicated, *messages) for _ in range(3)))
    assert len({answer.ext_fields["msgId"] for answer in answers}) == 1
    assert await stored(deduplicated) == [b"%d" % number for number in range(0, 1000, 2)]


async def test_a_topic_is_deleted_while_a_batch_is_checked(deduplicated: Peer, broker: Broker) -> None:
    """The known messages of the batch are deleted with the topic, so the batch is stored in the new topic."""
    messages = [(b"x", f"{number}") for number in range(8_000)]
    await send_batch(deduplicated, *messages)
    # The broker checks the batch in many steps, between which it handles the next requests of the connection.
    answer, _, _ = await asyncio.gather(
        send_batch(deduplicated, *messages),
        deduplicated.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC)),
        set_window(deduplicated),
    )
    assert answer.code == ResponseCode.SUCCESS
    assert (broker.store.queue(TOPIC, 0).max_offset, broker.deduplication.repeated) == (len(messages), {})


async def test_known_messages_of_a_batch_need_no_memory_for_their_bodies(deduplicated: Peer) -> None:
    size, ids = 128 * 1024, [f"{number}" for number in range(40)]
    for message_id in ids:
        assert (await send(deduplicated, bytes(size), message_id)).code == ResponseCode.SUCCESS
    tracemalloc.start()
    try:
        answer = await send_batch(deduplicated, *((b"", message_id) for message_id in ids))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(answer.ext_fields["msgId"].split(",")) == len(ids)
    assert peak < 10 * size


# -- restarts and failovers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["kept", "lost", "old", "damaged"])
async def test_a_restart_remembers_ids(tmp_path: Path, remoting: RemotingClient, file: str) -> None:
    """The ids are in the log, so the file may be missing or old. Delivered copies of messages do not count."""
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    path = tmp_path / "config" / FILE_NAME
    first = [await send(peer, b"1", "a"), await send(peer, b"2", "b", queue_id=1, DELAY="1")]
    await broker.stop()
    saved = path.read_text()
    broker, peer = await started(tmp_path, remoting)
    first.append(await send(peer, b"3", "c", TIMER_DELAY_MS="1"))
    first.append(await send(peer, b"4", "d"))
    async with asyncio.timeout(20):
        while len(await stored(peer)) < 3 or not await stored(peer, 1):
            await asyncio.sleep(0.05)
    bodies = await stored(peer)
    await broker.stop()
    if file == "lost":
        for each in path.parent.glob(f"{FILE_NAME}*"):
            each.unlink()
    elif file == "old":
        path.write_text(saved)
    elif file == "damaged":
        path.write_text("{")
    broker, peer = await started(tmp_path, remoting)
    again = [await send(peer, b"x", each) for each in "abcd"]
    assert [place(each) for each in again] == [place(each) for each in first]
    assert (await stored(peer), await stored(peer, 1)) == (bodies, [b"2"])
    await broker.stop()


async def test_a_restart_with_a_lower_limit(tmp_path: Path, remoting: RemotingClient) -> None:
    """The file and the log after it have more ids than the limit. The newest ones of the log are kept."""
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    await send_batch(peer, *((b"x", f"{number}") for number in range(6)))
    await broker.stop()
    path = tmp_path / "config" / FILE_NAME
    saved = path.read_text()
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer, topic="others")
    await send(peer, b"x", "a", topic="others")
    await broker.stop()
    path.write_text(saved)
    broker, peer = await started(tmp_path, remoting, deduplication_max_num=2)
    assert dict(broker.deduplication.topics()) == {TOPIC: 1, "others": 1}
    await send(peer, b"x", "5")
    assert broker.deduplication.repeated == {TOPIC: 1}
    await broker.stop()
    broker, peer = await started(tmp_path, remoting, deduplication_max_num=1)
    assert len(broker.deduplication) == 1
    await broker.stop()


async def test_a_delivery_after_the_window_does_not_count(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    await send(peer, b"1", "a", DELAY="1")
    wrong_clock.ahead_s = WINDOW_S + 1
    async with asyncio.timeout(20):
        while not await stored(peer):
            await asyncio.sleep(0.05)
    await broker.stop()
    for each in (tmp_path / "config").glob(f"{FILE_NAME}*"):
        each.unlink()
    broker, peer = await started(tmp_path, remoting)
    await send(peer, b"2", "a")
    assert await stored(peer) == [b"1", b"2"]
    await broker.stop()


async def test_a_slave_that_becomes_master_reads_the_log(tmp_path: Path, remoting: RemotingClient) -> None:
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    first = await send(peer, b"1", "a")
    await broker.deduplication.become_slave()
    await broker.deduplication.become_master()
    assert not broker.deduplication.is_read
    assert place(await send(peer, b"2", "a")) == place(first)
    batch = await send_batch(peer, (b"3", "a"), (b"4", "b"))
    assert batch.ext_fields["queueOffset"] == "0"
    assert await stored(peer) == [b"1", b"4"]
    await broker.stop()


async def test_a_batch_waits_until_the_log_is_read(tmp_path: Path, remoting: RemotingClient) -> None:
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    await send(peer, b"1", "a")
    await broker.deduplication.become_slave()
    await broker.deduplication.become_master()
    answers = await asyncio.gather(send_batch(peer, (b"2", "a"), (b"3", "b")), send_batch(peer, (b"4", "b")))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    assert await stored(peer) == [b"1", b"3"]
    await broker.stop()


async def test_a_damaged_log_is_reported(
    tmp_path: Path, remoting: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The ids after the damage are missing: the broker says so, and accepts messages."""
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    first, second = [await send(peer, b"%d" % number, f"{number}") for number in range(2)]
    await broker.deduplication.become_slave()
    await broker.deduplication.become_master()
    damaged = int(place(second)[0], 16)
    damage(broker.store, damaged, at=0)
    assert place(await send(peer, b"x", "0")) == place(first)
    assert place(await send(peer, b"x", "1")) != place(second)
    (line,) = [each.getMessage() for each in caplog.records if "deduplication ids" in each.getMessage()]
    assert "stores messages after the damage again if they are repeated" in line
    assert line.endswith(f"no record begins at the physical offset {damaged}")
    await broker.stop()


async def test_the_file_can_be_older_than_the_deletion_of_a_topic(tmp_path: Path, remoting: RemotingClient) -> None:
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    await send(peer, b"1", "a")
    await broker.stop()
    path = tmp_path / "config" / FILE_NAME
    saved = path.read_text()
    broker, peer = await started(tmp_path, remoting)
    await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    await set_window(peer)
    await broker.stop()
    path.write_text(saved)
    broker, peer = await started(tmp_path, remoting)
    await send(peer, b"2", "a")
    assert await stored(peer) == [b"2"]
    await broker.stop()


async def test_an_id_whose_record_was_cut_off_is_new(tmp_path: Path, remoting: RemotingClient) -> None:
    """The file can have ids of messages that a power failure has cut off."""
    broker, peer = await started(tmp_path, remoting)
    await set_window(peer)
    await send(peer, b"1", "a")
    await broker.stop()
    path = tmp_path / "config" / FILE_NAME
    path.write_text(path.read_text().replace('"a":', '"b":'))
    broker, peer = await started(tmp_path, remoting)
    await send(peer, b"2", "b")
    await send(peer, b"3", "b")
    assert await stored(peer) == [b"1", b"2"]
    await broker.stop()


async def test_a_crash_loses_no_id(tmp_path: Path, remoting: RemotingClient) -> None:
    """The copy of a running broker's store is that of a killed broker. Its file lacks the last ids."""
    broker, peer = await started(tmp_path / "store", remoting, flush_consumer_offset_interval=20)
    await set_window(peer)
    first = [await send(peer, b"1", "a")]
    await broker.deduplication.stop()
    await until((tmp_path / "store" / "config" / FILE_NAME).exists)
    first += [await send(peer, b"2", "b"), await send(peer, b"3", "c")]
    copytree(tmp_path / "store", tmp_path / "copy")
    await broker.stop()
    broker, peer = await started(tmp_path / "copy", remoting)
    again = [await send(peer, b"x", each) for each in "abc"]
    assert [each.ext_fields["queueOffset"] for each in again] == [each.ext_fields["queueOffset"] for each in first]
    assert await stored(peer) == [b"1", b"2", b"3"]
    await broker.stop()


async def test_metrics(tmp_path: Path, remoting: RemotingClient) -> None:
    broker, peer = await started(tmp_path, remoting, metrics_port=free_port())
    await set_window(peer)
    for message_id in "aabaab":
        await send(peer, b"x", message_id)
    url = f"http://127.0.0.1:{broker.config.metrics_port}/metrics"
    page = (await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=20).read())).decode()
    values = {line.partition("{")[0]: line.rpartition(" ")[2] for line in page.splitlines() if 'topic="orders"' in line}
    assert float(values["gantry_deduplicated_messages_total"]) == 4
    assert float(values["gantry_deduplication_ids"]) == 2
    await broker.stop()
