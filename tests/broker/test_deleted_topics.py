"""A topic that is deleted and created again.

It gets no delayed messages, offsets or queues of the old topic.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from administration import commit, create_group
from broker_support import Peer, config
from replicated_brokers import Replicas, copy_tables
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.tables.consumer_offsets import OFFSETS_FILE, ConsumerOffsets, OffsetTable, read_deleted_topics
from gantrymq.broker.tables.discards import MAX_DELETED_TOPICS, Discards
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.errors import StoreError
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import ResetOffsetRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import TOPIC_BEGIN_FIELD
from gantrymq.remoting.client import RemotingClient

TOPIC = "orders"


@asynccontextmanager
async def started(directory: Path, **changed: object) -> AsyncIterator[tuple[Broker, Peer]]:
    broker, client = Broker(config(directory, **changed)), RemotingClient()
    await broker.start()
    try:
        yield broker, Peer(await client.connection(f"127.0.0.1:{broker.port}"))
    finally:
        await client.close()
        await broker.stop()


async def delete(peer: Peer) -> None:
    response = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": TOPIC})
    assert response.code == ResponseCode.SUCCESS, response.remark


async def create(broker: Broker) -> None:
    broker.topics.put(TopicConfig(TOPIC, 2, 2))
    await broker.topics.written()


def delay(kind: str) -> dict[str, str]:
    """Returns the properties for a delay of about 2 s."""
    return {"DELAY": "1"} if kind == "level" else {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 2000)}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["level", "timer"])
async def test_delayed_messages_go_with_their_topic(tmp_path: Path, kind: str, restarts: bool) -> None:
    async with started(tmp_path, message_delay_level="2s") as (broker, peer):
        await create(broker)
        await peer.send(TOPIC, b"old", properties=delay(kind))
        await delete(peer)
        await create(broker)
        if not restarts:
            await only_new_is_delivered(broker, peer, kind)
    if restarts:
        async with started(tmp_path, message_delay_level="2s") as (broker, peer):
            await only_new_is_delivered(broker, peer, kind)


async def only_new_is_delivered(broker: Broker, peer: Peer, kind: str) -> None:
    await peer.send(TOPIC, b"new", properties=delay(kind))
    queue = await until(lambda: broker.store.find_queue(TOPIC, 0))
    await until(lambda: queue.max_offset)
    assert [message.body for message in decode_messages((await peer.pull(TOPIC)).body)] == [b"new"]


async def test_a_held_pull_of_a_deleted_topic_is_answered(peer: Peer, broker: Broker) -> None:
    await create(broker)
    await peer.send(TOPIC, b"old")
    await peer.pull(TOPIC, 0)
    waiting = asyncio.create_task(peer.pull(TOPIC, 1, suspend_ms=15_000))
    await until(lambda: len(broker.polling))
    await delete(peer)
    async with asyncio.timeout(5):
        response = await waiting
    # The response belongs to the old topic.
    assert (response.code, response.ext_fields.get(TOPIC_BEGIN_FIELD)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, None)
    assert (await peer.pull(TOPIC, 1)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_pulls_say_that_a_topic_was_created_again(peer: Peer, broker: Broker) -> None:
    begins = [0]
    for n in range(3):
        await create(broker)
        for _ in range(n + 1):
            await peer.send(TOPIC, b"%d" % n)
        response = await peer.pull(TOPIC)
        assert [message.body for message in decode_messages(response.body)] == [b"%d" % n] * (n + 1)
        begins.append(int(response.ext_fields.get(TOPIC_BEGIN_FIELD, "0")))
        await delete(peer)
    assert begins[1] == 0 < begins[2] < begins[3]


async def test_an_offset_beyond_the_end_of_a_new_topic_is_of_the_old_one(peer: Peer, broker: Broker) -> None:
    """An offset beyond the end of a new topic comes from the old one, and the consumer restarts at the beginning.

    So this also works for Apache clients, which do not support `TOPIC_BEGIN_FIELD`.
    """
    for expected in ("1", "0"):
        await create(broker)
        await peer.send(TOPIC, b"x")
        response = await peer.pull(TOPIC, 5)
        assert (response.code, response.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, expected)
        await delete(peer)


async def test_a_slave_copies_deletions_and_resets(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        peer = await replicas.peer()
        await create(replicas.master)
        await create_group(peer)
        for n in range(3):
            await peer.send(TOPIC, b"%d" % n)
        await commit(peer, 2)
        await replicas.caught_up()
        await until(lambda: replicas.slave.offsets.query("consumers", TOPIC, 0) == 2)
        await delete(peer)
        begin = replicas.master.offsets.topic_begin(TOPIC)
        await until(lambda: replicas.slave.offsets.topic_begin(TOPIC) == begin)
        assert replicas.slave.offsets.query("consumers", TOPIC, 0) is None
        await create(replicas.master)
        await peer.send(TOPIC, b"new")
        header = ResetOffsetRequestHeader(topic=TOPIC, group="consumers", timestamp=0, offset=-1, is_force=True)
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == ResponseCode.SUCCESS
        old = begin + 1
        assert replicas.master.offsets.is_old_pop("consumers", TOPIC, 0, old)
        await until(lambda: replicas.slave.offsets.is_old_pop("consumers", TOPIC, 0, old))


async def test_a_slave_returns_no_messages_of_a_deleted_topic(tmp_path: Path) -> None:
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        peer = await replicas.peer()
        await create(replicas.master)
        await peer.send(TOPIC, b"old", queue_id=0)
        await peer.send(TOPIC, b"old", queue_id=1)
        await replicas.caught_up()
        await copy_tables(replicas.slave)
        slave = await replicas.peer(1)
        assert [message.body for message in decode_messages((await slave.pull(TOPIC)).body)] == [b"old"]
        await delete(peer)
        await create(replicas.master)
        await peer.send(TOPIC, b"new", queue_id=1)
        await replicas.caught_up()
        begin = replicas.master.offsets.topic_begin(TOPIC)
        await copy_tables(replicas.slave)
        await until(lambda: replicas.slave.offsets.topic_begin(TOPIC) == begin)
        # The new topic has no message in queue 0.
        assert not (await slave.pull(TOPIC)).body
        response = await slave.pull(TOPIC, queue_id=1)
        assert [message.body for message in decode_messages(response.body)] == [b"new"]


async def test_a_crash_does_not_bring_back_the_messages_of_a_deleted_topic(tmp_path: Path) -> None:
    """If no queue points to a later record, the recovery reads the records of the deleted topic, and restores them."""
    async with started(tmp_path / "broker") as (broker, peer):
        broker.topics.put(TopicConfig("other", 1, 1))
        await peer.send("other", b"x")
        await create(broker)
        for queue_id in (0, 0, 1):
            await peer.send(TOPIC, b"old", queue_id=queue_id)
        await delete(peer)
        await create(broker)
        await peer.send(TOPIC, b"new", queue_id=1)
        await broker.topics.written()
        # The copy has the files of a killed broker. A thread deletes `consumequeue.deleted` meanwhile.
        ignored = shutil.ignore_patterns("consumequeue.deleted")
        shutil.copytree(tmp_path / "broker", tmp_path / "killed", ignore=ignored)
    async with started(tmp_path / "killed") as (broker, peer):
        assert not (await peer.pull(TOPIC)).body
        response = await peer.pull(TOPIC, queue_id=1)
        assert [message.body for message in decode_messages(response.body)] == [b"new"]
        assert [message.body for message in decode_messages((await peer.pull("other")).body)] == [b"x"]


# -- the tables -----------------------------------------------------------------------------------------------------


def offsets_in(directory: Path) -> tuple[ConsumerOffsets, TablePersistence]:
    persistence = TablePersistence(config(directory), Jobs())
    offsets = ConsumerOffsets(directory / "consumerOffset.json", persistence=persistence)
    offsets.load()
    return offsets, persistence


def test_deletions_and_resets_are_kept_in_the_file(tmp_path: Path) -> None:
    offsets, persistence = offsets_in(tmp_path)
    offsets.reset("g", "t", 0, 7, log_end=500)
    offsets.commit("g", "gone", 0, 3)
    offsets.topics_deleted({"gone"}, log_begin=0, log_end=600)
    persistence.save()
    offsets, _ = offsets_in(tmp_path)
    assert (offsets.query("g", "t", 0), offsets.query("g", "gone", 0)) == (7, None)
    assert [offsets.is_old_pop("g", "t", 0, at) for at in (-1, 499, 500)] == [False, True, False]
    assert not offsets.is_old_pop("g", "t", 1, 499)
    assert [offsets.is_of_deleted("gone", at) for at in (599, 600)] == [True, False]
    assert offsets.is_old_pop("g", "gone", 0, 599)


def test_deleted_topics_are_read_from_the_file_or_its_backup(tmp_path: Path) -> None:
    assert read_deleted_topics(tmp_path) == {}
    offsets, persistence = offsets_in(tmp_path)
    offsets.topics_deleted({"gone"}, log_begin=0, log_end=600)
    persistence.save()
    assert read_deleted_topics(tmp_path) == {"gone": 600}
    # A running broker replaces the file in two steps.
    file, backup = tmp_path / OFFSETS_FILE, tmp_path / f"{OFFSETS_FILE}.bak"
    file.rename(backup)
    assert read_deleted_topics(tmp_path) == {"gone": 600}
    file.write_bytes(b"{")
    assert read_deleted_topics(tmp_path) == {"gone": 600}
    backup.write_bytes(b"{")
    assert read_deleted_topics(tmp_path) == {}
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match=OFFSETS_FILE):
        read_deleted_topics(tmp_path)


def test_a_java_brokers_file_has_neither(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:5}}}')
    offsets, persistence = offsets_in(tmp_path)
    assert offsets.topic_begin("t") == 0
    offsets.commit("g", "t", 0, 6)
    persistence.save()
    saved = msgspec.json.decode((tmp_path / "consumerOffset.json").read_bytes())
    assert (saved["offsetTable"], saved["gantryDiscards"]) == ({"t@g": {"0": 6}}, {})


def test_a_log_that_lost_its_end_discards_no_new_record() -> None:
    discards = Discards({"a": 100, "b": 900}, {"t@g": {0: 900}})
    assert discards.log_is_from(100, 800)
    assert discards == Discards({"b": 800}, {"t@g": {0: 800}})
    assert not discards.is_of_deleted("b", 800)
    assert not discards.log_is_from(100, 1000)


def test_a_slave_takes_its_masters_deletions(tmp_path: Path) -> None:
    """Offsets that the master lacks stay, unless their topic was deleted on the master."""
    offsets, _ = offsets_in(tmp_path)
    for topic in ("kept", "gone", "again"):
        offsets.commit("g", topic, 0, 5)
    master = OffsetTable({"again@g": {0: 1}}, discards=Discards({"gone": 100, "again": 100}))
    offsets.copy(master)
    assert [offsets.query("g", topic, 0) for topic in ("kept", "gone", "again")] == [5, None, 1]
    # Offsets that are committed after the deletion survive the next copy.
    offsets.commit("g", "gone", 0, 2)
    offsets.copy(master)
    assert offsets.query("g", "gone", 0) == 2


def test_offsets_of_a_slave_that_missed_a_deletion_are_those_of_the_old_topic(tmp_path: Path) -> None:
    offsets, _ = offsets_in(tmp_path)
    offsets.topics_deleted({"t"}, log_begin=0, log_end=100)
    offsets.advance(OffsetTable({"t@g": {0: 5}, "other@g": {0: 5}}))
    assert [offsets.query("g", topic, 0) for topic in ("t", "other")] == [None, 5]
    offsets.advance(OffsetTable({"t@g": {0: 5}}, discards=Discards({"t": 100})))
    assert offsets.query("g", "t", 0) == 5


async def test_offsets_of_a_former_acting_master_in_lite_topics_are_old(tmp_path: Path) -> None:
    """The lite topic expired on the master, and has begun anew. The slave has the offset in the old one."""
    settings = config(tmp_path)
    settings.store.enable_lmq = True
    broker = Broker(settings)
    await broker.start()
    try:
        lite, light = "%LMQ%$sessions$one", "%LMQ%other"
        broker.offsets.commit("g", lite, 0, 1)
        offsets = {f"{lite}@g": {0: 5}, f"{light}@g": {0: 5}}
        broker.offsets.advance(OffsetTable(offsets, {f"{lite}@%LMQ%g": 5, f"{light}@%LMQ%g": 5}))
        assert [broker.offsets.query("g", name, 0) for name in (lite, light)] == [1, 5]
        assert [broker.offsets.query("%LMQ%g", name, 0) for name in (lite, light)] == [None, 5]
    finally:
        await broker.stop()


def test_deletions_before_the_begin_of_the_log_are_forgotten() -> None:
    discards = Discards()
    for number in range(5):
        discards.delete([f"t{number}"], 0, number * 100 + 100)
    # The topic is deleted again: messages between the two deletions are discarded, too.
    discards.delete(["t0"], 200, 600)
    assert discards.deleted_topics == {"t2": 300, "t3": 400, "t4": 500, "t0": 600}


def test_the_number_of_deletions_is_limited() -> None:
    discards = Discards()
    for number in range(MAX_DELETED_TOPICS + 2):
        discards.delete([f"t{number}"], 0, number + 1)
    assert len(discards.deleted_topics) == MAX_DELETED_TOPICS
    assert not discards.is_of_deleted("t1", 1)
    assert discards.is_of_deleted("t2", 2)


def test_many_deletions_and_resets_are_encoded_in_pieces(tmp_path: Path) -> None:
    offsets, persistence = offsets_in(tmp_path)
    offsets.topics_deleted({f"t{number}" for number in range(5000)}, log_begin=0, log_end=600)
    for number in range(5000):
        offsets.reset("g", f"u{number}", 0, 7, log_end=500)
    assert max(map(len, offsets.in_pieces())) < 100_000
    persistence.save()
    offsets, _ = offsets_in(tmp_path)
    assert offsets.is_of_deleted("t4999", 599)
    assert offsets.is_old_pop("g", "u4999", 0, 499)
