"""Requests that cost much more than their bytes: none keeps the broker from serving the others."""

from __future__ import annotations

from functools import partial

import pytest
from hostile_support import UnderAttack, pull_header, send_header

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.fastjson import encode_json

#: For an attack that still succeeds.
not_yet = partial(pytest.mark.xfail, strict=True, raises=AssertionError)


async def test_nothing_at_all(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        assert (await (await broker.peer()).send("orders", b"x")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("properties_length", "body_length"),
    [(1_150_000, 40_000), (2_300_000, 1_000_000)],
)
@pytest.mark.xfail(
    strict=True, raises=AssertionError, run=False, reason="they are joined to every message before they are checked"
)
async def test_properties_of_a_batch(under_attack: UnderAttack, properties_length: int, body_length: int) -> None:
    """They belong to each of its messages: 40 KB of body are 1,800 of them."""
    message = encode_batch([(0, b"", b"")])
    async with under_attack() as broker:
        peer = await broker.peer()
        header = send_header("orders", b"p\x01" + b"x" * properties_length, batch=True)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, message * (body_length // len(message)))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.xfail(
    strict=True, raises=AssertionError, run=False, reason="two files are written and flushed for each new group"
)
async def test_a_heartbeat_with_thousands_of_new_groups(under_attack: UnderAttack) -> None:
    groups = [ConsumerData(f"group-{i}", subscription_data_set=[SubscriptionData("orders")]) for i in range(4000)]
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send("orders", b"x")
        heartbeat = encode_json(HeartbeatData("attacker@1", consumer_data_set=groups))
        assert (await peer.ask(RequestCode.HEART_BEAT, body=heartbeat)).code == ResponseCode.SUCCESS


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="a filter is evaluated for all of a queue's messages at once"
)
async def test_a_filter_that_takes_long_and_finds_nothing(under_attack: UnderAttack) -> None:
    expression = " OR ".join(["a = 1 AND b = 2"] * 790)
    async with under_attack() as broker:
        peer = await broker.peer()
        await peer.send_many("orders", 3000, {"a": "1", "b": "3"})
        answer = await peer.ask(
            RequestCode.PULL_MESSAGE,
            pull_header("orders", expression_type="SQL92", subscription=expression),
        )
        assert answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
