"""The proxy's cached data of topics and groups while brokers hang or are down."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import RemotingError
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import FIFO, MESSAGE_TYPE, Metadata
from gantrymq.testing.processes import ProcessCluster

#: The proxy queries each name at a random broker.
NAMES = [f"name{n}" for n in range(8)]


async def test_a_broker_that_hangs_is_not_the_only_one(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, brokers=2) as cluster:
        name_server, hung = cluster.name_server.address, cluster.brokers[1]
        async with AdminClient(name_server) as admin:
            for name in NAMES:
                await admin.create_topic(
                    TopicConfig(name, attributes={f"+{MESSAGE_TYPE}": FIFO}), cluster="DefaultCluster"
                )
                group = SubscriptionGroupConfig(name, consume_message_orderly=True)
                await admin.create_group(group, cluster="DefaultCluster")
        brokers = Brokers(name_server)
        metadata = Metadata(ProxyConfig(), brokers)
        brokers.start()
        try:
            for name in (*NAMES, "DefaultCluster"):
                await brokers.route(name)
            os.kill(hung.pid, signal.SIGSTOP)
            try:
                # An orderly group must never count as unordered, and a topic must not lose its type.
                groups = await asyncio.gather(*map(metadata.group, NAMES))
                assert [group is not None and group.consume_message_orderly for group in groups] == [True] * len(NAMES)
                assert await asyncio.gather(*map(metadata.topic_type, NAMES)) == [FIFO] * len(NAMES)
            finally:
                os.kill(hung.pid, signal.SIGCONT)
            for broker in cluster.brokers:
                os.kill(broker.pid, signal.SIGKILL)
                broker.stop()
            with pytest.raises(RemotingError):
                await metadata.group("another")
            # Cached data stays available.
            assert await metadata.topic_type(NAMES[0]) == FIFO
        finally:
            await brokers.stop()
