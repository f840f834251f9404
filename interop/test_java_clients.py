"""Apache's Java producer and consumers with each combination of NameServer and broker."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conftest import ONE_KIND, Cluster
from programs import SERIALIZE_TYPES, Sent, consume, produce, sample

pytestmark = pytest.mark.interop(feature="send and receive", clients="java", servers="{cluster}")


@pytest.mark.parametrize("serialize_type", SERIALIZE_TYPES)
def test_every_way_to_send_arrives(cluster: Cluster, topic: str, serialize_type: str) -> None:
    everything: list[Sent] = []
    for number, mode in enumerate(("sync", "async", "batch", "oneway")):
        sent = sample(20, first=100 * number)
        if mode == "sync":
            sent += [Sent(b"compressible " * 2000, tags="big"), Sent(b"\x00", keys="smallest")]
        results = produce(cluster.address, topic, [m.line() for m in sent], mode=mode, serialize_type=serialize_type)
        assert [r["status"] for r in results] == ["SEND_OK"] * {"batch": 1, "oneway": 0}.get(mode, len(sent))
        everything += sent

    received = consume(cluster.address, topic, len(everything), serialize_type=serialize_type)

    assert sorted(map(Sent.of, received)) == sorted(everything)
    places = {(r["queue_id"], r["queue_offset"]) for r in received}
    assert len(places) == len(everything)


def test_send_result_tells_where_the_message_is(cluster: Cluster, topic: str) -> None:
    lines = [message.line(queue_id=i % 2) for i, message in enumerate(sample(6))]
    results = produce(cluster.address, topic, lines)

    received = consume(cluster.address, topic, 6)

    def place(line: dict[str, Any]) -> tuple[Any, ...]:
        return line["msg_id"], line["queue_id"], line["queue_offset"]

    assert sorted(map(place, received)) == sorted(map(place, results))
    assert [r["queue_id"] for r in results] == [0, 1, 0, 1, 0, 1]
    assert [r["queue_offset"] for r in results] == [0, 0, 1, 1, 2, 2]


@pytest.mark.interop(feature="ordered messages")
def test_orderly_consumer_keeps_each_queues_order(cluster: Cluster, topic: str) -> None:
    produce(cluster.address, topic, [message.line(queue_id=i % 2) for i, message in enumerate(sample(40))])

    received = consume(cluster.address, topic, 40, mode="orderly")

    for queue_id in (0, 1):
        assert [r["queue_offset"] for r in received if r["queue_id"] == queue_id] == list(range(20))


@pytest.mark.interop(feature="filters")
def test_tags_choose(cluster: Cluster, topic: str) -> None:
    sent = sample(30)
    produce(cluster.address, topic, [message.line() for message in sent])
    wanted = [message for message in sent if message.tags in ("tag0", "tag2")]

    received = consume(cluster.address, topic, len(wanted), expression="tag0 || tag2")

    assert sorted(map(Sent.of, received)) == sorted(wanted)


def test_lite_pull_consumer(cluster: Cluster, topic: str) -> None:
    sent = sample(30)
    produce(cluster.address, topic, [message.line() for message in sent])

    received = consume(cluster.address, topic, 30, mode="pull")

    assert sorted(map(Sent.of, received)) == sorted(sent)


@pytest.mark.interop(feature="consumer offsets")
@ONE_KIND
def test_group_goes_on_where_it_stopped(cluster: Cluster, topic: str) -> None:
    first, second = sample(20), sample(20, first=20)
    produce(cluster.address, topic, [message.line() for message in first])
    consume(cluster.address, topic, 20)
    produce(cluster.address, topic, [message.line() for message in second])

    received = consume(cluster.address, topic, 20)

    assert sorted(map(Sent.of, received)) == sorted(second)


@pytest.mark.interop(feature="retries and dead letters")
@ONE_KIND
def test_refused_message_comes_again(cluster: Cluster, topic: str) -> None:
    (sent,) = sample(1)
    produce(cluster.address, topic, [sent.line()])

    first, again = consume(cluster.address, topic, 2, mode="retry")

    assert Sent.of(first) == Sent.of(again) == sent
    assert (first["reconsume_times"], again["reconsume_times"]) == (0, 1)
    assert first["msg_id"] == again["msg_id"]


@pytest.mark.interop(feature="delayed messages")
@ONE_KIND
def test_delayed_message_comes_late(cluster: Cluster, topic: str) -> None:
    (sent,) = sample(1)
    # Level 2 is 5 s, which is longer than the start of both programs.
    sent_at = time.time()
    produce(cluster.address, topic, [sent.line(delay_level=2)])

    (received,) = consume(cluster.address, topic, 1)

    assert time.time() - sent_at > 5
    assert Sent.of(received) == sent
    assert received["topic"] == topic
