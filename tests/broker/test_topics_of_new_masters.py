"""Controller mode: topics of a former master that the new master has not copied yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from administration import commit, create_group
from broker_support import Peer
from constants import change_constant
from controlled_support import ControlledBrokers
from paused_slaves import pause_slave, resume_slave
from pop_support import PopPeer, popped
from replicated_brokers import Replicas, copy_tables
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.errors import StoreError
from gantrymq.protocol.bodies.topic_config import PERM_READ, TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.controller import ElectMasterRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.protocol.private_fields import TOPIC_BEGIN_FIELD
from gantrymq.protocol.receipt_handle import pop_retry_topic
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
        assert offsets.query("consumers", "orders", 0) is None
        # Running consumers detect the new topic by the field.
        assert 0 < offsets.topic_begin("orders") <= replicas.brokers[1].offsets.topic_begin("orders")
        response = await (await replicas.peer(2)).pull("orders")
        assert [message.body for message in decode_messages(response.body)] == [b"0", b"1", b"2"]
        assert response.ext_fields[TOPIC_BEGIN_FIELD] == str(offsets.topic_begin("orders"))
        # All messages of queue 1 were older than the last copy.
        assert not await shown(await replicas.peer(2), "orders", 1)


async def test_delayed_and_popped_messages_of_a_deleted_topic_are_not_those_of_the_new_one(tmp_path: Path) -> None:
    """The deletion is not copied. Messages that the former master acknowledged for the new topic are delivered."""
    async with ControlledBrokers(tmp_path, 2, message_delay_level="4s") as replicas:
        await replicas.all_in_sync()
        await create(replicas.brokers[1], TopicConfig("orders", 2, 2))
        peer = PopPeer((await replicas.peer(1)).connection)
        await create_group(peer)
        assert (await peer.send("orders", b"old")).code == ResponseCode.SUCCESS
        retry_topic = pop_retry_topic("orders", "consumers")
        await create(replicas.brokers[1], TopicConfig(retry_topic, 1, 1))
        assert (await peer.send(retry_topic, b"old")).code == ResponseCode.SUCCESS
        assert popped(await peer.pop("orders", group="consumers"))
        popped_at = replicas.brokers[1].store.max_physical_offset
        assert (await peer.send("orders", b"old", properties={"DELAY": "1"})).code == ResponseCode.SUCCESS
        await copy_tables(replicas.brokers[2])
        offsets = replicas.brokers[2].offsets
        await until(lambda: offsets.query("consumers", "orders", 0) is not None)
        replicas.brokers[2].jobs.find("copy the master's tables").cancel()
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"})
        await create(replicas.brokers[1], TopicConfig("orders", 2, 2))
        # Between the deletion and the first message that shows it.
        assert (await peer.send("orders", b"delayed", properties={"DELAY": "1"})).code == ResponseCode.SUCCESS
        assert (await peer.send("orders", b"new")).code == ResponseCode.SUCCESS
        await elect(replicas, 2)
        assert offsets.is_old_pop("consumers", "orders", 0, popped_at)
        second = await replicas.peer(2)

        async def is_delivered() -> bool:
            """The older delayed message would come first."""
            return len(await shown(second, "orders")) > 1

        await until(is_delivered)
        assert await shown(second, "orders") == [b"new", b"delayed"]
        assert not await shown(second, retry_topic)


async def test_a_table_that_is_older_than_the_deletion_of_a_topic(tmp_path: Path) -> None:
    """The slave applies the table after the first message of the new topic, and must not get the old offset again."""
    async with Replicas(tmp_path, 1, role=BrokerRole.ASYNC_MASTER) as replicas:
        peer, slave = await replicas.peer(), replicas.slave
        await create(replicas.master, TopicConfig("orders", 2, 2))
        for body in (b"0", b"1", b"2"):
            assert (await peer.send("orders", body)).code == ResponseCode.SUCCESS
        await replicas.caught_up()
        pause_slave(slave)
        await commit(peer, 2)
        # The slave's log is too short for the table.
        assert (await peer.send("orders", b"3")).code == ResponseCode.SUCCESS
        await copy_tables(slave)
        slave.jobs.find("copy the master's tables").cancel()
        assert slave.offsets.query("consumers", "orders", 0) is None
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "orders"})
        await create(replicas.master, TopicConfig("orders", 2, 2))
        assert (await peer.send("orders", b"new")).code == ResponseCode.SUCCESS
        resume_slave(slave)
        await replicas.caught_up()
        begin = slave.offsets.topic_begin("orders")
        assert 0 < begin <= replicas.master.offsets.topic_begin("orders")
        # The group exists only in the table of offsets.
        await until(lambda: "orders" in slave.offsets.topics_of("consumers"))
        assert slave.offsets.query("consumers", "orders", 0) is None
        assert slave.offsets.topic_begin("orders") >= begin


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
