"""Invalid arguments are rejected by the call itself, not later by a broker."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scripted_producer import ProducerBroker, producer_over

from gantrymq.client.middleware import Middleware
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.queue_selector import select_by_hash
from gantrymq.client.producing.transaction_producer import TransactionProducer
from gantrymq.errors import ClientError, GantryError, IllegalMessage
from gantrymq.protocol.message import Message
from gantrymq.remoting.signatures import SigningHook

MESSAGE = Message("topic", b"x")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"delay_level": 77}, "delay_level=77: must be a whole number, 1 to 18"),
        ({"delay_level": -1}, "delay_level=-1"),
        ({"delay_level": 1.5}, "whole number"),
        ({"delay_level": 3, "delay": 10}, "delay_level and delay: a message has one delay"),
        ({"delay": 10, "deliver_at": 2_000_000_000_000}, "one delay"),
        ({"delay": -1}, "delay=-1: must be a number of seconds or a timedelta, not negative"),
        ({"delay": "5s"}, "delay='5s': must be a number of seconds"),
        ({"deliver_at": 2_000_000_000}, "not in seconds"),
        ({"deliver_at": 0}, "deliver_at=0: must be after 1970"),
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, "must be after 1970"),
        ({"delay": 10**400}, "delay: must be at most"),
        ({"deliver_at": 2_000_000_000_000.5}, "must be a datetime, or a whole number of milliseconds"),
        ({"deliver_at": datetime(2030, 1, 1)}, "has no time zone"),
        ({"keys": ["order 17"]}, "the key 'order 17'"),
        ({"keys": ["a", ""]}, "the key ''"),
        ({"keys": [17]}, "the key 17"),
        ({"keys": 17}, "keys=17: a string"),
        ({"properties": {"weight": 5}}, "property 'weight' is 5"),
        ({"properties": {5: "weight"}}, "property 5 is 'weight'"),
        ({"tags": ["a"]}, "property 'TAGS' is"),
        ({"sharding_key": 17}, "property '__SHARDINGKEY' is 17"),
    ],
    ids=str,
)
def test_messages(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(IllegalMessage, match=why):
        Message("topic", b"x", **arguments)


def test_messages_that_are_right() -> None:
    assert Message("topic", b"x", keys=["a", "b"]).keys == ["a", "b"]
    assert Message("topic", b"x", keys="a b").keys == ["a", "b"]


@pytest.mark.parametrize("key", ["ideo\u3000graphic", "no\u00a0break", "a\ttab", "x\x1cy", "\u2003em"])
def test_only_a_blank_separates_keys(key: str) -> None:
    """As in Java's client and index."""
    assert Message("topic", b"x", keys=[key, "other"]).keys == [key, "other"]
    assert Message("topic", b"x", keys=f"{key}  other ").keys == [key, "other"]
    assert Message("topic", b"x", delay_level=0, delay=0).properties == {"TIMER_DELAY_MS": "0"}
    # A broker may have more than the default levels.
    assert Message("topic", b"x", properties={"DELAY": "20"}).properties["DELAY"] == "20"


async def test_properties_that_are_set_later() -> None:
    message = Message("topic", b"x")
    message.properties["weight"] = 5  # type: ignore[assignment]
    async with producer_over(ProducerBroker()) as producer:
        with pytest.raises(IllegalMessage, match=r"property 'weight' is 5.*str\(5\)"):
            await producer.send(message)


CALLS: dict[str, Callable[[Producer, Any], Awaitable[object]]] = {
    "send": lambda producer, timeout: producer.send(MESSAGE, timeout=timeout),
    "send_alone": lambda producer, timeout: producer.send_alone(MESSAGE, timeout=timeout),
    "send_batch": lambda producer, timeout: producer.send_batch([MESSAGE], timeout=timeout),
    "send with a selector": lambda producer, timeout: producer.send(MESSAGE, timeout=timeout, select=select_by_hash(1)),
    "enqueue": lambda producer, timeout: producer.enqueue(MESSAGE, timeout=timeout),
    "request": lambda producer, timeout: producer.request(MESSAGE, timeout=timeout),
    "recall": lambda producer, timeout: producer.recall("topic", "handle", timeout=timeout),
}


@pytest.mark.parametrize("name", CALLS)
async def test_timeouts(name: str) -> None:
    broker = ProducerBroker()
    async with producer_over(broker, linger=0.001) as producer:
        for timeout in (-1, -0.5, timedelta(seconds=-1), math.nan, math.inf, True, "3s", None):
            why = re.escape(f"timeout={timeout!r}: must be a number of seconds or a timedelta, not negative")
            with pytest.raises(ClientError, match=why):
                await CALLS[name](producer, timeout)
    assert not broker.sent


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name_servers": ""}, "no NameServer given"),
        ({"name_servers": "127.0.0.1"}, "'127.0.0.1' is no HOST:PORT"),
        ({"name_servers": ["127.0.0.1:9876", 9876]}, "9876 is no HOST:PORT"),
        ({"group": None}, "group=None"),
        ({"group": "with spaces"}, "illegal characters"),
        ({"retry_times": -1}, "retry_times=-1"),
        ({"retry_times": "2"}, "retry_times='2'"),
        ({"try_timeout": 0}, "try_timeout=0: must be at least 0.001 seconds"),
        ({"linger": -1}, "linger=-1"),
        ({"linger": 50}, "linger=50: must be 0 to 30 seconds"),
        ({"max_message_size": 0}, "max_message_size=0"),
        ({"compress_over": None}, "compress_over=None"),
        ({"compression": "zlib"}, "compression='zlib'"),
        ({"default_topic_queue_nums": 0}, "default_topic_queue_nums=0"),
        ({"ssl_context": True}, "ssl_context=True"),
        ({"hooks": SigningHook}, "hooks=.*must be a list"),
        ({"middleware": Middleware}, "middleware=.*must be a list"),
    ],
    ids=str,
)
def test_producers(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(GantryError, match=why):
        Producer(**({"name_servers": "127.0.0.1:9876", "group": "group"} | arguments))


def test_a_listener_that_lacks_a_method() -> None:
    class Listener:
        def execute_local_transaction(self, message: Message, arg: object) -> None: ...

    with pytest.raises(ClientError, match="no method check_local_transaction"):
        TransactionProducer("127.0.0.1:9876", "group", Listener())  # type: ignore[arg-type]
