"""Admin requests that create, change, show and delete consumer groups."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from administration import beat, commit, send
from broker_support import Peer, config

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.offset import GroupList
from gantrymq.protocol.bodies.route import TopicList
from gantrymq.protocol.bodies.subscription_group import (
    GroupForbidden,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.group import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from gantrymq.protocol.headers.topic import TopicRequestHeader

#: A group as `mqadmin updateSubGroup` writes it.
JAVA_GROUP = (
    b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":false,"consumeEnable":true,'
    b'"consumeFromMinEnable":false,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"javas",'
    b'"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,'
    b'"retryMaxTimes":7,"retryQueueNums":3,"whichBrokerWhenConsumeSlowly":1}'
)


async def get(peer: Peer, group: str) -> RemotingCommand:
    header = GetSubscriptionGroupConfigRequestHeader(group=group)
    return await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)


async def test_life_of_a_group(peer: Peer, broker: Broker) -> None:
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=JAVA_GROUP)).code == 0
    group = decode_json((await get(peer, "javas")).body, SubscriptionGroupConfig)
    assert (group.retry_max_times, group.retry_queue_nums) == (7, 3)
    changed = JAVA_GROUP.replace(b'"retryMaxTimes":7', b'"retryMaxTimes":8')
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=changed)).code == 0
    response = await peer.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    table = decode_json(response.body, SubscriptionGroupWrapper)
    assert table.subscription_group_table["javas"].retry_max_times == 8
    assert table.data_version.counter == 2
    await send(peer, 1)
    await commit(peer, 1, group="javas")
    header = DeleteSubscriptionGroupRequestHeader(group_name="javas")
    assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
    assert (await get(peer, "javas")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.offsets.query("javas", "orders", 0) == 1
    header.clean_offset = True
    assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header)).code == 0
    assert broker.offsets.query("javas", "orders", 0) is None


async def test_list_of_groups(peer: Peer, broker: Broker) -> None:
    async def make(*groups: SubscriptionGroupConfig) -> int:
        body = encode_json(SubscriptionGroupList(list(groups)))
        return (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)).code

    assert await make(SubscriptionGroupConfig("one"), SubscriptionGroupConfig("two")) == 0
    assert broker.groups.find("two") is not None
    assert await make(SubscriptionGroupConfig("three"), SubscriptionGroupConfig("b@d")) == (
        ResponseCode.INVALID_PARAMETER
    )
    assert broker.groups.find("three") is None
    assert await make() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"group_name": "bad name"},
        {"group_name": "x" * 1000},
        {"retry_queue_nums": 10**9},
        {"retry_queue_nums": -1},
    ],
)
async def test_bad_group(peer: Peer, broker: Broker, changes: dict[str, object]) -> None:
    body = encode_json(msgspec.structs.replace(SubscriptionGroupConfig("good"), **changes))
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert response.remark
    assert not broker.groups.table.subscription_group_table


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("+", "sets an attribute"),
        ("+a", "unknown, must be lite.bind.topic or"),
        ("+priority.factor", "must be a number from 0 to 100"),
        ("+lite.sub.model", "must be"),
    ],
)
async def test_attributes_that_a_group_does_not_have(peer: Peer, broker: Broker, name: str, why: str) -> None:
    body = encode_json(SubscriptionGroupConfig("good", attributes={name: "101"}))
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert why in (response.remark or "")
    assert not broker.groups.table.subscription_group_table


async def test_the_priority_factor_of_a_group(peer: Peer, broker: Broker) -> None:
    for changes, attributes in (
        ({"+priority.factor": "90"}, {"priority.factor": "90"}),
        ({"+priority.factor": "0"}, {"priority.factor": "0"}),
        ({"-priority.factor": ""}, {}),
    ):
        body = encode_json(SubscriptionGroupConfig("good", attributes=changes))
        response = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert response.code == ResponseCode.SUCCESS, response.remark
        assert broker.groups.table.subscription_group_table["good"].attributes == attributes


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"groupName":"good","retryMaxTimes":99999999999}'])
async def test_unreadable_group(peer: Peer, broker: Broker, body: bytes) -> None:
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert not broker.groups.table.subscription_group_table


async def test_asking_makes_no_group(peer: Peer) -> None:
    assert (await get(peer, "asked")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (await get(peer, "asked")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_groups_outlive_a_restart(tmp_path: Path, peer: Peer, broker: Broker) -> None:
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=JAVA_GROUP)
    header = UpdateGroupForbiddenRequestHeader(group="javas", topic="orders", readable=False)
    await peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    await broker.stop()
    again = Broker(config(tmp_path / "store"))
    await again.start()
    group = again.groups.find("javas")
    assert group is not None
    assert group.retry_max_times == 7
    assert not again.groups.may_read("javas", "orders")
    await again.stop()


async def test_group_forbidden_to_read_a_topic(peer: Peer) -> None:
    async def ask(readable: bool | None, topic: str = "orders") -> bool:
        header = UpdateGroupForbiddenRequestHeader(group="consumers", topic=topic, readable=readable)
        response = await peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
        return decode_json(response.body, GroupForbidden).readable

    assert await ask(None)
    assert not await ask(False)
    assert not await ask(None)
    assert await ask(None, "others")
    assert await ask(True)
    assert await ask(None)
    header = UpdateGroupForbiddenRequestHeader(group="b@d", topic="orders", readable=False)
    response = await peer.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    assert response.code == ResponseCode.INVALID_PARAMETER


async def test_who_consumes_what(peer: Peer) -> None:
    await send(peer, 1)
    await beat(peer, "one", group="online")
    await commit(peer, 1, group="offline")

    async def groups(topic: str) -> list[str]:
        response = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicRequestHeader(topic=topic))
        return decode_json(response.body, GroupList).group_list

    async def topics(group: str) -> list[str]:
        header = GetSubscriptionGroupConfigRequestHeader(group=group)
        response = await peer.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, header)
        return decode_json(response.body, TopicList).topic_list

    async def subscription(group: str) -> QuerySubscriptionResponseBody:
        header = QuerySubscriptionByConsumerRequestHeader(group=group, topic="orders")
        response = await peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
        return decode_json(response.body, QuerySubscriptionResponseBody)

    assert await groups("orders") == ["offline", "online"]
    assert await groups("none") == []
    assert await topics("offline") == ["orders"]
    assert await topics("none") == []
    found = (await subscription("online")).subscription_data
    assert found is not None
    assert found.sub_string == "a || b"
    assert (await subscription("offline")).subscription_data is None


async def test_groups_of_tools_and_brokers_are_always_created(peer: Peer, broker: Broker) -> None:
    await send(peer, 1)
    text = b"autoCreateSubscriptionGroup=false"
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code == ResponseCode.SUCCESS
    for group in ("TOOLS_CONSUMER", "CID_ONSAPI_PULL", "CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TEST"):
        assert (await peer.pull("orders", group=group)).code == ResponseCode.SUCCESS, group
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"enableCreateSysGroup=false")).code == 0
    for group in ("other", "CID_RMQ_SYS_OTHER"):
        assert (await peer.pull("orders", group=group)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, group
    assert (await peer.pull("orders", group="FILTERSRV_CONSUMER")).code == ResponseCode.SUCCESS
