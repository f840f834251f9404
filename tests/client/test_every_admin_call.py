"""Every public call of AdminClient, including future ones, against faulty servers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hostile_proxy import MODES_TOGETHER, no_complaints, proxies
from leftovers import nothing_left
from stopwatch import Stopwatch

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.message import Message, MessageExt, MessageQueue, decode_messages
from gantrymq.protocol.record import encode_host, encode_record
from gantrymq.sync import SyncProducer
from gantrymq.testing.processes import ProcessCluster

TOPIC = "administered"
TIMEOUT_S = 0.3
#: Longest time of a call, in seconds: route queries have the client's own timeout, and a call may need several
#: requests.
CALL_S = 3.0
HOST = encode_host("127.0.0.1", 10911)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        with SyncProducer(Producer(cluster.namesrv_addr, "makers")) as producer:
            producer.send(Message(TOPIC, b"x", keys="key"))
        yield cluster


def message(topic: str = TOPIC) -> MessageExt:
    record = encode_record(0, 0, 0, 0, 0, 1, HOST, 2, HOST, 0, 0, b"body", topic.encode(), b"")
    (decoded,) = decode_messages(record, "broker-a")
    return decoded


async def one_by_one(*messages: MessageExt) -> AsyncIterator[MessageExt]:
    for one in messages:
        yield one


def values(broker: str) -> dict[str, Any]:
    """Returns the arguments by parameter name. Created and deleted objects belong to no other test."""
    return {
        "acl": AclInfo("User:nobody"),
        "address": broker,
        "addresses": [broker],
        "begin": 0,
        "broker_id": 0,
        "broker_name": "broker-a",
        "broker_names": ["broker-a"],
        "changes": {"flushDiskType": "ASYNC_FLUSH"},
        "client_id": "client",
        "commit": True,
        "cluster": "DefaultCluster",
        "config": None,
        "config_path": "/nothing.conf",
        "container": broker,
        "controller": broker,
        "controllers": [broker],
        "configs": [],
        "end": 1,
        "group": "nobodys",
        "index": 0,
        "key": "key",
        "letters": one_by_one(message("%DLQ%nobodys")),
        "lite_topic": "nothing",
        "message": message(),
        "message_id": "7F00000100002A9F0000000000000000",
        "mode": "PULL",
        "name": "broker-a",
        "namespace": "nobodys",
        "offset": 0,
        "order_conf": "broker-a:1",
        "perm": 6,
        "queue": MessageQueue(TOPIC, "broker-a", 0),
        "queue_id": 0,
        "queue_nums": 1,
        "resource": "Topic:nothing",
        "source_group": "nobodys",
        "stats_key": TOPIC,
        "stats_name": "TOPIC_PUT_NUMS",
        "subject": "User:nobody",
        "target_group": "another",
        "timeout": TIMEOUT_S,
        "timestamp": 0,
        "topic": TOPIC,
        "unique_key": "7F0000010000",
        "user": UserInfo("nobody", "password"),
        "username": "nobody",
        "value": "value",
    }


#: Arguments for a single method.
OWN: dict[str, dict[str, Any]] = {
    "create_topic": {"config": TopicConfig("made", 1, 1)},
    "create_topics": {"configs": [TopicConfig("made", 1, 1)]},
    "create_group": {"config": SubscriptionGroupConfig("made")},
    "create_groups": {"configs": [SubscriptionGroupConfig("made")]},
    "delete_topic": {"topic": "made"},
}


async def call(admin: AdminClient, name: str, broker: str) -> None:
    method = getattr(admin, name)
    given = values(broker) | OWN.get(name, {})
    arguments = {}
    for parameter in inspect.signature(method).parameters.values():
        is_wanted = parameter.default is inspect.Parameter.empty or parameter.name in ("cluster", "timeout")
        if is_wanted:
            arguments[parameter.name] = given[parameter.name]
    answer = method(**arguments)
    if isinstance(answer, AsyncIterator):
        async for _ in answer:
            pass
    else:
        await answer


CALLS = [
    name
    for name, method in inspect.getmembers(AdminClient, inspect.isfunction)
    if not name.startswith("_") and name != "close"
]


@pytest.mark.parametrize("modes", MODES_TOGETHER, ids=", ".join)
async def test_every_call_ends(modes: list[str], cluster: ProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def tried(mode: str, admin: AdminClient, name: str, broker: str) -> None:
        stopwatch = Stopwatch()
        try:
            await call(admin, name, broker)
        except GantryError:
            pass
        except Exception as e:
            wrong.append(f"{mode}: {name} raised {e!r}")
        # The calls of all modes share this process, so other calls' CPU time does not count as waiting.
        waited_s = stopwatch.waited_s()
        if waited_s > CALL_S + 1:
            wrong.append(f"{mode}: {name} waited {waited_s:.1f} s")

    all_connected = asyncio.Barrier(len(modes))

    async def attack(mode: str) -> None:
        async with (
            proxies(cluster) as (name_server, broker),
            AdminClient(name_server.address, timeout=TIMEOUT_S) as admin,
        ):
            await admin.cluster_info()
            # Another mode's calls would take the CPU time that this first call needs.
            await all_connected.wait()
            name_server.mode = broker.mode = mode
            await asyncio.gather(*(tried(mode, admin, name, broker.address) for name in CALLS))

    with no_complaints(caplog) as wrong:
        async with nothing_left():
            await asyncio.gather(*(attack(mode) for mode in modes))


async def test_every_call_has_its_values(cluster: ProcessCluster) -> None:
    """With healthy servers, all calls reach them, and only the servers' errors are raised."""
    async with AdminClient(cluster.namesrv_addr) as admin:
        for name in CALLS:
            try:
                await call(admin, name, cluster.brokers[0].address)
            except GantryError:
                continue
