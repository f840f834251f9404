"""Several processes of a proxy on the same ports."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import grpc
import pytest
from otlp_collector import collector_over_http, labels_of
from proxy_support import Rpc, message, new_topic
from wait_until import until

from gantrymq.cli.proxy_processes import ProxyProcesses
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster


def properties(cluster: EmbeddedCluster, **more: str) -> dict[str, str]:
    ports = {"grpcServerPort": "0", "remotingListenPort": "0"}
    return {"namesrvAddr": cluster.name_server, "bindAddress": "127.0.0.1", **ports, **more}


@pytest.fixture
async def processes(cluster: EmbeddedCluster) -> AsyncIterator[ProxyProcesses]:
    processes = ProxyProcesses(properties(cluster), 2)
    await processes.start()
    yield processes
    await processes.stop()


async def send(address: str, topic: str) -> int:
    # Opens its own connection. By default, all channels of a process share one.
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        request = rpc_pb.SendMessageRequest(messages=[message(topic)])
        response = await Rpc(channel, "c").SendMessage(request, wait_for_ready=True)
    return int(response.status.code)


async def test_one_that_dies_is_replaced(processes: ProxyProcesses, admin: AdminClient) -> None:
    topic = await new_topic(admin)
    assert [await send(processes.address, topic) for _ in range(10)] == [pb.OK] * 10
    before = dict(processes.pids)
    assert len(set(before.values())) == 2
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: processes.pids.get(0) not in (None, before[0]))
    assert processes.pids[1] == before[1]
    assert await send(processes.address, topic) == pb.OK


async def test_a_collector_can_tell_them_apart(cluster: EmbeddedCluster) -> None:
    with collector_over_http() as (target, collector):
        metrics = {
            "metricsExporterType": "OTLP_HTTP",
            "metricsGrpcExporterTarget": target,
            "metricGrpcExporterIntervalInMills": "100",
        }
        processes = ProxyProcesses(properties(cluster, **metrics), 2)
        await processes.start()
        seen: set[str] = set()

        async def are_both_seen() -> bool:
            if collector.received:
                [up] = collector.metrics()["rocketmq_proxy_up"].gauge.data_points
                seen.add(labels_of(up)["process"])
            return seen == {"0", "1"}

        await until(are_both_seen)
        await processes.stop()


async def test_they_end_together(cluster: EmbeddedCluster) -> None:
    processes = ProxyProcesses(properties(cluster), 2)
    await processes.start()
    pids = list(processes.pids.values())
    await processes.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_one_that_cannot_start_is_an_error(cluster: EmbeddedCluster) -> None:
    processes = ProxyProcesses(
        properties(cluster, tlsCertPath="/nowhere", tlsKeyPath="/nowhere", **{"tls.test.mode.enable": "false"}), 2
    )
    with pytest.raises(GantryError, match="has ended with code 1"):
        await processes.start()
