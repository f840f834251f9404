"""Heartbeats for clients: a broker that hangs does not delay those to other brokers."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest
from calls import RecordedCall
from constants import change_constant
from proxy_support import members_of, new_topic
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.client.admin.client import AdminClient
from gantrymq.limits import PROXY_SETTINGS_BYTES, PROXY_TOPICS_OF_SETTINGS
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.clients import Clients, client_memory
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.members import Members
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.system.clock import monotonic
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster

GROUPS = 1280


def producer(*topics: str) -> pb.Settings:
    return pb.Settings(
        client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[pb.Resource(name=topic) for topic in topics])
    )


def consumer(group: str, *topics: str) -> pb.Settings:
    subscriptions = [pb.SubscriptionEntry(topic=pb.Resource(name=topic)) for topic in topics]
    return pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(group=pb.Resource(name=group), subscriptions=subscriptions),
    )


async def test_a_broker_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, brokers=2) as cluster:
        async with AdminClient(cluster.name_server.address) as admin:
            topic = "everywhere"
            await admin.ensure_topic(topic, queues=1)
            brokers, clients, jobs = Brokers(cluster.name_server.address), Clients(), Jobs()
            members = Members(ProxyConfig(), brokers, clients, jobs)
            hung = cluster.brokers[1]
            brokers.start()
            members.start()
            try:
                await brokers.route(topic)
                os.kill(hung.pid, signal.SIGSTOP)
                run = uuid.uuid4().hex
                groups = [f"{run}_{n}" for n in range(GROUPS)]
                for group in groups:
                    clients.register(RecordedCall(client_id=f"client of {group}"), consumer(group, topic), monotonic())

                async def is_there() -> bool:
                    return await members_of(admin, groups[-1]) == [f"client of {groups[-1]}"]

                # With one connection at a time, the hanging broker would take a minute for all groups.
                await until(is_there)
            finally:
                os.kill(hung.pid, signal.SIGCONT)
                await members.stop()
                await brokers.stop()


async def test_who_leaves_while_a_broker_is_told_is_not_there(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path) as cluster:
        (broker,) = cluster.brokers
        async with AdminClient(cluster.name_server.address) as admin:
            await admin.ensure_topic("topic", queues=1)
            brokers, clients, jobs = Brokers(cluster.name_server.address), Clients(), Jobs()
            members = Members(ProxyConfig(), brokers, clients, jobs)
            brokers.start()
            members.start()
            try:
                await brokers.route("topic")
                # The first member of each group stays, so that the connection of the second one stays, too.
                for number, group in enumerate(("group", "other", "group", "other")):
                    clients.register(RecordedCall(client_id=f"{number}"), consumer(group, "topic"), monotonic())
                await until(lambda: members_of_all(admin, {"group": ["0", "2"], "other": ["1", "3"]}))
                os.kill(broker.pid, signal.SIGSTOP)
                clients.register(RecordedCall(client_id="4"), consumer("another", "topic"), monotonic())
                await until(lambda: members.busy)
                clients.remove("4")
                os.kill(broker.pid, signal.SIGCONT)
                await until(lambda: not members.busy and not members.leaving)
                assert await members_of_all(admin, {"group": ["0", "2"], "other": ["1", "3"], "another": []})
            finally:
                os.kill(broker.pid, signal.SIGCONT)
                await members.stop()
                await brokers.stop()


async def members_of_all(admin: AdminClient, expected: dict[str, list[str]]) -> bool:
    return {group: await members_of(admin, group) for group in expected} == expected


async def test_topics_that_are_not_there_hold_up_no_heartbeat(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    brokers, clients, jobs = Brokers(cluster.name_server), Clients(), Jobs()
    members = Members(ProxyConfig(), brokers, clients, jobs)
    brokers.start()
    members.start()
    try:
        await brokers.route(topic)
        for n in range(8):
            settings = producer(*(f"t{n}_{m}" for m in range(10_000)))
            clients.register(RecordedCall(client_id=f"{n}"), settings, monotonic())
        clients.register(RecordedCall(client_id="honest"), producer(topic), monotonic())

        async def is_known() -> bool:
            return topic in await admin.producers(cluster.brokers[0])

        # A request to all other brokers takes longer.
        await until(is_known)
    finally:
        await members.stop()
        await brokers.stop()


def test_settings_of_all_clients_are_bounded() -> None:
    clients = Clients()
    for n in range(PROXY_TOPICS_OF_SETTINGS // 1000):
        clients.register(RecordedCall(client_id=f"{n}"), producer(*(f"t{m}" for m in range(1000))), 1.0)
    with pytest.raises(ProxyError, match="they too many topics") as error:
        clients.register(RecordedCall(client_id="one more"), producer(*(f"t{m}" for m in range(1000))), 1.0)
    assert error.value.code == pb.TOO_MANY_REQUESTS
    assert clients.get("one more") is None
    # A client with small settings is accepted. A known client may repeat or reduce its settings.
    clients.register(RecordedCall(client_id="modest"), producer("t"), 1.0)
    clients.register(RecordedCall(client_id="0"), producer(*(f"t{m}" for m in range(1000))), 1.0)
    clients.register(RecordedCall(client_id="0"), producer("t"), 1.0)
    clients.register(RecordedCall(client_id="one more"), producer(*(f"t{m}" for m in range(900))), 1.0)


def test_the_bytes_of_settings_are_bounded() -> None:
    clients = Clients()
    large = producer("t")
    large.user_agent.hostname = "x" * 1_000_000
    count = PROXY_SETTINGS_BYTES // client_memory(large)
    for n in range(count):
        clients.register(RecordedCall(client_id=f"{n}"), large, 1.0)
    with pytest.raises(ProxyError):
        clients.register(RecordedCall(client_id="one more"), large, 1.0)
    assert len(clients.expire(2.0)) == count
    clients.register(RecordedCall(client_id="then"), large, 1.0)


def test_clients_that_want_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client uses a kilobyte or two for two minutes, even with small settings."""
    change_constant(monkeypatch, "clients.PROXY_SETTINGS_BYTES", 1000 * client_memory(producer()))
    clients = Clients()
    tell_all(clients, 1900)
    with pytest.raises(ProxyError, match="too many clients"):
        tell_all(clients, 2001)
    clients.expire(2.0)
    assert len(clients) == 0
    tell_all(clients, 1900)


def tell_all(clients: Clients, count: int) -> None:
    for n in range(count):
        clients.register(RecordedCall(client_id=f"{n}"), producer(), 1.0)
