"""Tests that log lines of consumers say which message failed and what follows, and that queues are listed briefly."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedGroupBroker, ScriptedNameServer, route_over, serving
from wait_until import until

from gantrymq.client.consuming.log_texts import failed_attempt, queue_list, queues_by_topic
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.record import encode_host, encode_record

HOST = encode_host("127.0.0.1", 10911)


def record(reconsume_times: int, properties: bytes = b"KEYS\x01A17 A18") -> bytes:
    return encode_record(0, 0, 0, 5000, 0, 1, HOST, 2, HOST, reconsume_times, 0, b"body", b"topic", properties)


async def fail(message: MessageExt) -> None:
    raise ValueError("as scripted")


@asynccontextmanager
async def failing_consumer(broker: ScriptedGroupBroker, **options: Any) -> AsyncIterator[PushConsumer]:
    name_server = ScriptedNameServer({})
    async with serving([name_server, broker]):
        name_server.routes["topic"] = route_over({"broker": broker.address}, queue_nums=1)
        consumer = PushConsumer(name_server.address, "group", fail, start_from="earliest", **options)
        consumer.subscribe("topic")
        async with consumer:
            yield consumer


@pytest.mark.parametrize(
    ("reconsume_times", "following"),
    [
        (0, "attempt 1; next attempt after delay level 3 (10s by default)"),
        (2, "attempt 3; next attempt after delay level 5 (1m by default)"),
        (16, "attempt 17; goes to the dead-letter queue"),
    ],
)
async def test_a_failure_names_the_message_and_what_follows(
    reconsume_times: int, following: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 1, record(reconsume_times))])
    async with failing_consumer(broker):
        await until(lambda: broker.sent_back)
    (line,) = [line for line in caplog.messages if line.startswith("handler failed")]
    assert line.startswith("handler failed: topic 'topic', key 'A17 A18', message ")
    assert line.endswith(following)


async def test_a_broadcasting_consumer_does_not_retry(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    broker = ScriptedGroupBroker([(ResponseCode.SUCCESS, 1, record(0))])
    async with failing_consumer(broker, broadcasting=True):
        await until(lambda: "handler failed" in caplog.text)
    (line,) = [line for line in caplog.messages if line.startswith("handler failed")]
    assert line.endswith("attempt 1; not redelivered")


def test_keys_that_the_handler_has_replaced() -> None:
    (message,) = decode_messages(record(0, b""))
    assert failed_attempt(message).startswith("topic 'topic', message ")
    message.properties["KEYS"] = 7  # type: ignore[assignment]
    assert failed_attempt(message).startswith("topic 'topic', key 7, message ")


def test_queues_are_listed_as_ranges() -> None:
    queues = {MessageQueue("topic", broker, number) for broker in ("b-b", "b-a") for number in (0, 1, 2, 5, 7, 8)}
    assert queue_list(queues - {MessageQueue("topic", "b-b", 1)}) == "b-a 0-2, 5, 7-8; b-b 0, 2, 5, 7-8"
    assert queue_list([]) == "none"
    queues = {MessageQueue(topic, "b-a", id) for topic in ("b", "a") for id in (0, 1, 3)}
    assert queues_by_topic(queues) == "a (b-a 0-1, 3), b (b-a 0-1, 3)"


async def test_an_assignment_is_logged_briefly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    broker = ScriptedGroupBroker([])
    async with failing_consumer(broker):
        await until(lambda: broker.pulls)
    assert "group group reads 1 queues of topic: broker 0" in caplog.messages
