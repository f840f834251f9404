"""Prometheus metrics of a proxy."""

from __future__ import annotations

import asyncio
import re

import grpc
import pytest
from otlp_collector import collector_over_http, labels_of
from proxy_support import Rpc, message, new_topic, producer_settings
from running_proxy import proxy_config
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import ConfigError
from gantrymq.metrics_export import MetricsExporterType
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.message import Message
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.remoting.client import RemotingClient
from gantrymq.testing.embedded import EmbeddedCluster


async def page(port: int) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return text


async def test_calls_are_counted_by_method_and_result(cluster: EmbeddedCluster, admin: AdminClient) -> None:
    config = proxy_config(
        cluster.name_server,
        proxy_name="here",
        metrics_exporter_type=MetricsExporterType.PROM,
        metrics_prom_exporter_port=0,
    )
    labels = 'node_type="proxy",cluster="DefaultCluster",node_id="here",proxy_mode="cluster"'
    proxy = Proxy(config)
    await proxy.start()
    topic = await new_topic(admin)
    async with Producer(proxy.remoting_address, "producers") as producer:
        for body in (b"one", b"two"):
            await producer.send(Message(topic, body))
    client = RemotingClient()
    for code, fields in ((RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "there_is_none"}), (9_999_999, {})):
        await client.invoke(proxy.remoting_address, RemotingCommand.request(code, fields=fields))
    await client.close()
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        rpc = Rpc(channel, "client")
        stream = rpc.Telemetry()
        await stream.write(producer_settings(topic))
        await stream.read()
        for body in (b"one", b"two", b""):
            await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, body)]))
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/apache.rocketmq.v2.MessagingService/Heartbeat")(
                b"\xff", metadata=rpc.metadata()
            )

        async def page_without_remoting() -> str:
            text = await page(proxy.metrics_port)
            # The proxy notices the disconnect of its client a moment later.
            return text if "gantry_proxy_remoting_connections{" + labels + "} 0" in text else ""

        text = await until(page_without_remoting)
    for line in (
        f"rocketmq_proxy_up{{{labels}}} 1",
        f'gantry_proxy_calls_total{{{labels},method="SendMessage",result="OK"}} 2',
        f'gantry_proxy_calls_total{{{labels},method="SendMessage",result="MESSAGE_BODY_EMPTY"}} 1',
        f'gantry_proxy_calls_total{{{labels},method="Heartbeat",result="INTERNAL"}} 1',
        f'gantry_proxy_call_seconds_count{{{labels},method="SendMessage"}} 3',
        f'gantry_proxy_clients{{{labels},kind="producer"}} 1',
        f"gantry_proxy_connections{{{labels}}} 1",
        f"gantry_proxy_remoting_connections{{{labels}}} 0",
        f"gantry_proxy_incomplete_bytes{{{labels}}} 0",
        f"gantry_proxy_unread_bytes{{{labels}}} 0",
        f'gantry_proxy_remoting_requests_total{{{labels},request="SEND_MESSAGE_V2",result="SUCCESS"}} 2',
        f'gantry_proxy_remoting_requests_total{{{labels},request="GET_ROUTEINFO_BY_TOPIC",result="TOPIC_NOT_EXIST"}} 1',
        f'gantry_proxy_remoting_requests_total{{{labels},request="OTHER",result="REQUEST_CODE_NOT_SUPPORTED"}} 1',
        f'gantry_proxy_remoting_request_seconds_count{{{labels},request="SEND_MESSAGE_V2"}} 2',
    ):
        assert re.search(f"^{re.escape(line)}$", text.replace("\r", ""), re.MULTILINE), (line, text)
    await proxy.stop()


async def test_a_collector_gets_them(cluster: EmbeddedCluster) -> None:
    with collector_over_http() as (target, collector):
        config = proxy_config(
            cluster.name_server,
            proxy_name="here",
            metrics_exporter_type=MetricsExporterType.OTLP_HTTP,
            metrics_grpc_exporter_target=target,
            metrics_label="zone:eu",
            metric_grpc_exporter_interval_in_mills=100,
        )
        proxy = Proxy(config)
        await proxy.start()
        assert proxy.metrics_port == 0
        await until(lambda: collector.received)
        [up] = collector.metrics()["rocketmq_proxy_up"].gauge.data_points
        own = {"node_type": "proxy", "cluster": "DefaultCluster", "node_id": "here", "proxy_mode": "cluster"}
        assert (up.as_int, labels_of(up)) == (1, {"zone": "eu"} | own)
        await proxy.stop()


async def test_without_a_collector(cluster: EmbeddedCluster) -> None:
    config = proxy_config(cluster.name_server, metrics_exporter_type=MetricsExporterType.OTLP_GRPC)
    with pytest.raises(ConfigError, match="metricsGrpcExporterTarget is missing"):
        Proxy(config)
