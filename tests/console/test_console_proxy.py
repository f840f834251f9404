"""Clients of a proxy on the console's pages."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
from console_support import cluster, html_of, visitor
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "visitor"]


async def test_a_consumer_that_speaks_grpc(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    """It is shown as a member of its group with a mark, and with its own language and version, not the proxy's."""
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("by-grpc", queues=1)
    proxy = Proxy(ProxyConfig(namesrv_addr=cluster.name_server, bind_address="127.0.0.1", grpc_server_port=0))
    await proxy.start()
    entry = pb.SubscriptionEntry(
        topic=pb.Resource(name="by-grpc"), expression=pb.FilterExpression(type=pb.TAG, expression="*")
    )
    settings = pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(group=pb.Resource(name="grpc-group"), subscriptions=[entry]),
    )
    try:
        async with grpc.aio.insecure_channel(proxy.address) as channel:
            telemetry = channel.stream_stream(
                "/apache.rocketmq.v2.MessagingService/Telemetry",
                request_serializer=rpc_pb.TelemetryCommand.SerializeToString,
                response_deserializer=rpc_pb.TelemetryCommand.FromString,
            )
            metadata = (
                ("x-mq-client-id", "phone@1"),
                ("x-mq-language", "CPP"),
                ("x-mq-client-version", "5.0.8"),
                ("x-mq-protocol", "v2"),
            )
            stream = telemetry(metadata=metadata)
            await stream.write(rpc_pb.TelemetryCommand(settings=settings))
            await stream.read()

            async def there() -> Any:
                # Brokers have no such group until the proxy has registered its consumer.
                answer = await visitor.get("/api/v1/group", params={"name": "grpc-group"})
                members = answer.json().get("members", [])
                return [member for member in members if member["by_proxy"]]

            (member,) = await until(there)
            assert (member["client_id"], member["language"], member["version"]) == ("phone@1", "CPP", "5.0.8")
            assert member["subscriptions"] == [{"topic": "by-grpc", "type": "TAG", "expression": "*"}]
            assert "via proxy" in await html_of(visitor, "group", name="grpc-group")
            stream.cancel()
    finally:
        await proxy.stop()
