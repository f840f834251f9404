"""Controller mode: topics of a former master that the new master has not copied yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from administration import commit, create_group
from broker_support import Peer
from constants import change_constant
from controlled_support import ControlledBrokers
from replicated_brokers import copy_tables
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.errors import StoreError
from gantrymq.protocol.bodies.topic_config import PERM_READ, TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.store.consume_queue import ConsumeQueue


async def elect(replicas: ControlledBrokers, number: int) -> None:
    header = ElectMasterRequestHeader(
        cluster_name="DefaultCluster", broker_name="broker-a", broker_id=number, designate_elect=True
    )
    request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
    await replicas.remoting.call(replicas.controller.address, request)
    await until(lambda: replicas.masters() == [number])


async def create(broker: Broker, topic: TopicConfig) -> None:
    broker.topics.put(topic)
    await broker.topics.written()


async def shown(peer: Peer, topic: str, queue_id: int = 0) -> list[bytes]:
    return [message.body for message in decode_messages((await peer.pull(topic, queue_id=queue_id)).body)]


async def test_what_was_acknowledged_is_read_from_the_new_master(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        await until(lambda: replicas.brokers[2].topics.get("TBW102") is not None)
        # The slave copies no more tables.
        replicas.brokers[2].jobs.find("copy the master's tables").cancel()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"acknowledged", queue_id=2)).code == ResponseCode.SUCCESS
        assert replicas.brokers[2].topics.get("orders") is None
        await elect(replicas, 2)
        made = replicas.brokers[2].topics.get("orders")
        assert made is not None
        assert (made.read_queue_nums, made.write_queue_nums) == (3, 3)
        assert await shown(await replicas.peer(2), "orders", 2) == [b"acknowledged"]


async def test_queues_of_a_changed_topic_are_read_from_the_new_master(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        await create(replicas.brokers[1], TopicConfig("orders", 1, 1))
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"known")).code == ResponseCode.SUCCESS
        await until(lambda: replicas.brokers[2].topics.get("orders") is not None)
        # The slave copies no more tables.
        replicas.brokers[2].jobs.find("copy the master's tables").cancel()
        await create(replicas.brokers[1], TopicConfig("orders", 4, 4, PERM_READ))
        await create(replicas.brokers[1], TopicConfig("orders", 4, 4))
        assert (await peer.send("orders", b"acknowledged", queue_id=2)).code == ResponseCode.SUCCESS
        assert replicas.brokers[2].topics.get("orders") == TopicConfig("orders", 1, 1)
        await elect(replicas, 2)
        # An administrator gives it more queues for writing again.
        assert replicas.brokers[2].topics.get("orders") == TopicConfig("orders", 3, 1)
        peer = await replicas.peer(2)
        assert await shown(peer, "orders", 0) == [b"known"]
        assert await shown(peer, "orders", 2) == [b"acknowledged"]


async def test_queues_that_were_removed_from_a_topic_stay_so(tmp_path: Path) -> None:
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        await create(replicas.brokers[1], TopicConfig("orders", 4, 4))
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"old", queue_id=3)).code == ResponseCode.SUCCESS
        await create(replicas.brokers[1], TopicConfig("orders", 2, 2))
        await copy_tables(replicas.brokers[2])
        await until(lambda: replicas.brokers[2].topics.get("orders") == TopicConfig("orders", 2, 2))
        assert (await peer.send("orders", b"new", queue_id=1)).code == ResponseCode.SUCCESS
        await elect(replicas, 2)
        assert replicas.brokers[2].topics.get("orders") == TopicConfig("orders", 2, 2)


async def test_a_new_queue_makes_the_slave_copy_the_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "metadata_sync._PERIOD_S", 1000.0)
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        await create(replicas.brokers[1], TopicConfig("orders", 1, 1))
        await copy_tables(replicas.brokers[2])
        await until(lambda: replicas.brokers[2].topics.get("orders") == TopicConfig("orders", 1, 1))
        await create(replicas.brokers[1], TopicConfig("orders", 4, 4))
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"acknowledged", queue_id=2)).code == ResponseCode.SUCCESS
        await until(lambda: replicas.brokers[2].topics.get("orders") == TopicConfig("orders", 4, 4))


async def test_offsets_in_a_deleted_topic_are_not_those_of_the_new_one(tmp_path: Path) -> None:
    """The deletion is not copied, but the first message of the new queue shows it."""
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        await create(replicas.brokers[1], TopicConfig("orders", 2, 2))
        peer = await replicas.peer(1)
        await create_group(peer)
        for queue_id in (0, 0, 1):
            assert (await peer.send("orders", b"old", queue_id=queue_id)).code == ResponseCode.SUCCESS
        await commit(peer, 2)
        await copy_tables(replicas.brokers[2])
        offsets = replicas.brokers[2].offsets
        await until(lambda: offsets.query("consumers", "orders", 0) == 2)
        replicas.brokers[2].jobs.find("copy the master's tables").cancel()
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"})
        await create(replicas.brokers[1], TopicConfig("orders", 2, 2))
        for body in (b"0", b"1", b"2"):
            assert (await peer.send("orders", body)).code == ResponseCode.SUCCESS
        await elect(replicas, 2)
        assert offsets.topic_begin("orders") == 0
        assert offsets.query("consumers", "orders", 0) is None
        assert await shown(await replicas.peer(2), "orders") == [b"0", b"1", b"2"]


async def test_a_queue_that_cannot_be_read_keeps_nobody_from_being_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: ConsumeQueue, offset: int) -> None:
        raise StoreError("can't read it")

    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        replicas.brokers[2].jobs.find("copy the master's tables").cancel()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"acknowledged")).code == ResponseCode.SUCCESS
        monkeypatch.setattr(ConsumeQueue, "peek", fails)
        await elect(replicas, 2)
    assert "topic orders may have messages that its former master had not reported: can't read it" in caplog.text


async def test_a_topic_that_was_deleted_stays_so(tmp_path: Path) -> None:
    """The master's table only shows that the topic does not exist. The slave's queues can still have its messages."""
    async with ControlledBrokers(tmp_path, 2) as replicas:
        await replicas.all_in_sync()
        peer = await replicas.peer(1)
        assert (await peer.send("orders", b"acknowledged")).code == ResponseCode.SUCCESS
        topics = replicas.brokers[2].topics
        await until(lambda: topics.get("orders") is not None)
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"})
        # This send makes the slave copy the table.
        assert (await peer.send("others", b"acknowledged")).code == ResponseCode.SUCCESS
        await until(lambda: topics.get("others") is not None)
        assert topics.get("orders") is None
        begin = replicas.brokers[1].offsets.topic_begin("orders")
        await until(lambda: replicas.brokers[2].offsets.topic_begin("orders") == begin)
        await elect(replicas, 2)
        assert topics.get("orders") is None
        # A topic that is created again has no messages of the old one.
        peer = await replicas.peer(2)

        async def is_sent() -> bool:
            """The send is refused until the other broker follows again."""
            return (await peer.send("orders", b"new")).code == ResponseCode.SUCCESS

        await until(is_sent)
        assert await shown(peer, "orders") == [b"new"]
