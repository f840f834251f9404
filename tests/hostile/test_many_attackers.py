"""Attacks by forty clients: they are as harmless as those by one client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hostile_support import Peer, UnderAttack, pull_header, send_header
from test_stalls import fill, heartbeat

from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.query import QueryMessageRequestHeader
from gantrymq.system.clock import now_ms

_ATTACKERS = 40
_FILTER = " OR ".join(["a = 1 AND b = 2"] * 790)


def batch(attacker: int) -> tuple[int, Header | None, bytes]:
    return RequestCode.SEND_BATCH_MESSAGE, send_header("orders", batch=True), encode_batch([(0, b"", b"")]) * 100_000


def large_message(attacker: int) -> tuple[int, Header | None, bytes]:
    return RequestCode.SEND_MESSAGE_V2, send_header("orders"), bytes(4_000_000)


def filtered_pull(attacker: int) -> tuple[int, Header | None, bytes]:
    header = pull_header("few", expression_type="SQL92", subscription=f"{_FILTER} OR c = {attacker}")
    return RequestCode.PULL_MESSAGE, header, b""


def key_query(attacker: int) -> tuple[int, Header | None, bytes]:
    end = now_ms() - 3_600_000
    header = QueryMessageRequestHeader(topic="orders", key="k", max_num=64, begin_timestamp=1, end_timestamp=end)
    return RequestCode.QUERY_MESSAGE, header, b""


def new_groups(attacker: int) -> tuple[int, Header | None, bytes]:
    names = [f"group-{attacker}-{number}" for number in range(500)]
    return RequestCode.HEART_BEAT, None, heartbeat(f"attacker@{attacker}", names)


def new_topics(attacker: int) -> tuple[int, Header | None, bytes]:
    configs = [TopicConfig(f"topic-{attacker}-{number}", 1, 1) for number in range(500)]
    return RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, encode_json({"topicConfigList": configs})


def large_json(attacker: int) -> tuple[int, Header | None, bytes]:
    return (
        RequestCode.HEART_BEAT,
        None,
        b'{"clientID":"a","consumerDataSet":[' + b'{"groupName":"g"},' * 50_000 + b"{}]}",
    )


def all_messages(attacker: int) -> tuple[int, Header | None, bytes]:
    return RequestCode.PULL_MESSAGE, pull_header("orders", max_msg_nums=32, max_msg_bytes=(1 << 31) - 1), b""


_ATTACKS = [
    batch,
    large_message,
    filtered_pull,
    key_query,
    new_groups,
    new_topics,
    large_json,
    all_messages,
]


@pytest.mark.parametrize("request_", _ATTACKS, ids=lambda attack: attack.__name__)
async def test_together(under_attack: UnderAttack, request_: Callable[[int], tuple[int, Header | None, bytes]]) -> None:
    async with under_attack() as broker:
        peers = [await broker.peer() for _ in range(_ATTACKERS)]
        await fill(peers[0], "orders", 5_000, b"KEYS\x01k\x02a\x011")
        await fill(peers[0], "few", 40)

        async def ask(peer: Peer, number: int) -> list[RemotingCommand]:
            return [await peer.ask(*request_(number)) for _ in range(3)]

        await asyncio.gather(*(ask(peer, number) for number, peer in enumerate(peers)))
        assert (await peers[0].send("orders", b"x")).code == ResponseCode.SUCCESS
