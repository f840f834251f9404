from __future__ import annotations

from gantrymq.client.producing.publish_info import TopicPublishInfo
from gantrymq.protocol.message import MessageQueue

QUEUES = [MessageQueue("t", broker, n) for broker in ("a", "b") for n in range(3)]


def test_takes_the_queues_in_turn() -> None:
    info = TopicPublishInfo(QUEUES)
    first = [info.select() for _ in QUEUES]
    assert sorted(first) == QUEUES
    assert [info.select() for _ in QUEUES] == first


def test_after_a_failure_takes_another_broker() -> None:
    info = TopicPublishInfo(QUEUES)
    assert {info.select("a").broker_name for _ in range(20)} == {"b"}


def test_takes_the_failed_broker_again_when_there_is_no_other() -> None:
    info = TopicPublishInfo(QUEUES[:3])
    assert {info.select("a") for _ in range(10)} == set(QUEUES[:3])
