"""A proxy that is killed and restarted loses no acknowledged message."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import grpc
from ports import free_port
from proxy_support import Rpc, message, new_topic
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ServerProcess

MESSAGES = 1000


def start(directory: Path, name_server: str, port: int) -> ServerProcess:
    properties = {
        "namesrvAddr": name_server,
        "bindAddress": "127.0.0.1",
        "grpcServerPort": str(port),
        "remotingListenPort": "0",
    }
    return ServerProcess("proxy", f"proxy-{uuid.uuid4().hex[:6]}", directory, properties, ())


async def ready(server: ServerProcess) -> None:
    await asyncio.to_thread(server.wait_until_ready, asyncio.get_running_loop().time() + 60)


async def test_what_was_acknowledged_is_stored(cluster: EmbeddedCluster, admin: AdminClient, tmp_path: Path) -> None:
    topic = await new_topic(admin, queues=1)
    port = free_port()
    server = start(tmp_path, cluster.name_server, port)
    await ready(server)
    acknowledged: list[int] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        rpc = Rpc(channel, "client")

        async def send(numbers: range) -> None:
            for n in numbers:
                request = rpc_pb.SendMessageRequest(messages=[message(topic, b"%d" % n)])
                while True:
                    try:
                        response = await rpc.SendMessage(request, wait_for_ready=True)
                    except grpc.aio.AioRpcError:
                        continue
                    if response.status.code == pb.OK:
                        acknowledged.append(response.entries[0].offset)
                        break

        sending = [asyncio.ensure_future(send(range(first, MESSAGES, 10))) for first in range(10)]
        for share in (4, 2):
            await until(lambda share=share: len(acknowledged) > MESSAGES // share // 2)
            os.kill(server.pid, signal.SIGKILL)
            server.stop()
            server = start(tmp_path, cluster.name_server, port)
            await ready(server)
        await asyncio.gather(*sending)
    server.stop()
    # Repeated sends are allowed, but each acknowledged message has its own offset and is stored.
    assert len(set(acknowledged)) == len(acknowledged) == MESSAGES
    (queue,) = (await admin.topic_stats(topic)).offset_table.values()
    assert queue.max_offset > max(acknowledged)
