"""Extreme configuration values: the broker rejects them or works with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hostile_support import Peer, UnderAttack, pull_header

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import from_properties, load_properties, parse_properties, to_properties
from gantrymq.errors import GantryError
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.headers.namesrv import PutKVConfigRequestHeader
from gantrymq.remoting.connection import Connection
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig

VALUES = ("-1", "0", "1", "2147483647", "-2147483648", "9223372036854775807", "", "x", "1.5", "9" * 5000)
#: Keys that limit what a client may do, so other values can forbid it.
_FORBIDS = {"brokerPermission", "clientRateLimitBytes", "clientRateLimitMessages", "maxMessageSize"}


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


async def test_values_while_the_broker_runs(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer = await broker.peer()
        text = (await peer.ask(RequestCode.GET_BROKER_CONFIG)).body.decode()
        before = {key: value for key, value in parse_properties(text, source="").items() if _is_number(value)}
        assert len(before) > 50
        taken = []
        for key in before.keys() - _FORBIDS:
            for value in VALUES:
                answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={value}\n".encode())
                if answer.code == ResponseCode.SUCCESS:
                    taken.append(f"{key}={value}")
                    assert await works(peer), taken[-1]
            answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={before[key]}\n".encode())
            assert answer.code == ResponseCode.SUCCESS, (key, answer.remark)
        assert taken


async def works(peer: Peer) -> bool:
    """Returns true if a message can be sent, pulled and received by a long poll."""
    topic = "orders"
    answer = await peer.send(topic, b"x" * 100)
    if answer.code != ResponseCode.SUCCESS:
        return False
    offset = int(answer.ext_fields["queueOffset"])
    found = await peer.ask(RequestCode.PULL_MESSAGE, pull_header(topic, offset))
    waiting = asyncio.create_task(peer.ask(RequestCode.PULL_MESSAGE, pull_header(topic, offset + 1, suspend_ms=5000)))
    await peer.send(topic, b"x" * 100)
    return found.code == (await waiting).code == ResponseCode.SUCCESS


_TEXTS = (
    "\\" * 1_000_000,
    "=" * 1_000_000,
    " " * 1_000_000 + "x",
    "a\\\n" * 300_000,
    "a=b\n" * 250_000,
    "\\u" * 300_000,
    "#" * 1_000_000,
)
#: Keys that must not change by a request, and other spellings of one.
_FIXED = ("listenPort", "listen\\u0050ort", " listenPort", "storePathRootDir", "brokerConfigPath", "brokerName")


async def test_texts_that_are_hard_to_parse(under_attack: UnderAttack) -> None:
    async with under_attack() as broker:
        peer, other = await broker.peer(), await broker.peer_of(broker.name_server)
        for text in _TEXTS:
            await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
            await other.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=text.encode())


async def test_values_that_hold_other_keys(under_attack: UnderAttack) -> None:
    """A value with line breaks stays one value in the file. It does not change fixed keys."""
    async with under_attack() as broker:
        peer = await broker.peer()
        before = load_properties(broker.config)
        for value in ("x\\u000alistenPort=1", "x\\nlistenPort=1", "x\\\n listenPort=1", "x\\r\\nlistenPort\\=1"):
            await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"regionId={value}\n".encode())
            after = load_properties(broker.config)
            assert {key: after[key] for key in before} == before
        for key in (
            "listenPort",
            "listen\\u0050ort",
            " listenPort",
            "storePathRootDir",
            "brokerConfigPath",
            "brokerName",
        ):
            answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}=1\n".encode())
            assert answer.code != ResponseCode.SUCCESS
        assert {key: load_properties(broker.config)[key] for key in before} == before


async def test_what_a_name_server_lets_nobody_change(under_attack: UnderAttack) -> None:
    """Otherwise a client could choose the paths to which the NameServer writes."""
    async with under_attack() as broker:
        peer = await broker.peer_of(broker.name_server)
        elsewhere = broker.directory / "somewhere-else"
        for key in ("kvConfigPath", "configStorePath", "configBlackList", "rocketmqHome", "listenPort"):
            answer = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=f"{key}={elsewhere}\n".encode())
            assert answer.code != ResponseCode.SUCCESS
        await peer.ask(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace="a", key="b", value="c"))
        assert not elsewhere.exists()


def _keys() -> list[str]:
    properties = (
        to_properties(BrokerConfig()) | to_properties(StoreConfig(Path("x"))) | to_properties(ReplicationConfig())
    )
    # Leave out objects, paths, and the listen address, which the test needs itself.
    objects = {"store", "replication", "auth"}
    places = {"storePathRootDir", "storePathCommitLog", "brokerConfigPath", "bindAddress"}
    return sorted(properties.keys() - objects - places - _FORBIDS)


@pytest.mark.parametrize(
    "value", ["-1", "0", "1", "2147483647", "9" * 5000, ""], ids=lambda value: value[:11] or "empty"
)
async def test_values_at_the_start(tmp_path: Path, value: str) -> None:
    """For each value, the broker starts and works, or reports the reason why it does not."""
    failures = []
    for key in _keys():
        properties = {
            "brokerName": "broker-a",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "mappedFileSizeCommitLog": str(4 << 20),
            "storePathRootDir": str(tmp_path / key),
            "messageDelayLevel": "1s",
        } | {key: value}
        try:
            await _start_and_stop(properties)
        except GantryError:
            # For example an invalid address or a port in use.
            continue
        except Exception as e:
            failures.append(f"{key}: {type(e).__name__}: {e}"[:300])
    assert not failures, "\n".join(failures)


async def _start_and_stop(properties: dict[str, str]) -> None:
    store = from_properties(StoreConfig, properties, source="test")
    broker = Broker(replace(from_properties(BrokerConfig, properties, source="test"), store=store))
    try:
        await broker.start()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection({}), "127.0.0.1", broker.port
        )
        assert await works(Peer(connection))
        connection.close()
    finally:
        await broker.stop()
