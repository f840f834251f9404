"""The topic attributes `retention.ms` and `retention.bytes`, as clients of a broker see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from administration import beat, commit, send
from broker_support import Peer, config, run_again
from pop_support import PopPeer, popped
from replicated_brokers import Replicas, copy_tables
from wrong_clock import WrongClock

from gantrymq.broker.broker import Broker
from gantrymq.broker.consumers.lag import ConsumerLag
from gantrymq.broker.tables.attributes import retention_limits
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.offset import QueueRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader
from gantrymq.protocol.message import decode_messages
from gantrymq.remoting.client import RemotingClient
from gantrymq.store.topic_retention import RetentionLimits

HOUR_S = 3600


async def set_attributes(peer: Peer, attributes: str, topic: str = "orders") -> None:
    header = CreateTopicRequestHeader(
        topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6, attributes=attributes
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SUCCESS, response.remark


async def clean(broker: Broker) -> None:
    await run_again(broker.jobs, "delete what has expired")


async def min_offset(peer: Peer, topic: str = "orders") -> int:
    response = await peer.ask(RequestCode.GET_MIN_OFFSET, QueueRequestHeader(topic=topic, queue_id=0))
    return int(response.ext_fields["offset"])


async def send_then_wait_an_hour(peer: Peer, clock: WrongClock) -> None:
    """Sends three messages, and one an hour later."""
    await send(peer, 3)
    clock.ahead_s += HOUR_S
    # Python handles the first message with a header. Native code, which has the real clock, handles the next ones.
    assert (await peer.send("orders", b"new", producer_group="late producers")).code == ResponseCode.SUCCESS


async def test_pulls_begin_at_the_first_message_within_the_limit(
    peer: Peer, broker: Broker, wrong_clock: WrongClock
) -> None:
    await send_then_wait_an_hour(peer, wrong_clock)
    await set_attributes(peer, "+retention.ms=1800000")
    await clean(broker)
    assert await min_offset(peer) == 3
    old = await peer.pull("orders", 1)
    assert (old.code, old.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "3")
    assert [message.body for message in decode_messages((await peer.pull("orders", 3)).body)] == [b"new"]
    await set_attributes(peer, "-retention.ms")
    await clean(broker)
    assert await min_offset(peer) == 0
    assert len(list(decode_messages((await peer.pull("orders")).body))) == 4


async def test_pops_skip_expired_messages(broker: Broker, remoting: RemotingClient) -> None:
    peer = PopPeer(await remoting.connection(f"127.0.0.1:{broker.port}"))
    await send(peer, 3)
    await commit(peer, 0, group="poppers")
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)
    assert [one.body for one in popped(await peer.pop("orders"))] == [b"body 2"]


async def test_expired_messages_are_no_lag(peer: Peer, broker: Broker) -> None:
    await send(peer, 5)
    await beat(peer, "client")
    await commit(peer, 1)
    lag = ConsumerLag(broker.context, pop_queues=broker.pops.queues)
    assert [backlog.messages for backlog in lag.backlogs()] == [4]
    await set_attributes(peer, "+retention.bytes=1")
    await clean(broker)
    assert [backlog.messages for backlog in lag.backlogs()] == [1]


async def test_a_restarted_broker_hides_the_same_messages(
    tmp_path: Path, remoting: RemotingClient, wrong_clock: WrongClock
) -> None:
    for is_first in (True, False):
        broker = Broker(config(tmp_path))
        await broker.start()
        peer = Peer(await remoting.connection(f"127.0.0.1:{broker.port}"))
        if is_first:
            await set_attributes(peer, "+retention.ms=1800000")
            await send_then_wait_an_hour(peer, wrong_clock)
            await clean(broker)
        assert await min_offset(peer) == 3
        assert (await peer.pull("orders", 0)).code == ResponseCode.PULL_OFFSET_MOVED
        await broker.stop()


async def test_a_slave_hides_them_too(tmp_path: Path, wrong_clock: WrongClock) -> None:
    async with Replicas(tmp_path, 1) as replicas:
        master = await replicas.peer()
        await set_attributes(master, "+retention.ms=1800000")
        await send_then_wait_an_hour(master, wrong_clock)
        await replicas.caught_up()
        await copy_tables(replicas.slave)
        await clean(replicas.slave)
        assert await min_offset(await replicas.peer(1)) == 3
        assert replicas.master.store.queue("orders", 0).min_offset == 0


@pytest.mark.parametrize("name", ["retention.ms", "retention.bytes"])
@pytest.mark.parametrize("value", ["", "0", "-1", "1h", "9223372036854775808"])
async def test_invalid_values_are_refused(peer: Peer, broker: Broker, name: str, value: str) -> None:
    header = CreateTopicRequestHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        attributes=f"+{name}={value}",
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "must be a number from 1 to" in (response.remark or "")
    assert broker.topics.get("orders") is None


@pytest.mark.parametrize(
    "topic",
    [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "%RETRY%consumers",
    ],
)
def test_topics_of_the_broker_have_no_retention(topic: str) -> None:
    assert retention_limits(topic, {"retention.ms": "1", "retention.bytes": "1"}) is None


@pytest.mark.parametrize(
    ("attributes", "limits"),
    [
        ({}, None),
        ({"message.type": "FIFO"}, None),
        ({"retention.ms": "5"}, RetentionLimits(5, None)),
        ({"retention.ms": "5", "retention.bytes": "+7"}, RetentionLimits(5, 7)),
        # `topics.json` can contain values that no broker accepts in a request.
        ({"retention.ms": "1h", "retention.bytes": "-1"}, None),
    ],
)
def test_limits_of_a_topic(attributes: dict[str, str], limits: RetentionLimits | None) -> None:
    assert retention_limits("orders", attributes) == limits
