"""Lite topics, as clients of a broker see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_support import Peer, config, run_again
from constants import change_constant
from lite_support import ADD, GROUP, LEAVE, REMOVE, REPLACE, TOPIC, LiteMessage, LitePeer, bodies
from pop_support import now_ms
from wait_until import until
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerRole
from gantrymq.broker.lite import LiteTopics
from gantrymq.broker.lite.subscriptions import LiteClient, LiteSubscriptions
from gantrymq.protocol.bodies.lite import (
    LiteSubscriptionAction,
    LiteSubscriptionCtlBody,
    OffsetOption,
    OffsetOptionType,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.protocol.lite_topic import light_queue_of
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.consume_queue import ConsumeQueue

FIRST = OffsetOption(OffsetOptionType.POLICY, 1)


async def start(directory: Path, **changed: Any) -> Broker:
    settings = config(directory, **changed)
    settings.store.enable_lmq = True
    broker = Broker(settings)
    await broker.start()
    return broker


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = await start(tmp_path / "store")
    yield broker
    await broker.stop()


@pytest.fixture
async def lite(broker: Broker, remoting: RemotingClient) -> LitePeer:
    peer = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.create()
    return peer


def lite_of(broker: Broker) -> LiteTopics:
    found = broker.features.lite
    assert found is not None
    return found


async def fill(lite: LitePeer, lite_topic: str, *sent: bytes) -> None:
    for body in sent:
        response = await lite.send_to(lite_topic, body)
        assert response.code == ResponseCode.SUCCESS, response.remark


async def test_messages_of_lite_topics(lite: LitePeer) -> None:
    await lite.subscribe("one", "two", option=FIRST)
    await fill(lite, "one", b"1a", b"1b")
    await fill(lite, "two", b"2a")
    await fill(lite, "three", b"3a")
    messages = await lite.pop()
    assert sorted(bodies(messages)) == [b"1a", b"1b", b"2a"]
    assert [(message.lite_topic, message.offset) for message in messages if message.body == b"1b"] == [("one", 1)]
    # Each lite topic has one batch in flight.
    await fill(lite, "one", b"1c")
    assert await lite.pop() == []
    assert await lite.acknowledge(*messages) == [ResponseCode.SUCCESS] * 3
    assert bodies(await lite.pop()) == [b"1c"]


async def test_a_pop_waits_for_messages(lite: LitePeer) -> None:
    await lite.subscribe("one")
    waiting = asyncio.create_task(lite.pop(poll_ms=20_000))
    await asyncio.sleep(0)
    await fill(lite, "one", b"1")
    assert bodies(await waiting) == [b"1"]


async def test_a_pop_before_the_subscription_waits(lite: LitePeer, broker: Broker) -> None:
    await fill(lite, "one", b"1")
    waiting = asyncio.create_task(lite.pop(poll_ms=20_000))
    await until(lambda: len(lite_of(broker).waiting) == 1)
    await lite.subscribe("one", option=FIRST)
    assert bodies(await waiting) == [b"1"]


async def test_unacknowledged_messages_come_again(lite: LitePeer) -> None:
    await lite.subscribe("one", option=FIRST)
    await fill(lite, "one", b"1", b"2")
    first = await lite.pop(invisible_ms=100)
    assert bodies(first) == [b"1", b"2"]
    assert await lite.acknowledge(first[0]) == [ResponseCode.SUCCESS]
    again = await lite.pop(poll_ms=10_000, invisible_ms=100)
    assert [(message.body, message.delivered) for message in again] == [(b"2", 1)]
    # An acknowledgement of the earlier delivery has no effect.
    assert await lite.acknowledge(first[1]) == [ResponseCode.SUCCESS]
    third = await lite.pop(poll_ms=10_000)
    assert [(message.body, message.delivered) for message in third] == [(b"2", 2)]
    assert await lite.acknowledge(*third) == [ResponseCode.SUCCESS]
    assert await lite.pop() == []


async def test_change_of_the_invisible_duration(lite: LitePeer) -> None:
    await lite.subscribe("one", option=FIRST)
    await fill(lite, "one", b"1")
    [message] = await lite.pop(invisible_ms=60_000)
    response = await lite.hide(message, 50)
    assert response.code == ResponseCode.SUCCESS, response.remark
    assert response.ext_fields["reviveQid"] == "999"
    [again] = await lite.pop(poll_ms=10_000, invisible_ms=100)
    assert again.delivered == 1
    # A longer duration, and one that does not count as a delivery.
    assert (await lite.hide(again, 400, suspend=True)).code == ResponseCode.SUCCESS
    began = now_ms()
    [third] = await lite.pop(poll_ms=10_000)
    assert third.delivered == 1
    assert now_ms() - began > 200


async def test_a_repeated_attempt_gets_the_same_messages(lite: LitePeer) -> None:
    await lite.subscribe("one", option=FIRST)
    await fill(lite, "one", b"1")
    first = await lite.pop(attempt_id="x")
    assert await lite.pop(attempt_id="y") == []
    await lite.subscribe("one", option=OffsetOption(OffsetOptionType.POLICY, 0))
    again = await lite.pop(attempt_id="x")
    assert bodies(again) == bodies(first) == [b"1"]


async def test_where_a_group_begins(lite: LitePeer, broker: Broker) -> None:
    await fill(lite, "one", *(b"%d" % number for number in range(10)))
    queue = broker.store.queue(light_queue_of(TOPIC, "one"), 0)
    times = [broker.store.store_time(queue, offset) for offset in range(10)]

    async def first(kind: OffsetOptionType, value: int) -> bytes | None:
        await lite.subscribe("one", option=OffsetOption(kind, value))
        messages = await lite.pop(count=1, invisible_ms=60_000)
        return messages[0].body if messages else None

    assert await first(OffsetOptionType.OFFSET, 7) == b"7"
    assert await first(OffsetOptionType.POLICY, 1) == b"0"
    assert await first(OffsetOptionType.OFFSET, 4) == b"4"
    assert await first(OffsetOptionType.TAIL_N, 3) == b"1"
    assert await first(OffsetOptionType.OFFSET, -5) == b"0"
    assert await first(OffsetOptionType.TAIL_N, -2) == b"2"
    assert await first(OffsetOptionType.TIMESTAMP, times[0]) == b"0"
    # The group is there already, and the message is in flight.
    assert await first(OffsetOptionType.POLICY, 1) is None
    assert await first(OffsetOptionType.POLICY, 0) is None
    assert await first(OffsetOptionType.POLICY, 2) is None
    assert await first(OffsetOptionType.OFFSET, 99) is None
    await fill(lite, "one", b"new")
    assert bodies(await lite.pop()) == [b"new"]


async def test_clients_share_lite_topics(lite: LitePeer) -> None:
    """Each message goes to one client of a group, and to each group."""
    await lite.create(group="others")
    for client, group in (("a", GROUP), ("b", GROUP), ("c", "others")):
        await lite.subscribe("one", "two", client=client, group=group, option=FIRST)
    await fill(lite, "one", b"1")
    await fill(lite, "two", b"2")
    shared = await lite.pop(client="a") + await lite.pop(client="b")
    assert sorted(bodies(shared)) == [b"1", b"2"]
    assert sorted(bodies(await lite.pop(client="c", group="others"))) == [b"1", b"2"]


async def test_an_absent_client_loses_its_messages_to_another(
    lite: LitePeer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_constant(monkeypatch, "dispatcher._ABSENT_S", 0.0)
    subscriptions = lite_of(broker).subscriptions
    await lite.subscribe("one", client="a", option=FIRST)
    await lite.subscribe("one", client="b")
    await fill(lite, "one", b"1")
    await until(lambda: any(client.ready for client in subscriptions))
    [absent] = [client for client in subscriptions if client.ready]
    [present] = {"a", "b"} - {absent.client_id}
    waiting = asyncio.create_task(lite.pop(client=present, poll_ms=20_000))
    await until(lambda: len(lite_of(broker).waiting) == 1)
    broker.jobs.find("check for absent clients of lite topics").wake()
    assert bodies(await waiting) == [b"1"]


async def test_an_exclusive_group(lite: LitePeer, remoting: RemotingClient, broker: Broker) -> None:
    await lite.create(group="exclusive", lite_sub_model="Exclusive", lite_sub_reset_offset_exclusive="true")
    notified: list[RemotingCommand] = []

    def note(connection: object, request: RemotingCommand) -> None:
        notified.append(request)

    other = RemotingClient(handlers={RequestCode.NOTIFY_UNSUBSCRIBE_LITE: note})  # type: ignore[dict-item]
    first = LitePeer(await other.connection(f"127.0.0.1:{broker.port}"))
    try:
        await first.subscribe("one", client="a", group="exclusive", option=FIRST)
        await fill(lite, "one", b"1", b"2")
        messages = await first.pop(client="a", group="exclusive")
        assert bodies(messages) == [b"1", b"2"]
        await first.acknowledge(*messages, group="exclusive")
        await lite.subscribe("one", client="b", group="exclusive")
        await until(lambda: notified)
        assert notified[0].ext_fields == {"liteTopic": "one", "consumerGroup": "exclusive", "clientId": "a"}
        # It begins anew.
        assert bodies(await lite.pop(client="b", group="exclusive")) == [b"1", b"2"]
        await fill(lite, "one", b"3")
        assert await first.pop(client="a", group="exclusive") == []
        # A client that repeats its subscriptions takes nothing over. It hears again that it has lost the lite topic.
        notified.clear()
        response = await first.change(REPLACE, "one", "two", client="a", group="exclusive")
        assert response.code == ResponseCode.SUCCESS, response.remark
        await until(lambda: notified)
        assert notified[0].ext_fields == {"liteTopic": "one", "consumerGroup": "exclusive", "clientId": "a"}
        subscriptions = lite_of(broker).subscriptions
        assert {client.client_id: len(client.queues) for client in subscriptions} == {"a": 1, "b": 1}
        assert [one.client_id for one in subscriptions.subscribers(light_queue_of(TOPIC, "one"))] == ["b"]
        # A client that has not lost the lite topic takes it over also by a repetition: its change may have been lost.
        response = await first.change(REPLACE, "one", client="c", group="exclusive")
        assert response.code == ResponseCode.SUCCESS, response.remark
        assert [one.client_id for one in subscriptions.subscribers(light_queue_of(TOPIC, "one"))] == ["c"]
    finally:
        await other.close()


async def test_subscriptions_are_replaced_and_removed(lite: LitePeer, broker: Broker) -> None:
    subscriptions = lite_of(broker).subscriptions

    def names() -> set[str]:
        client = subscriptions.find("a")
        return set() if client is None else {name.rpartition("$")[2] for name in client.queues}

    await lite.subscribe("one", "two", "one")
    assert names() == {"one", "two"}
    assert subscriptions.count == 2
    assert (await lite.change(REPLACE, "two", "three")).code == ResponseCode.SUCCESS
    assert names() == {"two", "three"}
    assert (await lite.change(REMOVE, "two", "unknown")).code == ResponseCode.SUCCESS
    assert names() == {"three"}
    await fill(lite, "two", b"2")
    assert await lite.pop() == []
    assert (await lite.change(LEAVE)).code == ResponseCode.SUCCESS
    assert (await lite.change(LEAVE)).code == ResponseCode.SUCCESS
    assert names() == set()
    assert subscriptions.count == 0


async def test_clients_without_subscriptions_are_not_kept(lite: LitePeer, broker: Broker) -> None:
    subscriptions = lite_of(broker).subscriptions
    for number in range(10):
        assert (await lite.change(REPLACE, client=f"client-{number}")).code == ResponseCode.SUCCESS
    assert list(subscriptions) == []
    await lite.subscribe("one", "two")
    assert len(list(subscriptions)) == 1
    assert (await lite.change(REMOVE, "one", "two")).code == ResponseCode.SUCCESS
    assert list(subscriptions) == []


@pytest.mark.parametrize("action", [REPLACE, REMOVE, LEAVE])
async def test_a_ready_lite_topic_that_a_client_leaves_goes_to_another(
    lite: LitePeer, broker: Broker, action: LiteSubscriptionAction
) -> None:
    subscriptions = lite_of(broker).subscriptions
    await lite.subscribe("one", client="a", option=FIRST)
    await fill(lite, "one", b"1")
    await until(lambda: all(client.ready for client in subscriptions))
    await lite.subscribe("one", client="b")
    names = {REPLACE: ["two"], REMOVE: ["one"], LEAVE: []}[action]
    assert (await lite.change(action, *names, client="a")).code == ResponseCode.SUCCESS
    assert bodies(await lite.pop(client="b", poll_ms=20_000)) == [b"1"]


async def test_unsubscribing_resets_the_offset(lite: LitePeer) -> None:
    await lite.create(group="fresh", lite_sub_reset_offset_unsubscribe="true")
    await lite.subscribe("one", group="fresh", option=FIRST)
    await fill(lite, "one", b"1")
    await lite.acknowledge(*await lite.pop(group="fresh"), group="fresh")
    assert (await lite.change(REMOVE, "one", group="fresh")).code == ResponseCode.SUCCESS
    await lite.subscribe("one", group="fresh")
    assert bodies(await lite.pop(group="fresh")) == [b"1"]


async def test_subscriptions_expire(lite: LitePeer, broker: Broker) -> None:
    lite_topics = lite_of(broker)
    await lite.subscribe("one")
    expiring = broker.jobs.find("expire subscriptions of lite topics")
    expiring.wake()
    await asyncio.sleep(0.05)
    assert lite_topics.subscriptions.count == 1
    broker.context.config.lite_subscription_check_timeout_mills = 0
    expiring.wake()
    await until(lambda: lite_topics.subscriptions.count == 0)


async def test_many_subscriptions_expire_in_slices(
    lite: LitePeer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that is gone leaves those of all its clients."""
    change_constant(monkeypatch, "service._EXPIRED_AT_ONCE", 5)
    subscriptions = lite_of(broker).subscriptions
    for client in range(10):
        await lite.subscribe("one", "two", client=f"{client}")
    broker.context.config.lite_subscription_check_timeout_mills = 0
    broker.jobs.find("expire subscriptions of lite topics").wake()
    await until(lambda: subscriptions.count < 20)
    assert subscriptions.count == 14
    await until(lambda: subscriptions.count == 0)


