"""Admin requests that create topics in lists, show them, measure them and clean up."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
import pytest
from administration import beat, commit, queue, send
from broker_support import Peer, set_request_slice

from gantrymq.broker.broker import Broker
from gantrymq.protocol.bodies.route import TopicList
from gantrymq.protocol.bodies.stats import QueryConsumeQueueResponseBody, QueryConsumeTimeSpanBody, TopicStatsTable
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.headers.query import QueryConsumeQueueRequestHeader
from gantrymq.protocol.headers.stats import QueryConsumeTimeSpanRequestHeader
from gantrymq.protocol.headers.topic import CreateTopicRequestHeader, TopicRequestHeader
from gantrymq.remoting.client import RemotingClient


async def make(peer: Peer, *topics: dict[str, object]) -> int:
    body = encode_json({"topicConfigList": topics})
    return (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)).code


async def test_list_of_topics_is_made_and_each_is_shown(peer: Peer, broker: Broker) -> None:
    assert await make(peer, {"topicName": "one", "readQueueNums": 2, "writeQueueNums": 3}, {"topicName": "two"}) == 0
    response = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic="one"))
    one = decode_json(response.body, TopicConfig)
    assert (one.read_queue_nums, one.write_queue_nums, one.perm) == (2, 3, 6)
    response = await peer.ask(RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic="three"))
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
    assert "three" in (response.remark or "")


@pytest.mark.parametrize(
    "bad",
    [
        {"topicName": "bad!"},
        {"topicName": "TBW102"},
        {"topicName": "two", "readQueueNums": 10**9},
        {"topicName": "two", "writeQueueNums": -1},
        {"topicName": "two", "perm": 77},
        {"topicName": "two", "topicSysFlag": 10**30},
        {"topicName": "two", "topicFilterType": "NONE"},
    ],
)
async def test_one_bad_topic_in_a_list_makes_none(peer: Peer, broker: Broker, bad: dict[str, object]) -> None:
    assert await make(peer, {"topicName": "one"}, bad) == ResponseCode.INVALID_PARAMETER
    assert broker.topics.get("one") is None


async def test_attributes_are_set_and_taken_away(peer: Peer, broker: Broker) -> None:
    async def change(attributes: str) -> dict[str, str]:
        header = CreateTopicRequestHeader(
            topic="one", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, attributes=attributes
        )
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        topic = broker.topics.get("one")
        assert topic is not None
        return topic.attributes

    made = {"message.type": "FIFO", "reserve.time": "2", "queue.type": "SimpleCQ"}
    assert await change("+message.type=FIFO, +reserve.time=2,+queue.type=SimpleCQ") == made
    assert await change("-reserve.time,+message.type=NORMAL") == {"message.type": "NORMAL", "queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ("+message.type=FIF0", "must be UNSPECIFIED or NORMAL"),
        ("+message.type=fifo", "must be"),
        ("+message.type=", "must be"),
        ("+message.typ=FIFO", "unknown, must be cleanup.policy or deduplication.window.ms or lite.topic"),
        ("message.type=FIFO", "sets an attribute"),
        ("+=FIFO", "sets an attribute"),
        ("+message-type=FIFO", "sets an attribute"),
        ("+reserve.time=-2", "must be a number from -1"),
        ("+reserve.time=9223372036854775808", "must be a number"),
        ("+reserve.time=1h", "must be a number"),
        ("+message.type=FIFO,+message.type=NORMAL", "given twice"),
        ("+message.type=FIFO,-message.type", "given twice"),
        ("-message.type", "it is not set"),
        ("+queue.type=BatchCQ", "batch consume queues are not supported"),
        ("+cleanup.policy=COMPACT", "must be DELETE or COMPACTION"),
        ("+message.type=LITE", "need enableLmq=true"),
    ],
)
async def test_attributes_that_java_refuses_and_those_without_effect(
    peer: Peer, broker: Broker, attributes: str, why: str
) -> None:
    header = CreateTopicRequestHeader(
        topic="one", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, attributes=attributes
    )
    response = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert why in (response.remark or "")
    assert broker.topics.get("one") is None
    listed = dict(part.partition("=")[::2] for part in attributes.split(","))
    if len(listed) == len(attributes.split(",")):
        assert await make(peer, {"topicName": "two"}, {"topicName": "one", "attributes": listed}) == 1
        assert broker.topics.get("two") is None


async def test_an_attribute_that_only_a_new_topic_takes(peer: Peer, broker: Broker) -> None:
    assert await make(peer, {"topicName": "one"}) == ResponseCode.SUCCESS
    for name, value in (("queue.type", "SimpleCQ"), ("cleanup.policy", "DELETE")):
        change = {"topicName": "one", "attributes": {f"+{name}": value}}
        assert await make(peer, change) == ResponseCode.SYSTEM_ERROR


async def test_system_topics(peer: Peer) -> None:
    response = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics = decode_json(response.body, TopicList).topic_list
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a"} <= set(topics)


async def test_system_topics_that_are_not_there_are_listed_too(peer: Peer) -> None:
    """The list of Java's broker 5.5: `TopicValidator.SYSTEM_TOPIC_SET` and the topics added at startup."""
    response = await peer.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert decode_json(response.body, TopicList).topic_list == sorted(
        [
            "TBW102",
            "SCHEDULE_TOPIC_XXXX",
            "BenchmarkTest",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRACE_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
            "CHECKPOINT_TOPIC",
            "DefaultCluster",
            "broker-a",
            "DefaultCluster_REPLY_TOPIC",
            "rmq_sys_REVIVE_LOG_DefaultCluster",
            "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
            "rmq_sys_wheel_timer",
        ]
    )


