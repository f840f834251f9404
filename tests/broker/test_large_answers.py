"""Responses that list everything in a large broker.

They do not block the event loop for other clients.
"""

from __future__ import annotations

import asyncio
from math import inf

import pytest
from bare_store import commit_log
from broker_support import Peer, longest_step
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.stats import ConsumeStatsList
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from gantrymq.protocol.bodies.topic_config import TopicConfig, TopicConfigTable
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.remoting.client import RemotingClient

TOPICS, GROUPS = 20_000, 5_000


@pytest.fixture
async def large(broker: Broker, remoting: RemotingClient) -> Peer:
    peer = Peer(await remoting.connection(broker.address))
    await peer.send("orders", b"x")
    broker.topics.put(*(TopicConfig(f"topic-{n}", 4, 4) for n in range(TOPICS)))
    broker.groups.put([SubscriptionGroupConfig(f"group-{n}") for n in range(GROUPS)])
    for n in range(GROUPS):
        for topic in ("orders", f"topic-{n}"):
            for queue_id in range(4):
                broker.offsets.commit(f"group-{n}", topic, queue_id, 1)
    await asyncio.gather(broker.topics.written(), broker.groups.written(), broker.offsets.written())
    return peer


async def ask(peer: Peer, code: int, fields: dict[str, str] | None = None) -> tuple[RemotingCommand, float]:
    """Returns the response, and the longest event-loop iteration until it arrives, in seconds."""
    answer = asyncio.ensure_future(peer.ask(code, fields=fields, timeout_ms=20_000))
    longest = await longest_step(answer.done)
    assert (await answer).code == ResponseCode.SUCCESS
    return await answer, longest


async def test_all_topics(large: Peer) -> None:
    answer, longest = await ask(large, RequestCode.GET_ALL_TOPIC_CONFIG)
    assert len(decode_json(answer.body, TopicConfigTable).topic_config_table) > TOPICS
    assert longest < 0.02


async def test_all_groups(large: Peer) -> None:
    answer, longest = await ask(large, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert len(decode_json(answer.body, SubscriptionGroupWrapper).subscription_group_table) == GROUPS
    assert answer.ext_fields["totalGroupNum"] == str(GROUPS)
    assert longest < 0.02


async def test_all_offsets(large: Peer) -> None:
    answer, longest = await ask(large, RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert len(decode_json(answer.body, dict)["offsetTable"]) == 2 * GROUPS
    assert longest < 0.02


async def test_how_far_all_groups_are(large: Peer) -> None:
    answer, longest = await ask(large, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    every = ConsumeStatsList.decode(answer.body)
    assert len(every.by_group) == GROUPS
    assert {len(stats) for stats in every.by_group.values()} == {2}
    assert longest < 0.02


async def test_the_lowest_offsets(large: Peer) -> None:
    fields = {"topic": "orders", "compareGroup": "group-1", "filterGroups": "group-2"}
    answer, longest = await ask(large, RequestCode.QUERY_CORRECTION_OFFSET, fields)
    assert decode_json(answer.body, dict)["correctionOffsets"] == dict.fromkeys("0123", 1)
    assert longest < 0.02


async def test_who_consumes_a_topic_and_what_a_group_consumes(large: Peer, broker: Broker) -> None:
    answer, longest = await ask(large, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "topic-7"})
    assert decode_json(answer.body, dict)["groupList"] == ["group-7"]
    assert longest < 0.02
    answer, longest = await ask(large, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "group-7"})
    assert decode_json(answer.body, dict)["topicList"] == ["orders", "topic-7"]
    broker.offsets.remove_group("group-7")
    broker.offsets.clone("group-8", "new", "topic-8")
    broker.offsets.remove_topics({"topic-8"})
    assert (broker.offsets.groups_of("topic-7"), broker.offsets.topics_of("group-7")) == (set(), set())
    assert (broker.offsets.groups_of("topic-8"), broker.offsets.topics_of("new")) == (set(), set())
    assert broker.offsets.topics_of("group-8") == {"orders"}


MOST_QUEUES = 65_536


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "group", "topic": "wide"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "wide"}),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "wide", "group": "group"}),
    ],
)
async def test_a_topic_with_as_many_queues_as_there_may_be(
    broker: Broker, remoting: RemotingClient, code: int, fields: dict[str, str]
) -> None:
    peer = Peer(await remoting.connection(broker.address))
    broker.topics.put(TopicConfig("wide", MOST_QUEUES, MOST_QUEUES))
    broker.groups.put([SubscriptionGroupConfig("group")])
    broker.offsets.commit("group", "wide", 0, 1)
    await asyncio.gather(broker.topics.written(), broker.groups.written(), broker.offsets.written())
    answer, longest = await ask(peer, code, fields)
    assert answer.body.count(b'"queueId":') == MOST_QUEUES
    # Usually 13 to 36 ms, and 64 ms if the response is encoded in one step.
    assert longest < 0.05


async def test_queues_that_have_expired(broker: Broker, remoting: RemotingClient) -> None:
    """Expired queues are deleted in steps.

    A send to one of them meanwhile starts again at offset 0.
    """
    peer = Peer(await remoting.connection(broker.address))
    count = 300
    broker.topics.put(TopicConfig("wide", count, count))
    await broker.topics.written()
    with broker.store.waiting():
        for queue_id in range(count):
            await peer.send("wide", b"x", queue_id=queue_id)
        # The log's second file begins.
        while broker.store.max_physical_offset <= broker.config.store.mapped_file_size_commit_log:
            await peer.send("orders", bytes(1024 * 1024))
    await until(lambda: commit_log(broker.store).forget_first(inf, lambda: 1 << 62))
    _, longest = await ask(peer, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    assert longest < 0.02
    assert "wide" not in broker.store.topics()
    assert (await peer.send("wide", b"x", queue_id=7)).ext_fields["queueOffset"] == "0"
