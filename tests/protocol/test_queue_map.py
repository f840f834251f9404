"""Tests of maps with MessageQueue keys: round trips, and Java's format (fastjson2 2.0.59, RocketMQ 5.5)."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import BodyError
from gantrymq.protocol.bodies.offset import ConsumerStatusBody, ResetOffsetBody
from gantrymq.protocol.bodies.queue_map import by_queue, decode_with_queue_maps, encode_queue_map, quote_object_keys
from gantrymq.protocol.bodies.stats import (
    ConsumeStats,
    ConsumeStatsList,
    ConsumeStatsListEncoder,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
    max_offsets,
)
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.steps import finish

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ['a"b', "\\", "{{", '}:{"', ""]
)
numbers = st.integers(-(2**63), 2**63 - 1)
queues = st.builds(MessageQueue, texts, texts, st.integers(-(2**31), 2**31 - 1))
offsets = st.dictionaries(queues, numbers, max_size=5)
#: Any JSON without objects as keys.
documents = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(offsets)
def test_map_comes_back(table: dict[MessageQueue, int]) -> None:
    encoded = bytes(encode_queue_map(table))
    assert by_queue(decode_with_queue_maps(encoded, dict[str, int])) == table


@given(documents)
def test_ordinary_json_is_left_alone(document: Any) -> None:
    for encoded in (json.dumps(document).encode(), json.dumps(document, indent=1, ensure_ascii=False).encode()):
        assert quote_object_keys(encoded) == encoded


@given(st.binary(max_size=200) | st.text('{}[]":,\\ 1a', max_size=60).map(str.encode))
def test_any_bytes_give_json_or_a_body_error(data: bytes) -> None:
    with suppress(BodyError):
        decode_with_queue_maps(data, dict[str, Any])


@given(offsets, st.dictionaries(texts, offsets, max_size=3))
def test_bodies_of_offsets_come_back(
    table: dict[MessageQueue, int], by_client: dict[str, dict[MessageQueue, int]]
) -> None:
    assert ResetOffsetBody.decode(ResetOffsetBody(table).encode()).offset_table == table
    status = ConsumerStatusBody(by_client, table)
    assert ConsumerStatusBody.decode(status.encode()) == status


@given(
    st.dictionaries(queues, st.builds(OffsetWrapper, numbers, numbers, numbers, numbers, numbers), max_size=4), texts
)
def test_bodies_of_statistics_come_back(table: dict[MessageQueue, OffsetWrapper], group: str) -> None:
    stats = ConsumeStats(1.5, table)
    assert ConsumeStats.decode(stats.encode()) == stats
    every = ConsumeStatsList({group: [stats, ConsumeStats()]}, "a:1")
    encoder = ConsumeStatsListEncoder("a:1")
    finish(encoder.add(group, [stats, ConsumeStats()]))
    assert ConsumeStatsList.decode(encoder.end()) == every
    topic = TopicStatsTable({queue: TopicOffset(o.broker_offset) for queue, o in table.items()}, 2.5)
    assert TopicStatsTable.decode(topic.encode()) == topic


@given(texts, texts, st.dictionaries(st.integers(0, 2**31 - 1), numbers, max_size=5))
def test_max_offsets_of_one_broker(topic: str, broker: str, table: dict[int, int]) -> None:
    queues = {MessageQueue(topic, broker, queue_id): TopicOffset(3, end, 5) for queue_id, end in table.items()}
    assert max_offsets(TopicStatsTable(queues).encode()) == table


def test_max_offsets_as_java_writes_them() -> None:
    body = (
        b'{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"t"}:{"lastUpdateTimestamp":9,"maxOffset":7,"minOffset":2}'
        b',{"brokerName":"a","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}}'
    )
    assert max_offsets(body) == {1: 7, 0: 0}
    assert max_offsets(b'{"offsetTable":{}}') == {}


@pytest.mark.parametrize(
    ("broker", "consumer", "lowest", "lag"),
    [(10, 4, 0, 6), (10, 4, 7, 3), (10, 4, 10, 0), (10, 4, 12, 0), (10, 11, 0, 0), (10, 8, 7, 2)],
)
def test_lag_begins_at_the_oldest_message(broker: int, consumer: int, lowest: int, lag: int) -> None:
    offsets = OffsetWrapper(broker, consumer, consumer, min_offset=lowest)
    stats = ConsumeStats(offset_table={MessageQueue("t", "b", 0): offsets, MessageQueue("t", "b", 1): offsets})
    assert (offsets.lag, stats.total_diff) == (lag, 2 * lag)


def test_as_java_writes_it() -> None:
    data = (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"brokerOffset":5,"consumerOffset":'
        b'0,"lastTimestamp":0,"pullOffset":0},{"brokerName":"b","queueId":0,"topic":"t\\"x"}:{"brokerOffset":5,'
        b'"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}}}'
    )
    assert ConsumeStats.decode(data).offset_table == {
        MessageQueue("t", "b", 1): OffsetWrapper(5),
        MessageQueue('t"x', "b", 0): OffsetWrapper(5),
    }
    body = ResetOffsetBody({MessageQueue("t", "b", 1): 5})
    assert body.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:5}}'
    status = ConsumerStatusBody({"c": body.offset_table})
    assert status.encode() == (
        b'{"consumerTable":{"c":{{"brokerName":"b","queueId":1,"topic":"t"}:5}},"messageQueueTable":{}}'
    )


def test_as_java_writes_a_client() -> None:
    data = (
        b'{"mqTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"commitOffset":0,"locked":false}},"properties":{1:2}}'
    )
    assert json.loads(quote_object_keys(data).replace(b"{1:", b'{"1":')) == {
        "mqTable": {'{"brokerName":"b","queueId":1,"topic":"t"}': {"commitOffset": 0, "locked": False}},
        "properties": {"1": 2},
    }
    assert decode_with_queue_maps(data, dict[str, Any])["properties"] == {"1": 2}


def test_for_clients_in_c() -> None:
    body = ResetOffsetBody({MessageQueue("t", "b", 1): 5})
    assert body.encode_for_c() == b'{"offsetTable":[{"topic":"t","brokerName":"b","queueId":1,"offset":5}]}'


@pytest.mark.parametrize(
    "data",
    [
        b'{"offsetTable":{{"brokerName":"b","topic":"t"}:5}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":99999999999,"topic":"t"}:5}}',
        b'{"offsetTable":{"t":5}}',
        b'{"offsetTable":{{"brokerName":"\xff","queueId":1,"topic":"t"}:5}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:"x"}}',
        b'{"offsetTable":{{',
        b"{{" * 10_000,
        b"[" * 1_000_000,
    ],
)
def test_unreadable_maps(data: bytes) -> None:
    with pytest.raises(BodyError):
        ResetOffsetBody.decode(data)


def test_long_bodies_take_linear_time() -> None:
    big = (
        b'{"offsetTable":{'
        + b",".join(b'{"brokerName":"b","queueId":%d,"topic":"t"}:%d' % (i, i) for i in range(100_000))
        + b"}}"
    )
    assert len(ResetOffsetBody.decode(big).offset_table) == 100_000
    with pytest.raises(BodyError):
        ResetOffsetBody.decode(b'"' * 1_000_001)