async def test_long_lists_are_made_bit_by_bit(
    peer: Peer, broker: Broker, remoting: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of topics and groups are created in steps. Other clients are served in between."""
    set_request_slice(monkeypatch, 0.0001)
    await peer.send("orders", b"x")
    other = Peer(await remoting.connection(f"localhost:{broker.port}"))
    await other.send("orders", b"x")
    topics = encode_json({"topicConfigList": [{"topicName": f"topic-{n}"} for n in range(5000)]})
    groups = encode_json({"groupConfigList": [{"groupName": f"group-{n}"} for n in range(5000)]})
    for code, body in (
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topics),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups),
    ):
        answer = asyncio.create_task(peer.ask(code, body=body))
        served = 0
        while not answer.done():
            await other.send("orders", b"x")
            served += 1
        assert (await answer).code == ResponseCode.SUCCESS
        assert served > 3
    assert broker.topics.get("topic-4999") is not None
    assert broker.groups.find("group-4999") is not None


async def test_a_drained_topic(peer: Peer, broker: Broker) -> None:
    assert await make(peer, {"topicName": "drained", "readQueueNums": 4, "writeQueueNums": 0}) == ResponseCode.SUCCESS
    topic = broker.topics.get("drained")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums) == (4, 0)


async def test_unused_topics_lose_their_queues(peer: Peer, broker: Broker) -> None:
    await send(peer, 1, topic="kept")
    await send(peer, 1, topic="gone")
    broker.topics.remove("gone")
    assert "gone" in broker.store.topics()
    assert (await peer.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == ResponseCode.SUCCESS
    assert set(broker.store.topics()) == {"kept"}


async def test_topic_stats(peer: Peer) -> None:
    before = time.time_ns() // 1_000_000
    await send(peer, 3, queue_id=1)
    response = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="orders"))
    stats = TopicStatsTable.decode(response.body)
    assert set(stats.offset_table) == {queue("orders", i) for i in range(4)}
    full, empty = stats.offset_table[queue("orders", 1)], stats.offset_table[queue("orders", 0)]
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert before <= full.last_update_timestamp <= time.time_ns() // 1_000_000
    assert (empty.max_offset, empty.last_update_timestamp) == (0, 0)
    response = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="none"))
    assert response.code == ResponseCode.TOPIC_NOT_EXIST


async def test_time_span(peer: Peer) -> None:
    await send(peer, 3)
    await commit(peer, 1)
    header = QueryConsumeTimeSpanRequestHeader(topic="orders", group="consumers")
    response = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    spans = decode_json(response.body, QueryConsumeTimeSpanBody).consume_time_span_set
    assert [span.message_queue.queue_id for span in spans] == [0, 1, 2, 3]
    first = spans[0]
    assert 0 < first.min_time_stamp == first.consume_time_stamp <= first.max_time_stamp
    assert spans[1].max_time_stamp == -1
    await commit(peer, 3)
    response = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
    done = decode_json(response.body, QueryConsumeTimeSpanBody).consume_time_span_set[0]
    assert (done.consume_time_stamp, done.delay_time) == (done.max_time_stamp, 0)
    header.topic = "none"
    assert (await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, header)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_units_of_a_queue(peer: Peer) -> None:
    await send(peer, 5)
    await beat(peer, "one")

    async def ask(**changed: object) -> tuple[str | None, QueryConsumeQueueResponseBody]:
        header = QueryConsumeQueueRequestHeader(topic="orders", queue_id=0, index=1, count=2)
        response = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, msgspec.structs.replace(header, **changed))
        assert response.code == ResponseCode.SUCCESS
        return response.remark, decode_json(response.body, QueryConsumeQueueResponseBody)

    remark, body = await ask()
    assert remark is None
    assert (body.min_queue_index, body.max_queue_index) == (0, 5)
    assert [unit.physic_offset for unit in body.queue_data] == sorted(unit.physic_offset for unit in body.queue_data)
    assert len(body.queue_data) == 2
    assert body.queue_data[0].physic_size > 91
    _, body = await ask(consumer_group="consumers", count=2**31 - 1)
    assert len(body.queue_data) == 4
    assert body.subscription_data is not None
    assert body.subscription_data.tags_set == ["a", "b"]
    _, body = await ask(consumer_group="strangers")
    assert "not online" in (body.filter_data or "")
    for index, count in ((-5, 3), (5, 3), (2**62, 3), (0, -1)):
        remark, body = await ask(index=index, count=count)
        assert body.queue_data == []
        assert count < 0 or "not exist" in (remark or "")


@pytest.mark.parametrize(("topic", "queue_id"), [("none", 0), ("orders", -1), ("orders", 2**31 - 1)])
async def test_units_of_no_queue(peer: Peer, topic: str, queue_id: int) -> None:
    await send(peer, 1)
    header = QueryConsumeQueueRequestHeader(topic=topic, queue_id=queue_id, index=0, count=1)
    response = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert f"{queue_id}@{topic}" in (response.remark or "")


def changes_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the log lines about changes of topics, without the address at their start."""
    name = "gantrymq.broker.admin.topics"
    return [record.getMessage().partition(" ")[2] for record in caplog.records if record.name == name]


async def test_a_long_list_of_topics_has_few_log_lines(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gantrymq.broker.admin.topics")
    assert await make(peer, *({"topicName": f"listed-{n}"} for n in range(50))) == 0
    lines = changes_in(caplog)
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"creates topic listed-{n}" for n in range(20)]
    assert lines[-1] == "creates or changes 30 more topics"


async def test_new_changed_and_deleted_topics_are_logged(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gantrymq.broker.admin.topics")

    async def change(queue_nums: int) -> list[str]:
        caplog.clear()
        header = CreateTopicRequestHeader(
            topic="logged",
            default_topic="TBW102",
            read_queue_nums=queue_nums,
            write_queue_nums=0,
            perm=6,
            topic_filter_type="SINGLE_TAG",
        )
        assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)).code == 0
        return changes_in(caplog)

    [created] = await change(2)
    assert created.startswith("creates topic logged: readQueueNums=2 writeQueueNums=0 perm=6 ")
    [changed] = await change(3)
    assert changed.startswith("changes topic logged from readQueueNums=2 writeQueueNums=0 ")
    assert " to readQueueNums=3 writeQueueNums=0 " in changed
    assert await change(3) == []
    await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, TopicRequestHeader(topic="logged"))
    assert changes_in(caplog) == ["deletes topic logged"]
