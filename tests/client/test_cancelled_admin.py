"""AdminClient calls that are cancelled in every iteration: the client continues and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cancelling import cancel_at_every_turn, cancelled_after, in_every_turn
from leftovers import nothing_left

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.testing.processes import ProcessCluster

TOPIC = "cancelled"
CLUSTER = "DefaultCluster"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=2) as cluster:
        yield cluster


CALLS: dict[str, Callable[[AdminClient], Coroutine[Any, Any, object]]] = {
    "cluster_info": lambda admin: admin.cluster_info(),
    "topic_route": lambda admin: admin.topic_route("TBW102"),
    "create_topic": lambda admin: admin.create_topic(TopicConfig(TOPIC, 4, 4), cluster=CLUSTER),
    "topic_list": lambda admin: admin.topic_list(),
    "delete_topic": lambda admin: admin.delete_topic(TOPIC, CLUSTER),
    "topic_stats": lambda admin: admin.topic_stats("TBW102"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled(name: str, cluster: ProcessCluster, caplog: pytest.LogCaptureFixture) -> None:
    @asynccontextmanager
    async def new() -> AsyncIterator[AdminClient]:
        async with AdminClient(cluster.namesrv_addr) as admin:
            yield admin

    await cancel_at_every_turn(new, CALLS[name], CALLS[name])
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_close_that_is_cancelled(cluster: ProcessCluster) -> None:
    async def attempt(turn: int) -> bool:
        async with nothing_left():
            admin = AdminClient(cluster.namesrv_addr)
            asking = asyncio.ensure_future(admin.cluster_info())
            await asyncio.sleep(0)
            was_cancelled = await cancelled_after(turn, admin.close())
            await asyncio.gather(asking, return_exceptions=True)
            # It is closed, or completes the close in the background.
            if turn % 2:
                await admin.close()
        return was_cancelled

    await in_every_turn(attempt)
