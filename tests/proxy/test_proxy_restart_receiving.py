"""Pending receives when their proxy is killed: all unacknowledged messages are redelivered."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import grpc
from ports import free_port
from proxy_support import Rpc, new_topic
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.protocol.message import Message
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ServerProcess

PART = 60
INVISIBLE_MS = 1000


def start(directory: Path, name_server: str, port: int) -> ServerProcess:
    properties = {
        "namesrvAddr": name_server,
        "bindAddress": "127.0.0.1",
        "grpcServerPort": str(port),
        "remotingListenPort": "0",
        "minInvisibleTimeMillsForRecv": "0",
        "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
    }
    return ServerProcess("proxy", f"proxy-{uuid.uuid4().hex[:6]}", directory, properties, ())


async def ready(server: ServerProcess) -> None:
    await asyncio.to_thread(server.wait_until_ready, asyncio.get_running_loop().time() + 60)


class Consumer:
    """Receives and acknowledges despite all failures."""

    def __init__(self, rpc: Rpc, topic: str) -> None:
        self._rpc = rpc
        self._topic, self._group = pb.Resource(name=topic), pb.Resource(name=f"g_{topic}")
        self.received: set[bytes] = set()

    async def run(self) -> None:
        while True:
            try:
                await self.receive()
            except grpc.aio.AioRpcError:
                continue

    async def receive(self) -> None:
        responses = self._rpc.ReceiveMessage(self._request(), wait_for_ready=True)
        for response in [response async for response in responses]:
            if response.HasField("message"):
                await self._ack(response.message)

    def _request(self) -> rpc_pb.ReceiveMessageRequest:
        return rpc_pb.ReceiveMessageRequest(
            group=self._group,
            message_queue=pb.MessageQueue(topic=self._topic),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=8,
            invisible_duration=to_duration(INVISIBLE_MS),
            long_polling_timeout=to_duration(500),
        )

    async def _ack(self, received: pb.Message) -> None:
        # If the proxy is killed during an acknowledgement, the message may not be delivered again.
        self.received.add(received.body)
        system = received.system_properties
        entry = rpc_pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
        request = rpc_pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])
        await self._rpc.AckMessage(request)


async def test_what_was_not_acknowledged_comes_again(
    cluster: EmbeddedCluster, admin: AdminClient, tmp_path: Path
) -> None:
    topic = await new_topic(admin, queues=2)
    port = free_port()
    server = start(tmp_path, cluster.name_server, port)
    await ready(server)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        rpc = Rpc(channel, "client")
        consumer = Consumer(rpc, topic)
        # The group begins at the end of its queues.
        await consumer.receive()
        consuming = [asyncio.ensure_future(consumer.run()) for _ in range(4)]
        for third in range(3):
            async with Producer(cluster.name_server, "test") as producer:
                for n in range(PART):
                    await producer.send(Message(topic, b"%d of %d" % (n, third)))
            if third < 2:
                await until(lambda third=third: len(consumer.received) > third * PART + PART // 4)
                os.kill(server.pid, signal.SIGKILL)
                server.stop()
                server = start(tmp_path, cluster.name_server, port)
                await ready(server)
        await until(lambda: len(consumer.received) == 3 * PART, timeout_s=60)
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
    server.stop()
