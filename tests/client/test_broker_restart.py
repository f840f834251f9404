"""Clients whose broker goes down and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from constants import change_constant
from ports import free_port
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.consuming.lite_pull_consumer import LitePullConsumer
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError, RemotingError
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.message import Message, MessageExt, MessageQueue
from gantrymq.store.config import StoreConfig


async def test_clients_go_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "queue_puller.RETRY_DELAY_S", 0.05)
    name_server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=tmp_path / "kvConfig.json"))
    await name_server.start()

    port = free_port()

    def new_broker() -> Broker:
        return Broker(
            BrokerConfig(
                broker_name="broker-a",
                listen_port=port,
                namesrv_addr=[name_server.address],
                store=StoreConfig(store_path_root_dir=tmp_path / "store", mapped_file_size_commit_log=4 * 1024 * 1024),
            )
        )

    broker = new_broker()
    await broker.start()
    bodies: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        bodies.append(message.body)

    consumer = PushConsumer(name_server.address, "group", handle, start_from="earliest")
    consumer.subscribe("topic")
    async with Producer(name_server.address, "producers") as producer:
        await producer.send(Message("topic", b"before"))
        async with consumer:
            await until(lambda: bodies == [b"before"])
            await broker.stop()
            with pytest.raises(RemotingError):
                await producer.send(Message("topic", b"lost"))
            broker = new_broker()
            await broker.start()
            await _send_when_possible(producer, Message("topic", b"after"))
            await until(lambda: b"after" in bodies)
    await broker.stop()
    await name_server.stop()
    assert bodies == [b"before", b"after"]


async def test_a_consumer_that_ends_commits_again_what_a_killed_broker_has_lost(tmp_path: Path) -> None:
    """A killed broker may have lost the last commit.

    Without a repeated commit, the next consumer would receive messages again.
    """
    name_server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=tmp_path / "kvConfig.json"))
    await name_server.start()
    store, port = tmp_path / "store", free_port()

    def new_broker() -> Broker:
        return Broker(
            BrokerConfig(
                broker_name="broker-a",
                listen_port=port,
                namesrv_addr=[name_server.address],
                store=StoreConfig(store_path_root_dir=store, mapped_file_size_commit_log=4 * 1024 * 1024),
            )
        )

    broker = new_broker()
    await broker.start()
    async with Producer(name_server.address, "producers") as producer:
        result = await producer.send(Message("topic", b"handled"))
    queue_id = result.queue.queue_id
    async with LitePullConsumer(name_server.address, "group", start_from="earliest") as consumer:
        await consumer.assign([result.queue])
        assert [message.body for message in await consumer.poll()] == [b"handled"]
        # A pull would also commit the offset.
        consumer.pause([result.queue])
        await consumer.commit()
        assert broker.offsets.queues("group", "topic") == {queue_id: 1}
        await broker.stop()
        # The state after a kill between the commit and the next write of the offset table.
        (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
        (store / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
        broker = new_broker()
        await broker.start()
        assert broker.offsets.queues("group", "topic") == {}
        await until(lambda: _has_found(consumer, result.queue))
    committed = broker.offsets.queues("group", "topic")
    await broker.stop()
    await name_server.stop()
    assert committed == {queue_id: 1}


async def _has_found(consumer: LitePullConsumer, queue: MessageQueue) -> bool:
    try:
        await consumer.end_offset(queue)
    except GantryError:
        return False
    return True


async def _send_when_possible(producer: Producer, message: Message) -> None:
    async def is_sent() -> bool:
        try:
            await producer.send(message)
        except GantryError:
            return False
        return True

    await until(is_sent)
