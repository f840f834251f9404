"""Groups that may not read: pull consumers (`rejectPullConsumerEnable`), and groups with a large lag."""

from __future__ import annotations

from administration import beat, create_group, send
from broker_support import Peer
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.heartbeat import CONSUME_ACTIVELY, ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.group import GroupRequestHeader
from gantrymq.remoting.client import RemotingClient


async def configure(peer: Peer, **keys: str) -> None:
    text = "".join(f"{key}={value}\n" for key, value in keys.items())
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())).code == ResponseCode.SUCCESS


async def beat_actively(peer: Peer, group: str) -> None:
    """Sends a heartbeat of a pull consumer."""
    consumer = ConsumerData(group, CONSUME_ACTIVELY, subscription_data_set=[SubscriptionData("orders")])
    body = encode_json(HeartbeatData("pull-consumer", [], [consumer]))
    assert (await peer.ask(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS


async def has_members(peer: Peer, group: str) -> bool:
    response = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupRequestHeader(consumer_group=group))
    return response.code == ResponseCode.SUCCESS


async def test_pull_consumers_are_rejected(peer: Peer, broker: Broker, remoting: RemotingClient) -> None:
    await send(peer, 1)
    await beat_actively(peer, "early")
    await configure(peer, rejectPullConsumerEnable="true")
    await beat_actively(peer, "pullers")
    await beat(peer, "push-consumer", group="pushers")
    assert not await has_members(peer, "pullers")
    for group in ("pullers", "without-members"):
        refused = await peer.pull("orders", group=group)
        assert refused.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert refused.remark is not None
        assert f"{group} has no connected push consumer" in refused.remark
    # Push consumers also pull. Tools, and pull consumers that are members already, can read as well.
    for group in ("pushers", "early", "TOOLS_CONSUMER", "CID_RMQ_SYS_TEST"):
        assert (await peer.pull("orders", group=group)).code == ResponseCode.SUCCESS, group
    other = Peer(await remoting.connection(f"localhost:{broker.port}"))
    assert (await other.pull("orders", group="pushers")).code == ResponseCode.SUCCESS
    assert (await other.pull("orders", group="early")).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await configure(peer, rejectPullConsumerEnable="false")
    await beat_actively(peer, "pullers")
    assert await has_members(peer, "pullers")
    assert (await peer.pull("orders", group="without-members")).code == ResponseCode.SUCCESS


async def test_groups_with_a_large_lag_are_disabled(peer: Peer, broker: Broker) -> None:
    await send(peer, 10)
    for group in ("slow", "fast", "skips", "read-before", "never-reads", "TOOLS_CONSUMER"):
        await create_group(peer, group)
    assert (await peer.pull("orders", 0, group="read-before", max_msg_nums=1)).code == ResponseCode.SUCCESS
    await configure(peer, disableConsumeIfConsumerReadSlowly="true")
    await until(lambda: records_lags(peer, broker))
    for group in ("slow", "skips", "TOOLS_CONSUMER"):
        assert (await peer.pull("orders", 0, group=group, max_msg_nums=1)).code == ResponseCode.SUCCESS
    assert (await peer.pull("orders", 10, group="skips")).code == ResponseCode.PULL_NOT_FOUND
    assert (await peer.pull("orders", 0, group="fast")).code == ResponseCode.SUCCESS
    # Only the lag at the last read counts: these groups do not read the messages that follow.
    await send(peer, 10)
    await configure(peer, consumerFallbehindThreshold="100")
    await until(lambda: not enabled(broker, "slow"))
    assert (await peer.pull("orders", 2, group="slow")).code == ResponseCode.NO_PERMISSION
    assert all(enabled(broker, group) for group in ("fast", "skips", "read-before", "never-reads", "TOOLS_CONSUMER"))
    # An administrator can enable the group again. It stays enabled as long as it does not read.
    assert not any(group == "slow" for _, group, _ in broker.deliveries.lags)
    await configure(peer, disableConsumeIfConsumerReadSlowly="false")
    body = encode_json(SubscriptionGroupConfig("slow"))
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == ResponseCode.SUCCESS
    assert (await peer.pull("orders", 2, group="slow")).code == ResponseCode.SUCCESS


async def records_lags(peer: Peer, broker: Broker) -> bool:
    """Reads as a group that has no lag, until the broker records it."""
    await peer.pull("orders", 0, group="TOOLS_CONSUMER")
    return len(broker.deliveries.lags) > 0


def enabled(broker: Broker, name: str) -> bool:
    group = broker.groups.find(name)
    assert group is not None
    return group.consume_enable
