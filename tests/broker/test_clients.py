"""Heartbeats, group members and their changes, and consumer offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from administration import create_group
from broker_support import Peer, config, run_again
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.broker import Broker
from gantrymq.broker.tables.consumer_offsets import ConsumerOffsets, OffsetTable
from gantrymq.broker.tables.persistence import TablePersistence
from gantrymq.protocol.bodies.heartbeat import ConsumerData, ConsumerList, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader, UnregisterClientRequestHeader
from gantrymq.protocol.headers.offset import (
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from gantrymq.protocol.headers.pop import PopMessageRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection


def heartbeat(client_id: str, group: str = "consumers") -> bytes:
    return encode_json(
        HeartbeatData(
            client_id,
            [ProducerData("producers")],
            [ConsumerData(group, subscription_data_set=[SubscriptionData.parse("orders", "a || b")])],
        )
    )


async def members(peer: Peer, group: str = "consumers") -> list[str]:
    response = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRequestHeader(consumer_group=group))
    return [] if response.code else decode_json(response.body, ConsumerList).consumer_id_list


async def test_members_come_and_go_and_all_are_told(peer: Peer, broker: Broker) -> None:
    told: asyncio.Queue[str] = asyncio.Queue()

    def notified(connection: Connection, request: RemotingCommand) -> None:
        told.put_nowait(request.read_header(GroupRequestHeader).consumer_group)

    listening = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified})
    first = Peer(await listening.connection(f"127.0.0.1:{broker.port}"))
    async with asyncio.timeout(5):
        assert (await first.ask(RequestCode.HEART_BEAT, body=heartbeat("one"))).code == ResponseCode.SUCCESS
        assert await told.get() == "consumers"
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("two"))
        assert await told.get() == "consumers"
        assert sorted(await members(peer)) == ["one", "two"]
        await peer.ask(
            RequestCode.UNREGISTER_CLIENT,
            UnregisterClientRequestHeader(client_id="two", consumer_group="consumers", producer_group="producers"),
        )
        assert await told.get() == "consumers"
        assert await members(peer) == ["one"]
        await first.ask(RequestCode.HEART_BEAT, body=heartbeat("one"))
        assert told.empty()
        await listening.close()

        async def nobody_is_left() -> bool:
            return not await members(peer)

        await until(nobody_is_left)
    assert not broker.members.producers
    assert broker.topics.get("%RETRY%consumers") is not None


async def test_who_does_not_listen_is_not_told_thousands_of_times(
    peer: Peer, broker: Broker, remoting: RemotingClient
) -> None:
    """The broker sends one notification for all changes within 0.1 s."""
    told: list[str] = []

    def notified(connection: Connection, request: RemotingCommand) -> None:
        told.append(request.read_header(GroupRequestHeader).consumer_group)

    listening = RemotingClient({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: notified})
    first = Peer(await listening.connection(f"127.0.0.1:{broker.port}"))
    await first.ask(RequestCode.HEART_BEAT, body=heartbeat("one"))
    others = [RemotingClient() for _ in range(30)]
    peers = [Peer(await other.connection(f"127.0.0.1:{broker.port}")) for other in others]
    await asyncio.gather(
        *(other.ask(RequestCode.HEART_BEAT, body=heartbeat(f"other-{n}")) for n, other in enumerate(peers))
    )
    await until(lambda: len(told) > 1)
    count = len(told)
    await asyncio.gather(*(other.close() for other in others))
    await until(lambda: len(broker.members.consumers["consumers"].clients) == 1)
    await until(lambda: len(told) > count)
    assert len(told) < 20
    await listening.close()


async def test_a_long_heartbeat_is_taken_in_bit_by_bit(peer: Peer, broker: Broker, remoting: RemotingClient) -> None:
    other = Peer(await remoting.connection(f"localhost:{broker.port}"))
    groups = [ConsumerData(f"group-{n}", subscription_data_set=[SubscriptionData("orders")]) for n in range(4000)]
    beat = asyncio.create_task(
        peer.ask(RequestCode.HEART_BEAT, body=encode_json(HeartbeatData("one", consumer_data_set=groups)))
    )
    served = 0
    while not beat.done():
        await other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRequestHeader(consumer_group="group-1"))
        served += 1
    assert (await beat).code == ResponseCode.SUCCESS
    assert len(broker.members.consumers) == 4000
    assert served > 2, "nobody was served meanwhile"


async def test_a_heartbeat_that_is_none(peer: Peer) -> None:
    response = await peer.ask(RequestCode.HEART_BEAT, body=b" " * (5 << 20))
    assert (response.code, "at most" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_unit_mode_becomes_the_flag_of_a_new_retry_topic(peer: Peer, broker: Broker) -> None:
    data = HeartbeatData("one", consumer_data_set=[ConsumerData("units", unit_mode=True), ConsumerData("others")])
    await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))
    flags = [broker.topics.get(f"%RETRY%{name}") for name in ("units", "others")]
    assert [topic and topic.topic_sys_flag for topic in flags] == [2, 0]


async def test_silent_clients_are_dropped(broker: Broker, peer: Peer) -> None:
    await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("one"))
    await run_again(broker.jobs, "expire silent clients")
    assert await members(peer) == ["one"]
    broker.config.channel_expired_timeout = -1000
    await run_again(broker.jobs, "expire silent clients")
    assert not broker.members.consumers
    await until(lambda: peer.connection.is_closed)


async def test_heartbeat_as_java_writes_it(peer: Peer) -> None:
    body = (
        b'{"clientID":"127.0.0.1@1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":'
        b'"CONSUME_PASSIVELY","groupName":"javas","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode"'
        b':false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],"topic":"orders"}],'
        b'"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],'
        b'"withoutSub":false}'
    )
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
    assert await members(peer, "javas") == ["127.0.0.1@1"]


async def test_heartbeat_of_version_2(peer: Peer, broker: Broker) -> None:
    subscription = [SubscriptionData.parse("orders", "a || b")]

    async def beat(sender: Peer, client_id: str, *, without_sub: bool, fingerprint: int = 77) -> str:
        groups = [ConsumerData("consumers", subscription_data_set=[] if without_sub else subscription)]
        data = HeartbeatData(client_id, [], groups, fingerprint, without_sub)
        response = await sender.ask(RequestCode.HEART_BEAT, body=encode_json(data))
        assert response.code == ResponseCode.SUCCESS
        assert response.ext_fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        return response.ext_fields["IS_SUB_CHANGE"]

    def subscribed() -> list[str]:
        found = broker.members.subscription("consumers", "orders")
        return [] if found is None else found.tags_set

    assert await beat(peer, "one", without_sub=False, fingerprint=0) == "true"
    assert await beat(peer, "one", without_sub=False) == "false"
    assert await beat(peer, "one", without_sub=True) == "false"
    assert subscribed() == ["a", "b"]
    # A client that the broker does not have: a member at once, with the group's subscriptions until it sends its own.
    other = RemotingClient()
    second = Peer(await other.connection(f"127.0.0.1:{broker.port}"))
    assert await beat(second, "two", without_sub=True) == "true"
    assert sorted(await members(peer)) == ["one", "two"]
    assert subscribed() == ["a", "b"]
    assert await beat(second, "two", without_sub=False) == "false"
    await other.close()


async def test_heartbeat_of_version_2_after_a_restart_of_the_broker(peer: Peer, broker: Broker) -> None:
    data = HeartbeatData("one", [], [ConsumerData("consumers")], 77, True)
    response = await peer.ask(RequestCode.HEART_BEAT, body=encode_json(data))
    assert response.ext_fields["IS_SUB_CHANGE"] == "true"
    assert await members(peer) == ["one"]
    await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("one"))
    assert broker.members.subscription("consumers", "orders") is not None


async def test_broken_heartbeat_is_refused(peer: Peer) -> None:
    response = await peer.ask(RequestCode.HEART_BEAT, body=b'{"clientID":')
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "JSON" in (response.remark or "")


async def test_offsets(peer: Peer, broker: Broker) -> None:
    await peer.send("orders", b"x")

    async def query(queue_id: int = 0, set_zero: bool | None = None) -> tuple[int, str | None]:
        header = QueryConsumerOffsetRequestHeader(
            consumer_group="consumers", topic="orders", queue_id=queue_id, set_zero_if_not_found=set_zero
        )
        response = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
        return response.code, response.ext_fields.get("offset")

    assert await query() == (ResponseCode.SUCCESS, "0")
    assert await query(set_zero=False) == (ResponseCode.QUERY_NOT_FOUND, None)
    # As in Java: an empty queue has no message that is still in memory.
    assert await query(1) == (ResponseCode.QUERY_NOT_FOUND, None)
    header = UpdateConsumerOffsetRequestHeader(consumer_group="consumers", topic="orders", queue_id=0, commit_offset=1)
    answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    await create_group(peer)
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.SUCCESS
    assert await query(set_zero=False) == (ResponseCode.SUCCESS, "1")
    header.commit_offset = -7
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.INVALID_PARAMETER
    header.commit_offset, header.queue_id = 7, 1000
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.INVALID_PARAMETER
    header.topic = "nothing"
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_offsets_survive_a_restart(tmp_path, remoting: RemotingClient) -> None:  # type: ignore[no-untyped-def]
    for expected in (None, 5):
        broker = Broker(config(tmp_path / "store"))
        await broker.start()
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        if expected is None:
            await peer.send("orders", b"kept")
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group="consumers", topic="orders", queue_id=0, commit_offset=5
            )
            await create_group(peer)
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        else:
            assert broker.offsets.query("consumers", "orders", 0) == expected
            assert broker.topics.get("orders") is not None
            assert (await peer.pull("orders")).code == ResponseCode.SUCCESS
        await broker.stop()
    saved = msgspec.json.decode((tmp_path / "store/config/consumerOffset.json").read_bytes())
    assert saved["offsetTable"]["orders@consumers"] == {"0": 5}


async def test_a_negative_offset_in_the_file_means_never_consumed(tmp_path: Path, remoting: RemotingClient) -> None:
    """The `consumerOffset.json` of a Java broker has -1 for queues that a group has not consumed."""
    path = tmp_path / "store/config/consumerOffset.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"offsetTable":{"orders@consumers":{0:-1,1:-7,2:3}}}')
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    try:
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        await peer.send("orders", b"x")

        async def query(queue_id: int, set_zero: bool | None) -> tuple[int, str | None]:
            header = QueryConsumerOffsetRequestHeader(
                consumer_group="consumers", topic="orders", queue_id=queue_id, set_zero_if_not_found=set_zero
            )
            response = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
            return response.code, response.ext_fields.get("offset")

        assert await query(0, None) == (ResponseCode.SUCCESS, "0")
        for queue_id in (0, 1):
            assert await query(queue_id, False) == (ResponseCode.QUERY_NOT_FOUND, None)
        assert await query(2, False) == (ResponseCode.SUCCESS, "3")
        await create_group(peer)
        header = PopMessageRequestHeader(
            consumer_group="consumers",
            topic="orders",
            queue_id=0,
            max_msg_nums=1,
            invisible_time=60_000,
            poll_time=0,
            born_time=0,
            init_mode=0,
        )
        assert (await peer.ask(RequestCode.POP_MESSAGE, header)).code == ResponseCode.SUCCESS
        assert broker.offsets.queues("consumers", "orders") == {0: 0, 2: 3}
    finally:
        await broker.stop()


def test_negative_offsets_of_another_broker_are_left_out(tmp_path: Path) -> None:
    """Negative offsets are dropped when a table is copied from another broker.

    A slave copies its master's table, and a returning master copies the table of the acting master.
    """
    offsets = ConsumerOffsets(tmp_path / "consumerOffset.json", persistence=TablePersistence(config(tmp_path), Jobs()))
    other = OffsetTable({"orders@consumers": {0: -1, 1: 5}})
    for take in (offsets.copy, offsets.advance):
        take(other)
        assert offsets.queues("consumers", "orders") == {1: 5}


async def test_queue_offsets(peer: Peer) -> None:
    async def offset(code: int, queue_id: int = 0) -> str | None:
        response = await peer.ask(code, QueueRequestHeader(topic="orders", queue_id=queue_id))
        return response.ext_fields.get("offset") if response.code == 0 else f"code {response.code}"

    for i in range(3):
        await peer.send("orders", b"%d" % i)
    assert await offset(RequestCode.GET_MAX_OFFSET) == "3"
    assert await offset(RequestCode.GET_MIN_OFFSET) == "0"
    assert await offset(RequestCode.GET_MAX_OFFSET, 1) == "0"
    assert await offset(RequestCode.GET_MAX_OFFSET, 9) == f"code {ResponseCode.INVALID_PARAMETER:d}"

    async def search(timestamp: int) -> str:
        header = SearchOffsetRequestHeader(topic="orders", queue_id=0, timestamp=timestamp)
        return (await peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)).ext_fields["offset"]

    assert await search(0) == "0"
    assert await search(2**50) == "3"
    earliest = await peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueRequestHeader(topic="orders", queue_id=0))
    assert int(earliest.ext_fields["timestamp"]) > 1_700_000_000_000
