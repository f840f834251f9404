"""Tests of `gantry admin resendDlq`."""

from __future__ import annotations

import threading

import pytest
from admin_support import Admin, admin, cluster, producer, topic

from gantrymq.cli.main import run
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.sync import SyncProducer, SyncPushConsumer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster", "producer", "topic"]


def test_dead_letters_once_more(
    admin: Admin, cluster: EmbeddedCluster, producer: SyncProducer, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    is_mended, arrived = threading.Event(), threading.Semaphore(0)

    def handle(message: MessageExt) -> None:
        if not is_mended.is_set():
            raise ValueError("broken")
        arrived.release()

    group = f"{topic}_group"
    consumer = PushConsumer(cluster.name_server, group, handle, max_reconsume_times=0, start_from="earliest")
    consumer.subscribe(topic)
    assert admin("resendDlq", "-g", group) == {"resent": 0, "leftOut": 0, "unreadable": 0}
    with SyncPushConsumer(consumer):
        for number in range(3):
            producer.send(Message(topic, b"%d" % number))
        dead = f"%DLQ%{group}"
        admin("topicList", until=lambda topics: dead in str(topics))
        admin("printMsg", "-t", dead, until=lambda rows: len(rows) == 3)
        is_mended.set()
        assert admin("resendDlq", "-g", group, "--count", "1")["resent"] == 1
        assert admin("resendDlq", "-g", group, "-t", "another", "-b", "1")["leftOut"] == 2
        assert admin("resendDlq", "-g", group, "--again", "-e", "2999-01-01T00:00")["resent"] == 3
        for _ in range(4):
            assert arrived.acquire(timeout=20)
    capsys.readouterr()
    assert run(["admin", "resendDlq", "-g", group, "-n", cluster.name_server]) == 0
    assert capsys.readouterr().out == f"0 dead-letter messages of group {group} resent\n"
