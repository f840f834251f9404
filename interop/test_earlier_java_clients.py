"""Apache's clients of earlier versions with both brokers. Programs of many data teams still use the 4.9 line."""

from __future__ import annotations

import pytest
from conftest import ONE_KIND, Cluster
from programs import SERIALIZE_TYPES, Sent, consume, produce, sample

pytestmark = [
    pytest.mark.interop(feature="send and receive", clients="java", servers="{cluster}", version="{version}"),
    pytest.mark.parametrize("version", ["5.4", "4.9"]),
]


@ONE_KIND
@pytest.mark.parametrize("serialize_type", SERIALIZE_TYPES)
def test_every_way_to_send_arrives(cluster: Cluster, topic: str, version: str, serialize_type: str) -> None:
    everything: list[Sent] = []
    for number, mode in enumerate(("sync", "async", "batch", "oneway")):
        sent = sample(20, first=100 * number)
        lines = [message.line() for message in sent]
        produce(cluster.address, topic, lines, mode=mode, serialize_type=serialize_type, version=version)
        everything += sent

    received = consume(cluster.address, topic, len(everything), serialize_type=serialize_type, version=version)

    assert sorted(map(Sent.of, received)) == sorted(everything)


@pytest.mark.interop(feature="ordered messages")
@ONE_KIND
def test_orderly_consumer_keeps_each_queues_order(cluster: Cluster, topic: str, version: str) -> None:
    lines = [message.line(queue_id=i % 2) for i, message in enumerate(sample(40))]
    produce(cluster.address, topic, lines, version=version)

    received = consume(cluster.address, topic, 40, mode="orderly", version=version)

    for queue_id in (0, 1):
        assert [r["queue_offset"] for r in received if r["queue_id"] == queue_id] == list(range(20))


@ONE_KIND
@pytest.mark.parametrize("mode", ["retry", "pull"])
def test_other_consumers(cluster: Cluster, topic: str, version: str, mode: str) -> None:
    sent = sample(5)
    produce(cluster.address, topic, [message.line() for message in sent], version=version)

    received = consume(cluster.address, topic, 10 if mode == "retry" else 5, mode=mode, version=version)

    bodies = sorted(message.body for message in map(Sent.of, received))
    assert bodies == sorted([message.body for message in sent] * (2 if mode == "retry" else 1))


@pytest.mark.interop(feature="delayed messages")
@ONE_KIND
def test_delayed_message_comes_later(cluster: Cluster, topic: str, version: str) -> None:
    (sent,) = sample(1)
    produce(cluster.address, topic, [sent.line(delay_level=2)], version=version)

    (received,) = consume(cluster.address, topic, 1, version=version)

    assert received["store_timestamp"] - received["born_timestamp"] >= 4900
