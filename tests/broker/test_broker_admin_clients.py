"""Admin requests for connected clients, for requests that the broker relays to them, and for their filters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from administration import beat, queue, send
from broker_support import Peer
from constants import change_constant

from gantrymq.broker.admin import client_relay
from gantrymq.broker.broker import Broker
from gantrymq.limits import Limit
from gantrymq.protocol.bodies.connection import (
    CheckClientRequestBody,
    ConsumerConnection,
    ProducerConnection,
    ProducerTableInfo,
)
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.bodies.offset import ConsumerStatusBody
from gantrymq.protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
    GroupRequestHeader,
)
from gantrymq.protocol.headers.offset import GetConsumerStatusRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.quota import Quota


async def client(
    broker: Broker, client_id: str, handlers: dict[int, Callable[[Connection, RemotingCommand], object]]
) -> RemotingClient:
    """Connects a member of group `consumers` that answers requests of the broker."""
    remoting = RemotingClient(handlers)  # type: ignore[arg-type]
    await beat(Peer(await remoting.connection(f"127.0.0.1:{broker.port}")), client_id)
    return remoting


async def test_connections(peer: Peer) -> None:
    before = time.time_ns() // 1_000_000
    await beat(peer, "one")
    response = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupRequestHeader(consumer_group="consumers"))
    consumers = decode_json(response.body, ConsumerConnection)
    assert [(c.client_id, c.language, c.version) for c in consumers.connection_set] == [
        ("one", "PYTHON", PROTOCOL_VERSION)
    ]
    assert consumers.connection_set[0].client_addr.startswith("127.0.0.1:")
    assert consumers.subscription_table["orders"].tags_set == ["a", "b"]
    assert consumers.message_model == "CLUSTERING"
    header = GetProducerConnectionListRequestHeader(producer_group="producers")
    response = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    assert [c.client_id for c in decode_json(response.body, ProducerConnection).connection_set] == ["one"]
    response = await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
    (info,) = decode_json(response.body, ProducerTableInfo).data["producers"]
    assert (info.client_id, info.language) == ("one", "PYTHON")
    assert before - 1 <= info.last_update_timestamp <= time.time_ns() // 1_000_000 + 1


async def test_connections_of_nobody(peer: Peer) -> None:
    response = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, GroupRequestHeader(consumer_group="none"))
    assert response.code == ResponseCode.CONSUMER_NOT_ONLINE
    header = GetProducerConnectionListRequestHeader(producer_group="none")
    response = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "none" in (response.remark or "")
    assert decode_json((await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body, ProducerTableInfo).data == {}


async def test_running_info_comes_from_the_client(peer: Peer, broker: Broker) -> None:
    def tell(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(GetConsumerRunningInfoRequestHeader)
        return RemotingCommand.response(body=f"{header.client_id} {header.jstack_enable}".encode())

    remoting = await client(broker, "one", {RequestCode.GET_CONSUMER_RUNNING_INFO: tell})
    header = GetConsumerRunningInfoRequestHeader(consumer_group="consumers", client_id="one", jstack_enable=True)
    response = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert (response.code, response.body) == (ResponseCode.SUCCESS, b"one True")
    for header.consumer_group, header.client_id in (("consumers", "two"), ("none", "one")):
        response = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "not online" in (response.remark or "")
    await remoting.close()


async def test_client_that_refuses_or_leaves_or_sleeps(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = GetConsumerRunningInfoRequestHeader(consumer_group="consumers", client_id="one")
    remoting = await client(broker, "one", {})
    response = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    await remoting.close()

    asked = asyncio.Event()

    def say_nothing(connection: Connection, request: RemotingCommand) -> None:
        asked.set()

    remoting = await client(broker, "one", {RequestCode.GET_CONSUMER_RUNNING_INFO: say_nothing})
    question = asyncio.create_task(peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
    async with asyncio.timeout(5):
        await asked.wait()
    await remoting.close()
    assert (await question).code == ResponseCode.SYSTEM_ERROR

    change_constant(monkeypatch, "client_relay.CLIENT_TIMEOUT_MS", 100)
    remoting = await client(broker, "one", {RequestCode.GET_CONSUMER_RUNNING_INFO: say_nothing})
    response = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert response.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "one" in (response.remark or "")

    [relay] = [part for part in broker.features.all if isinstance(part, client_relay.ClientRelay)]
    # One connection gets a quarter of the limit.
    limit = Limit("requests", ("broker",), items=8, size=1000, items_of_one=2, size_of_one=250, reason="a test")
    monkeypatch.setattr(relay, "_quota", Quota(limit))
    change_constant(monkeypatch, "client_relay.CLIENT_TIMEOUT_MS", 1000)
    answers = await asyncio.gather(*(peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header) for _ in range(5)))
    assert (
        sorted(answer.code for answer in answers)
        == [ResponseCode.SYSTEM_BUSY] * 3 + [ResponseCode.CONSUME_MSG_TIMEOUT] * 2
    )
    await remoting.close()


async def test_message_is_consumed_directly(peer: Peer, broker: Broker) -> None:
    consumed: list[tuple[ConsumeMessageDirectlyResultRequestHeader, bytes]] = []

    def consume(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = request.read_header(ConsumeMessageDirectlyResultRequestHeader)
        consumed.append((header, request.body))
        return RemotingCommand.response(body=b'{"consumeResult":"CR_SUCCESS"}')

    remoting = await client(broker, "one", {RequestCode.CONSUME_MESSAGE_DIRECTLY: consume})
    sent = await peer.send("orders", b"again", properties={"KEYS": "k"})
    header = ConsumeMessageDirectlyResultRequestHeader(
        consumer_group="consumers", client_id="one", msg_id=sent.ext_fields["msgId"], topic="orders"
    )
    response = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert (response.code, response.body) == (ResponseCode.SUCCESS, b'{"consumeResult":"CR_SUCCESS"}')
    ((seen, body),) = consumed
    assert (seen.broker_name, seen.topic_sys_flag, seen.group_sys_flag) == ("broker-a", 0, 0)
    (message,) = decode_messages(body)
    assert (message.body, message.keys) == (b"again", ["k"])
    for header.msg_id in ("", "XYZ", "0" * 32, "7F" * 16):
        response = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert response.code == (ResponseCode.SUCCESS if header.msg_id == "0" * 32 else ResponseCode.SYSTEM_ERROR)
    header.client_id = None
    assert (await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)).code == ResponseCode.SYSTEM_ERROR
    await remoting.close()


async def test_status_of_the_clients(peer: Peer, broker: Broker) -> None:
    def status(offset: int) -> Callable[[Connection, RemotingCommand], RemotingCommand]:
        def tell(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            assert request.read_header(GetConsumerStatusRequestHeader).topic == "orders"
            body = ConsumerStatusBody(message_queue_table={queue("orders", 0): offset})
            return RemotingCommand.response(body=body.encode())

        return tell

    async def ask(client_id: str | None) -> dict[str, object]:
        header = GetConsumerStatusRequestHeader(topic="orders", group="consumers", client_addr=client_id)
        response = await peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        assert response.code == ResponseCode.SUCCESS
        return dict(ConsumerStatusBody.decode(response.body).consumer_table)

    header = GetConsumerStatusRequestHeader(topic="orders", group="consumers")
    response = await peer.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "consumers" in (response.remark or "")
    clients = [
        await client(broker, name, {RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: status(offset)})
        for name, offset in (("one", 1), ("two", 2))
    ]
    # Clients that cannot answer are left out.
    clients.append(await client(broker, "three", {}))
    one, two = {queue("orders", 0): 1}, {queue("orders", 0): 2}
    assert await ask(None) == {"one": one, "two": two}
    assert await ask("two") == {"two": two}
    assert await ask("four") == {}
    for remoting in clients:
        await remoting.close()


async def test_client_configuration(peer: Peer) -> None:
    async def check(subscription: SubscriptionData | None) -> int:
        body = encode_json(CheckClientRequestBody("one", "consumers", subscription))
        return (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)).code

    assert await check(None) == ResponseCode.SUCCESS
    assert await check(SubscriptionData.parse("orders", "a || b")) == ResponseCode.SUCCESS
    assert (
        await check(SubscriptionData("orders", "a > (", expression_type="NONE"))
        == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    )
    assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=b"[")).code == ResponseCode.SYSTEM_ERROR


async def test_administration_needs_its_headers(peer: Peer) -> None:
    await send(peer, 1)
    for code in (28, 43, 45, 201, 305, 316, 328):
        assert (await peer.ask(code)).code == ResponseCode.SUCCESS, code
    for code in (
        33,
        202,
        203,
        204,
        207,
        208,
        222,
        223,
        300,
        303,
        307,
        308,
        309,
        314,
        315,
        321,
        343,
        345,
        351,
        352,
        353,
    ):
        response = await peer.ask(code)
        assert response.code == ResponseCode.SYSTEM_ERROR, code
        assert "HeaderError" in (response.remark or ""), code
    for code in (18, 41, 42, 46, 200, 225):
        response = await peer.ask(code, body=b"{")
        assert response.code == ResponseCode.SYSTEM_ERROR, code
        assert "BodyError" in (response.remark or ""), code
