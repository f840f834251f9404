"""A proxy with gRPC clients. It can restart while they send and receive."""

from __future__ import annotations

import asyncio
from contextvars import Context

from gantrymq.errors import GantryError
from sim import access_control
from sim.cluster import Program
from sim.history import Received, Sent
from sim.plan import FAULTS_S
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC, _GROUP = "grpc-orders", "grpc-workers"
_MESSAGES, _PAUSE_S, _RECEIVERS = 60, 1.2, 2
_PORT, _REMOTING_PORT = 8081, 8080
#: Timeout of a call, long-polling time and invisible duration, in seconds.
_CALL_S, _POLL_S, _INVISIBLE_S = 10.0, 5.0, 20


class Proxies(Workload):
    """One proxy, a gRPC producer and two gRPC consumers of a group."""

    network = 40
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self.add("proxy", self._serve)
        self._proxy = self.programs[0]
        self._address = f"{self._proxy.host.address}:{_PORT}"
        self.add("grpc-producer", self._send)
        for number in range(_RECEIVERS):
            self.add(f"grpc-worker-{number}", self._receive)
        scene.reads[_GROUP] = _TOPIC

    async def _serve(self, program: Program) -> None:
        # Imported here, because most runs have no proxy.
        from gantrymq.client.credentials import rpc_hooks
        from gantrymq.proxy.config import ProxyConfig
        from gantrymq.proxy.proxy import Proxy

        if not self._is_made.is_set():
            await self.make_topic(program, _TOPIC, 2, {"message.type": "NORMAL"})
        config = ProxyConfig(
            namesrv_addr=self.scene.names,
            bind_address=program.host.address,
            grpc_server_port=_PORT,
            remoting_listen_port=_REMOTING_PORT,
            tls_test_mode_enable=False,
        )
        proxy = Proxy(config, hooks=rpc_hooks(access_control.credentials()))
        await proxy.start()
        if not self._is_made.is_set() and self.has_faults:
            self._restart_later(program)
        self._is_made.set()
        assert program.ending is not None
        await program.ending.wait()
        await proxy.stop()

    def _restart_later(self, program: Program) -> None:
        """Kills the proxy once, or ends it in order, and starts it again."""
        loop, is_killed = self.scene.world.loop, self.chance.random() < 0.5
        clients = [client for client in self.programs if client is not program]

        def stop() -> None:
            self.scene.history.note(self.scene.now(), f"the proxy is {'killed' if is_killed else 'ended'}")
            if is_killed and program.host.process is not None:
                program.host.process.kill()
            elif program.ending is not None:
                program.ending.set()
            loop.call_later(12.0, start, context=Context())

        def start() -> None:
            # If the clients were stopped meanwhile, nothing would end the new process.
            if not any(client.is_ending for client in clients):
                program.start()

        loop.call_later(self.chance.uniform(10, FAULTS_S), stop, context=Context())

    async def _send(self, program: Program) -> None:
        from gantrymq.proxy.v2 import definition_pb2 as pb
        from gantrymq.proxy.v2 import service_pb2 as rpc
        from sim.grpc_client import GrpcClient, check

        await self._is_made.wait()
        number = 0
        while number < _MESSAGES:
            try:
                async with GrpcClient(self._address, timeout_s=_CALL_S) as client:
                    while number < _MESSAGES:
                        name = f"{program.name}.{number}"
                        number += 1
                        system = pb.SystemProperties(message_id=f"01{number:030X}", message_type=pb.NORMAL)
                        topic = pb.Resource(name=_TOPIC)
                        message = pb.Message(topic=topic, body=name.encode(), system_properties=system)
                        self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
                        found = await client.responses("SendMessage", rpc.SendMessageRequest(messages=[message]))
                        check(found[0].status, self._address)
                        self.scene.stored(name)
                        await asyncio.sleep(self.chance.uniform(0, 2 * _PAUSE_S))
            except GantryError as e:
                self.scene.history.fail(self.scene.now(), program.name, e)
                await asyncio.sleep(AGAIN_S)
        self.has_sent = True

    async def _receive(self, program: Program) -> None:
        from gantrymq.proxy.v2 import definition_pb2 as pb
        from gantrymq.proxy.v2 import service_pb2 as rpc
        from sim.grpc_client import GrpcClient, check

        await self._is_made.wait()
        topic, group = pb.Resource(name=_TOPIC), pb.Resource(name=_GROUP)
        request = rpc.ReceiveMessageRequest(
            group=group,
            message_queue=pb.MessageQueue(topic=topic),
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            batch_size=8,
        )
        request.invisible_duration.FromSeconds(_INVISIBLE_S)
        request.long_polling_timeout.FromSeconds(int(_POLL_S))
        assert program.ending is not None
        while not program.ending.is_set():
            try:
                async with GrpcClient(self._address, timeout_s=_CALL_S) as client:
                    while not program.ending.is_set():
                        found = await client.responses("ReceiveMessage", request)
                        status = next(one.status for one in found if one.HasField("status"))
                        if status.code == pb.MESSAGE_NOT_FOUND:
                            continue
                        if status.code == pb.TOO_MANY_REQUESTS:
                            # The broker has enough waiting pops: the workload `configurations` sets a low limit.
                            await asyncio.sleep(AGAIN_S)
                            continue
                        check(status, self._address)
                        for one in [response.message for response in found if response.HasField("message")]:
                            system = one.system_properties
                            place = "", system.queue_id, system.queue_offset
                            self.scene.record(
                                Received(one.body.decode(), _GROUP, self.scene.now(), program.name, *place)
                            )
                            entry = rpc.AckMessageEntry(
                                message_id=system.message_id, receipt_handle=system.receipt_handle
                            )
                            ack = rpc.AckMessageRequest(group=group, topic=topic, entries=[entry])
                            check((await client.responses("AckMessage", ack))[0].status, self._address)
            except GantryError as e:
                if program.is_ending:
                    # The proxy ends at the same time.
                    return
                self.scene.history.fail(self.scene.now(), program.name, e)
                await asyncio.sleep(AGAIN_S)