async def test_quotas(lite: LitePeer, broker: Broker) -> None:
    await lite.create(group="small", lite_sub_client_quota="2")
    response = await lite.change(ADD, "one", "two", "three", group="small")
    assert response.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert "lite.sub.client.quota" in (response.remark or "")
    broker.context.config.max_lite_subscription_count = 3
    response = await lite.change(REPLACE, "one", "two", client="b")
    assert response.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert lite_of(broker).subscriptions.count == 3


async def refused(response: RemotingCommand) -> int:
    assert response.remark
    return response.code


async def test_a_request_that_began_before_the_broker_became_a_slave(
    lite: LitePeer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of many lite topics runs in steps. A slave must not get subscriptions from the later ones."""
    subscriptions, add = lite_of(broker).subscriptions, LiteSubscriptions.add

    def become_slave_and_add(self: LiteSubscriptions, client: LiteClient, queue: ConsumeQueue, quota: int) -> None:
        if self.count == 50:
            monkeypatch.setattr(broker.config, "broker_role", BrokerRole.SLAVE)
            self.forget_all()
        add(self, client, queue, quota)

    monkeypatch.setattr(LiteSubscriptions, "add", become_slave_and_add)
    response = await lite.change(ADD, *map(str, range(100)))
    assert (response.code, response.remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave")
    assert subscriptions.count == 0


async def test_what_is_refused(lite: LitePeer, peer: Peer) -> None:
    await peer.send("orders", b"an ordinary topic")
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_json({"groupName": "ordinary"}))
    code = ResponseCode
    for wanted, response in (
        (code.TOPIC_NOT_EXIST, await lite.change(ADD, "one", topic="unknown")),
        (code.ILLEGAL_OPERATION, await lite.change(ADD, "one", topic="orders")),
        (code.SUBSCRIPTION_GROUP_NOT_EXIST, await lite.change(ADD, "one", group="unknown")),
        (code.INVALID_PARAMETER, await lite.change(ADD, "one", group="ordinary")),
        (code.ILLEGAL_OPERATION, await lite.change(ADD, "o$e")),
        (code.ILLEGAL_OPERATION, await lite.change(ADD, " ")),
        (code.ILLEGAL_OPERATION, await lite.change(ADD, "x" * 300)),
        (code.ILLEGAL_OPERATION, await lite.change(ADD, "one", client=" ")),
        (code.ILLEGAL_OPERATION, await lite.change(ADD, "one", client="c" * 300)),
        (
            code.ILLEGAL_OPERATION,
            await lite.ask(RequestCode.LITE_SUBSCRIPTION_CTL, body=encode_json(LiteSubscriptionCtlBody())),
        ),
        (code.ILLEGAL_OPERATION, await lite.ask(RequestCode.LITE_SUBSCRIPTION_CTL)),
        (code.SYSTEM_ERROR, await lite.ask(RequestCode.LITE_SUBSCRIPTION_CTL, body=b'{"subscriptionSet":[{}]}')),
        (code.TOPIC_NOT_EXIST, await lite.pop_response(topic="unknown")),
        (code.INVALID_PARAMETER, await lite.pop_response(topic="orders")),
        (code.SUBSCRIPTION_GROUP_NOT_EXIST, await lite.pop_response(group="unknown")),
        (code.INVALID_PARAMETER, await lite.pop_response(group="ordinary")),
        (code.INVALID_PARAMETER, await lite.pop_response(count=0)),
        (code.INVALID_PARAMETER, await lite.pop_response(count=33)),
        (code.INVALID_PARAMETER, await lite.pop_response(invisible_ms=-1)),
        (code.INVALID_PARAMETER, await lite.pop_response(attempt_id="x" * 300)),
        (code.MESSAGE_ILLEGAL, await lite.send_to("o$e", b"x")),
        (code.MESSAGE_ILLEGAL, await lite.send_to("a,b", b"x")),
        (code.MESSAGE_ILLEGAL, await lite.send_to("x" * 300, b"x")),
    ):
        assert await refused(response) == wanted, response.remark
    await lite.subscribe("one", option=FIRST)
    await fill(lite, "one", b"1")
    [message] = await lite.pop()
    for wanted, changed in (
        (code.NO_MESSAGE, message._replace(offset=1)),
        (code.NO_MESSAGE, message._replace(offset=-1)),
        (code.NO_MESSAGE, message._replace(lite_topic="other")),
        (code.MESSAGE_ILLEGAL, message._replace(lite_topic="o$e")),
        (code.INVALID_PARAMETER, message._replace(handle=message.handle.replace(" 999 ", " 1 "))),
        (code.SYSTEM_ERROR, message._replace(handle="nonsense")),
    ):
        assert await lite.acknowledge(changed) == [wanted]
        assert (await lite.hide(changed, 1000)).code == wanted
    assert await lite.acknowledge(message, group="ordinary") == [code.INVALID_PARAMETER]
    assert (await lite.hide(message, -1)).code == code.INVALID_PARAMETER
    assert await lite.acknowledge(message) == [code.SUCCESS]


async def test_ordinary_pops_go_on(lite: LitePeer) -> None:
    """The acknowledgements of ordinary pops of the same broker."""
    from pop_support import PopPeer, popped

    ordinary = PopPeer(lite.connection)
    await ordinary.send("orders", b"1")
    [message] = popped(await ordinary.pop("orders", init_mode=0))
    assert (await ordinary.ack(message)).code == ResponseCode.SUCCESS


async def test_lite_topics_need_light_queues(tmp_path: Path, remoting: RemotingClient) -> None:
    broker = Broker(config(tmp_path / "store"))
    await broker.start()
    try:
        peer = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        header = CreateTopicRequestHeader(
            topic=TOPIC,
            default_topic="TBW102",
            read_queue_nums=1,
            write_queue_nums=1,
            perm=6,
            attributes="+message.type=LITE",
        )
        response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "enableLmq=true" in (response.remark or "")
        assert (await peer.pop_response()).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    finally:
        await broker.stop()


async def test_names_with_the_separator_of_the_tables(tmp_path: Path, remoting: RemotingClient) -> None:
    name = "user@example.com"
    broker = await start(tmp_path / "store")
    peer = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.create()
    await peer.subscribe(name, option=FIRST)
    await fill(peer, name, b"1", b"2")
    first, second = await peer.pop()
    await peer.acknowledge(first)
    await run_again(broker.jobs, "remove unused batches of lite topics")
    await fill(peer, name, b"3")
    # The second message is still in flight.
    assert await peer.pop() == []
    assert await peer.acknowledge(second) == [ResponseCode.SUCCESS]
    assert bodies(await peer.pop()) == [b"3"]
    await broker.stop()
    broker = await start(tmp_path / "store")
    try:
        queue = light_queue_of(TOPIC, name)
        assert (broker.offsets.groups_of(queue), broker.offsets.query(GROUP, queue, 0)) == ({GROUP}, 2)
        peer = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
        await until(lambda: not broker.offsets.groups_of(queue))
        assert broker.offsets.query(GROUP, queue, 0) is None
    finally:
        await broker.stop()


async def test_after_a_restart(tmp_path: Path, remoting: RemotingClient) -> None:
    """Messages that were in flight come again. Acknowledged ones do not."""
    broker = await start(tmp_path / "store")
    peer = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await peer.create()
    await peer.subscribe("one", option=FIRST)
    await fill(peer, "one", b"1", b"2")
    first, _ = await peer.pop()
    await peer.acknowledge(first)
    await broker.stop()
    broker = await start(tmp_path / "store")
    try:
        peer = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        assert (await peer.change(REPLACE, "one")).code == ResponseCode.SUCCESS
        assert bodies(await peer.pop()) == [b"2"]
    finally:
        await broker.stop()


async def test_expired_lite_topics_are_deleted(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    broker = await start(tmp_path / "store", min_lite_ttl=0, lite_ttl_check_interval=10)
    try:
        await check_expiry(broker, LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}")), wrong_clock)
    finally:
        await broker.stop()


async def check_expiry(broker: Broker, lite: LitePeer, wrong_clock: WrongClock) -> None:
    await lite.create()
    await lite.create(topic="short", group="short-readers", expiration=1)
    light = broker.store.light
    assert light is not None
    await lite.subscribe("old", "new", topic="short", group="short-readers", option=FIRST)
    await fill(lite, "kept", b"x")
    for name in ("old", "new", "unused"):
        assert (await lite.send_to(name, b"1", "short")).code == ResponseCode.SUCCESS
    messages = await lite.pop(topic="short", group="short-readers")
    assert await lite.acknowledge(*messages, topic="short", group="short-readers") == [ResponseCode.SUCCESS] * 2
    wrong_clock.ahead_s = 61
    assert (await lite.send_to("new", b"2", "short")).code == ResponseCode.SUCCESS
    await until(lambda: light.queue_count == 2)
    assert {name for name, _ in light.last_places("%LMQ%", "")} == {"%LMQ%$sessions$kept", "%LMQ%$short$new"}
    old = light_queue_of("short", "old")
    assert broker.offsets.groups_of(old) == set()
    # It begins anew.
    await lite.subscribe("old", topic="short", group="short-readers", option=FIRST)
    assert (await lite.send_to("old", b"3", "short")).code == ResponseCode.SUCCESS
    [message] = [one for one in await lite.pop(topic="short", group="short-readers") if one.lite_topic == "old"]
    assert (message.offset, message.body) == (0, b"3")


async def test_a_topic_with_fewer_queues_than_before(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    """Lite topics whose messages are in a queue that the topic no longer has expire as late as others."""
    broker = await start(tmp_path / "store", min_lite_ttl=0, lite_ttl_check_interval=10)
    try:
        lite = LitePeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        await lite.create(expiration=1)
        light = broker.store.light
        assert light is not None
        await lite.send(TOPIC, b"1", queue_id=0, properties={"__LITE_TOPIC": "old"})
        wrong_clock.ahead_s = 40
        await lite.send(TOPIC, b"2", queue_id=1, properties={"__LITE_TOPIC": "kept"})
        header = CreateTopicRequestHeader(
            topic=TOPIC, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
        )
        assert (await lite.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == ResponseCode.SUCCESS
        wrong_clock.ahead_s = 61
        await until(lambda: light.queue_count < 2)
        assert [name for name, _ in light.last_places("%LMQ%", "")] == [light_queue_of(TOPIC, "kept")]
        wrong_clock.ahead_s = 101
        await until(lambda: not light.queue_count)
    finally:
        await broker.stop()


async def test_lite_topics_of_a_recreated_topic_stay(lite: LitePeer, broker: Broker) -> None:
    """Slices of 50 delete the lite topics of a deleted topic, which can be created again meanwhile."""
    light = broker.store.light
    assert light is not None
    for name in [*map(str, range(120)), "last"]:
        await fill(lite, name, b"old")
    response = await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    assert response.code == ResponseCode.SUCCESS
    await until(lambda: light.queue_count < 121)
    await lite.create()
    await fill(lite, "last", b"new")
    await until(lambda: light.queue_count < 2)
    assert [name for name, _ in light.last_places("%LMQ%", "")] == [light_queue_of(TOPIC, "last")]


async def test_a_lite_topic_with_a_new_message_is_not_deleted(lite: LitePeer, broker: Broker) -> None:
    """A message can arrive between the moment when a lite topic is found expired and its deletion."""
    light = broker.store.light
    assert light is not None
    await fill(lite, "one", b"1")
    await fill(lite, "two", b"2")
    before = broker.store.max_physical_offset
    await fill(lite, "one", b"3")
    assert not light.delete(light_queue_of(TOPIC, "one"), before)
    assert light.delete(light_queue_of(TOPIC, "two"), before)
    assert [name for name, _ in light.last_places("%LMQ%", "")] == [light_queue_of(TOPIC, "one")]
    await lite.subscribe("one", option=FIRST)
    assert bodies(await lite.pop(poll_ms=20_000)) == [b"1", b"3"]


async def test_lite_topics_of_a_deleted_topic(lite: LitePeer, broker: Broker) -> None:
    await lite.create(topic="other", group="other-readers")
    light = broker.store.light
    assert light is not None
    for number in range(120):
        await fill(lite, f"{number}", b"x")
    assert (await lite.send_to("kept", b"x", "other")).code == ResponseCode.SUCCESS
    response = await lite.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic=TOPIC))
    assert response.code == ResponseCode.SUCCESS
    await until(lambda: light.queue_count == 1)


async def test_a_client_of_another_group_or_user_is_separate(lite: LitePeer, broker: Broker) -> None:
    await lite.create(topic="other", group="other-readers")
    await lite.subscribe("one", option=FIRST)
    await fill(lite, "one", b"1")
    # The same id with another group replaces the client.
    await lite.subscribe("two", topic="other", group="other-readers")
    assert lite_of(broker).subscriptions.count == 1
    assert await lite.pop() == []


async def test_a_damaged_message_is_skipped(lite: LitePeer, broker: Broker, tmp_path: Path) -> None:
    await lite.subscribe("one", option=FIRST)
    await fill(lite, "one", b"1", b"2", b"3")
    queue = broker.store.queue(light_queue_of(TOPIC, "one"), 0)
    unit = queue.unit(0)
    assert unit is not None
    with next((tmp_path / "store" / "commitlog").iterdir()).open("r+b") as log:
        log.seek(unit[0])
        log.write(b"\xff" * 4)
    found: list[LiteMessage] = []

    async def popped() -> bool:
        messages = await lite.pop()
        found.extend(messages)
        await lite.acknowledge(*messages)
        return len(found) == 2

    await until(popped)
    assert bodies(found) == [b"2", b"3"]
