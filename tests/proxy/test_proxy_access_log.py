"""The access log: one line per call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from proxy_support import Rpc, message, new_topic
from running_proxy import proxy_config
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ConfigError
from gantrymq.limits import PROXY_LOG_LINES
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.proxy.access_log import AccessLog
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.proxy import Proxy
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.remoting.client import RemotingClient
from gantrymq.testing.embedded import EmbeddedCluster


def config(cluster: EmbeddedCluster, path: Path) -> ProxyConfig:
    return proxy_config(cluster.name_server, access_log_path=path)


async def test_a_line_for_each_call(cluster: EmbeddedCluster, admin: AdminClient, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    proxy = Proxy(config(cluster, path))
    await proxy.start()
    topic = await new_topic(admin)
    async with grpc.aio.insecure_channel(proxy.address) as channel:
        rpc = Rpc(channel, "a client 1@2")
        for body in (b"one", b""):
            await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, body)]))
        await until(lambda: len(path.read_text().splitlines()) == 2)
        # The file may be moved, for example by log rotation.
        moved = path.rename(tmp_path / "access.log.1")
        await rpc.SendMessage(rpc_pb.SendMessageRequest(messages=[message(topic, b"three")]))
    # The remaining lines are written at the end.
    await proxy.stop()
    lines = [line.split(" ") for line in moved.read_text().splitlines() + path.read_text().splitlines()]
    assert [line[2:5] for line in lines] == [
        ["a%20client%201@2", "SendMessage", result] for result in ("OK", "MESSAGE_BODY_EMPTY", "OK")
    ]
    assert all(line[1].startswith("127.0.0.1:") and float(line[5]) >= 0 for line in lines)


async def test_a_line_for_each_request_of_the_remoting_protocol(
    cluster: EmbeddedCluster, admin: AdminClient, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    proxy = Proxy(config(cluster, path))
    await proxy.start()
    topic = await new_topic(admin)
    client = RemotingClient()
    for request in (
        RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": topic}),
        RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_json(HeartbeatData("10.0.0.1@1"))),
        RemotingCommand.request(12345),
    ):
        await client.invoke(proxy.remoting_address, request)
    await client.close()
    await proxy.stop()
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    assert all(line[1].startswith("127.0.0.1:") and float(line[5]) >= 0 for line in lines)
    # The client id is known from its heartbeat on.
    assert [line[2:5] for line in lines] == [
        ["-", "GET_ROUTEINFO_BY_TOPIC", "SUCCESS"],
        ["10.0.0.1@1", "HEART_BEAT", "SUCCESS"],
        ["10.0.0.1@1", "OTHER", "REQUEST_CODE_NOT_SUPPORTED"],
    ]


async def test_a_file_that_cannot_be_written(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    proxy = Proxy(config(cluster, tmp_path / "nowhere" / "access.log"))
    with pytest.raises(ConfigError, match="accessLogPath"):
        await proxy.start()


async def test_a_disk_that_takes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    jobs = Jobs()
    access_log = AccessLog(directory / "access.log", jobs)
    access_log.start()
    (directory / "access.log").unlink()
    directory.rmdir()
    for _ in range(PROXY_LOG_LINES + 5):
        access_log.ended("p", "c", "m", "OK", 0.001)
    await until(lambda: jobs.failing())
    directory.mkdir()
    await asyncio.wait_for(until(lambda: (directory / "access.log").exists()), 20)
    await access_log.stop()
    assert len((directory / "access.log").read_text().splitlines()) == PROXY_LOG_LINES
    assert "5 calls are missing" in caplog.text
