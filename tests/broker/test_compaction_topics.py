"""Topics with `cleanup.policy=COMPACTION`, as clients of a broker see them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from broker_support import Peer, config, run_again
from replicated_brokers import Replicas, copy_tables
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import QueueRequestHeader, SearchOffsetRequestHeader
from gantrymq.protocol.headers.pull import PullMessageResponseHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.properties import encode_properties
from gantrymq.remoting.client import RemotingClient
from gantrymq.system import files


def small(directory: Path) -> BrokerConfig:
    """Returns a configuration with small compaction logs, which are compacted at once."""
    settings = config(directory)
    settings.store.compaction_mapped_file_size = 4600
    settings.store.compaction_cq_mapped_file_size = 20 * 46
    return settings


async def create(peer: Peer, attributes: str = "+cleanup.policy=COMPACTION", topic: str = "state") -> tuple[int, str]:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6, attributes=attributes
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    return response.code, response.remark or ""


async def put(peer: Peer, key: str, body: bytes) -> None:
    response = await peer.send("state", body, properties={"KEYS": key})
    assert response.code == ResponseCode.SUCCESS, response.remark


async def pulled(peer: Peer, offset: int = 0) -> dict[int, bytes]:
    """Returns {queue offset: body} of the messages from an offset to the end of the queue."""
    found: dict[int, bytes] = {}
    while True:
        response = await peer.pull("state", offset)
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert response.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), response.remark
        if response.code == ResponseCode.SUCCESS:
            found |= {message.queue_offset: message.body for message in decode_messages(response.body)}
        following = response.read_header(PullMessageResponseHeader).next_begin_offset
        if following == offset and response.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # A slave does not have the end of the queue.
            return found
        assert following > offset
        offset = following


async def compact(broker: Broker) -> None:
    end = broker.store.max_physical_offset
    await until(lambda: broker.store.flushed_offset >= end)
    await run_again(broker.jobs, "copy messages of compaction topics")
    await run_again(broker.jobs, "compact compaction topics")


async def min_offset(peer: Peer) -> int:
    response = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic="state", queue_id=0))
    return int(response.ext_fields["offset"])


async def test_a_consumer_gets_the_last_message_of_each_key(tmp_path: Path) -> None:
    broker = Broker(small(tmp_path))
    await broker.start()
    remoting = RemotingClient()
    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        assert (await create(peer))[0] == ResponseCode.SUCCESS
        for i in range(60):
            await put(peer, f"key-{i % 3}", b"%d" % i)
        assert len(await pulled(peer)) == 60
        await compact(broker)
        found = await pulled(peer)
        assert {57: b"57", 58: b"58", 59: b"59"}.items() <= found.items()
        assert len(found) < 60
        assert await min_offset(peer) == min(found) > 0
        header = SearchOffsetRequestHeader(topic="state", queue_id=0, timestamp=0)
        response = await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        assert int(response.ext_fields["offset"]) == min(found)
        # The next pull after a new message.
        await put(peer, "key-0", b"new")
        assert await pulled(peer, 60) == {60: b"new"}
        header_of_topic = TopicRequestHeader(topic="state")
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header_of_topic)).code == ResponseCode.SUCCESS
        assert (await create(peer))[0] == ResponseCode.SUCCESS
        await put(peer, "key-0", b"first")
        assert await pulled(peer) == {0: b"first"}
    finally:
        await remoting.close()
        await broker.stop()


async def test_the_state_survives_a_restart(tmp_path: Path) -> None:
    settings = small(tmp_path)
    for round in range(3):
        broker = Broker(settings)
        await broker.start()
        remoting = RemotingClient()
        try:
            peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
            if not round:
                await create(peer)
            else:
                assert (await pulled(peer))[round * 40 - 1] == b"%d" % (round * 40 - 1)
            for i in range(round * 40, round * 40 + 40):
                await put(peer, f"key-{i % 3}", b"%d" % i)
            await compact(broker)
        finally:
            await remoting.close()
            await broker.stop()


async def test_copies_are_flushed_although_another_queue_cannot_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(small(tmp_path))
    await broker.start()
    remoting = RemotingClient()
    log_of_0 = broker.config.store.store_path_root_dir / "compaction" / "compactionLog" / "state" / "0"
    real = files.open

    def full(path: Path | str, *arguments: int) -> int:
        if log_of_0 in Path(path).parents:
            raise OSError(errno.ENOSPC, "planted")
        return real(path, *arguments)

    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        await create(peer)
        with monkeypatch.context() as patch:
            patch.setattr(files, "open", full)
            await put(peer, "key", b"0")
            response = await peer.send("state", b"1", queue_id=1, properties={"KEYS": "key"})
            assert response.code == ResponseCode.SUCCESS, response.remark
            queue = broker.store.queue("state", 1)
            await until(lambda: queue.compacted is not None and queue.compacted.flushed_end == 1)
        await until(lambda: broker.store.queue("state", 0).compacted is not None)
        assert await pulled(peer) == {0: b"0"}
    finally:
        await remoting.close()
        await broker.stop()


async def test_messages_without_a_key_are_refused(peer: Peer) -> None:
    await create(peer)
    for properties in ({}, {"KEYS": " "}):
        response = await peer.send("state", b"x", properties=properties)
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert (response.remark or "").startswith("Required message key is missing")
    messages = [(0, b"1", encode_properties({"KEYS": "a"})), (0, b"2", b"")]
    response = await peer.send("state", encode_batch(messages), code=RequestCode.SEND_BATCH_MESSAGE)
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    response = await peer.send("state", encode_batch(messages[:1]), code=RequestCode.SEND_BATCH_MESSAGE)
    assert response.code == ResponseCode.SUCCESS
    # A refused message is not stored.
    assert await pulled(peer) == {0: b"1"}


@pytest.mark.parametrize(
    "attributes",
    [
        "+cleanup.policy=COMPACTION,+retention.ms=1000",
        "+cleanup.policy=COMPACTION,+retention.bytes=1000",
        "+cleanup.policy=COMPACTION,+message.type=PRIORITY",
        "+cleanup.policy=compaction",
    ],
)
async def test_combinations_that_are_refused(peer: Peer, attributes: str) -> None:
    code, remark = await create(peer, attributes)
    assert code == ResponseCode.SYSTEM_ERROR
    assert attributes.rpartition("+")[2].partition("=")[0] in remark


async def test_the_policy_of_a_topic_stays(peer: Peer) -> None:
    await create(peer, "")
    code, remark = await create(peer)
    assert code == ResponseCode.SYSTEM_ERROR
    assert "at the creation" in remark


async def test_a_slave_gets_the_messages_that_its_log_lacks(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    replicas.store_options = {"compaction_mapped_file_size": 4600, "compaction_cq_mapped_file_size": 20 * 46}
    async with replicas:
        peer = await replicas.peer()
        await create(peer)
        for i in range(60):
            await put(peer, f"key-{i % 3}", b"%d" % i)
        await replicas.caught_up()
        await copy_tables(replicas.slave)
        await compact(replicas.master)
        await compact(replicas.slave)
        found = await pulled(await replicas.peer(1))
        assert {57: b"57", 58: b"58", 59: b"59"}.items() <= found.items()
        missing = replicas.slave.store.queue("state", 0)
        # The slave has lost its copies, and its commit log begins after these messages.
        replicas.slave.store.compaction.delete([missing])
        missing.log_min_offset = 60
        await run_again(replicas.slave.jobs, "copy messages of compaction topics")
        assert await pulled(await replicas.peer(1)) == await pulled(peer)


async def test_a_slave_skips_no_messages_that_its_master_lacks_for_a_while(tmp_path: Path) -> None:
    async with Replicas(tmp_path) as replicas:
        peer = await replicas.peer()
        await create(peer)
        for i in range(10):
            await put(peer, f"key-{i}", b"%d" % i)
        await replicas.caught_up()
        await copy_tables(replicas.slave)
        await compact(replicas.slave)
        compaction = replicas.slave.store.compaction
        queue = replicas.slave.store.queue("state", 0)
        compaction.delete([queue])
        queue.log_min_offset = 10
        replicas.master.store.delete_topic("state")
        copying = replicas.slave.jobs.find("copy messages of compaction topics")
        runs = copying.report.runs
        copying.wake()
        await until(lambda: copying.report.runs > runs + 1)
        assert [(missing.begin, missing.end) for missing in compaction.missing()] == [(0, 10)]
