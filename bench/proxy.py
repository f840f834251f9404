"""Apache's proxy and this project's before the same broker, in turn on one machine; prints a Markdown table.

A gRPC client sends messages in parallel. Then it receives them and acknowledges each one by its own call. The broker
is this project's for both, so only the proxies differ.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from result_files import add_out, recorded

sys.path.insert(0, str(Path(__file__).parent.parent / "interop"))

from measures import figure, progress
from proxies import gantry_proxy, java_proxy
from servers import Server, build, gantry_broker, gantry_namesrv, missing_tools
from systems import cpu_seconds, resident_mib

from gantrymq.client.admin.client import AdminClient
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.proxy.call import METHODS
from gantrymq.proxy.times import to_duration
from gantrymq.proxy.v2 import definition_pb2 as pb
from gantrymq.proxy.v2 import service_pb2 as rpc_pb

StartProxy = Callable[[Path, str], Server]
PROXIES: dict[str, StartProxy] = {"Java": java_proxy, "GantryMQ": gantry_proxy}
QUEUES = 8
RECEIVERS = 8
INVISIBLE_MS = 60_000
FIRST_ANSWER_S = 60.0


class Client:
    """One client of a proxy, registered with its settings."""

    def __init__(self, address: str, settings: pb.Settings) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._id = f"bench@{uuid.uuid4().hex}"
        self._settings = settings
        self._calls: dict[str, Any] = {}
        for path, method in METHODS.items():
            kind = f"{'stream' if method.client_streams else 'unary'}_{'stream' if method.server_streams else 'unary'}"
            self._calls[method.name] = getattr(self._channel, kind)(
                path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )

    def call(self, method: str, *request: Any) -> Any:
        metadata = (
            ("x-mq-client-id", self._id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.0.8"),
            ("x-mq-protocol", "v2"),
        )
        return self._calls[method](*request, metadata=metadata, timeout=30)

    async def __aenter__(self) -> Client:
        self._stream = self.call("Telemetry")
        await self._stream.write(rpc_pb.TelemetryCommand(settings=self._settings))
        await self._stream.read()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.cancel()
        await self._channel.close()


class Load:
    """Sends and receives of one client on one topic."""

    def __init__(self, address: str, topic: str, size: int, at_once: int) -> None:
        self._address = address
        self._topic = pb.Resource(name=topic)
        self._group = pb.Resource(name=f"g_{topic}")
        self._body = b"x" * size
        self._at_once = at_once

    async def sends(self, count: int) -> list[float]:
        """Sends messages. Returns the time of each send in seconds."""
        settings = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[self._topic]))
        numbers = iter(range(count))
        took: list[float] = []
        async with Client(self._address, settings) as client:

            async def send() -> None:
                for _ in numbers:
                    system = pb.SystemProperties(message_id=uuid.uuid4().hex.upper(), message_type=pb.NORMAL)
                    message = pb.Message(topic=self._topic, body=self._body, system_properties=system)
                    began = time.perf_counter()
                    response = await client.call("SendMessage", rpc_pb.SendMessageRequest(messages=[message]))
                    took.append(time.perf_counter() - began)
                    assert response.status.code == pb.OK, response.status

            await asyncio.gather(*(send() for _ in range(self._at_once)))
        return took

    async def receives(self, count: int) -> list[float]:
        """Receives messages and acknowledges each by its own call.

        Returns the times of the acknowledgements in seconds.

        With `count` 0, it only starts the group at the end of the queues.
        """
        subscription = pb.Subscription(group=self._group, subscriptions=[pb.SubscriptionEntry(topic=self._topic)])
        settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription)
        took: list[float] = []
        async with Client(self._address, settings) as client:

            async def receive() -> None:
                request = rpc_pb.ReceiveMessageRequest(
                    group=self._group,
                    message_queue=pb.MessageQueue(topic=self._topic, id=-1),
                    filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
                    batch_size=32,
                    invisible_duration=to_duration(INVISIBLE_MS),
                    long_polling_timeout=to_duration(1000),
                )
                while True:
                    responses = [response async for response in client.call("ReceiveMessage", request)]
                    messages = [response.message for response in responses if response.HasField("message")]
                    await asyncio.gather(*(ack(message) for message in messages))
                    if len(took) >= count:
                        return

            async def ack(message: pb.Message) -> None:
                system = message.system_properties
                entry = rpc_pb.AckMessageEntry(message_id=system.message_id, receipt_handle=system.receipt_handle)
                request = rpc_pb.AckMessageRequest(group=self._group, topic=self._topic, entries=[entry])
                began = time.perf_counter()
                response = await client.call("AckMessage", request)
                took.append(time.perf_counter() - began)
                assert response.status.code == pb.OK, response.status

            tasks = [asyncio.create_task(receive()) for _ in range(RECEIVERS if count else 1)]
            # The other receivers wait for messages that do not exist.
            done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            for task in done:
                task.result()
        return took


async def first_answer(address: str, topic: str) -> None:
    """Waits until the proxy responds to a call. Raises RuntimeError after a timeout."""
    deadline = time.monotonic() + FIRST_ANSWER_S
    client = Client(address, pb.Settings())
    # Apache's proxy rejects endpoints without a scheme.
    endpoints = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=1)])
    request = rpc_pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints)
    answer: object = None
    while True:
        try:
            answer = (await client.call("QueryRoute", request)).status
            if answer.code == pb.OK:
                break
        except grpc.aio.AioRpcError as e:
            answer = e
        if time.monotonic() > deadline:
            raise RuntimeError(f"{address} answers {answer}")
        await asyncio.sleep(0.01)
    await client._channel.close()


def measure(
    runner: asyncio.Runner, proxy: Server, broker: Server, name_server: str, args: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    """Runs one round. Yields (row, figure)."""

    def cpu() -> tuple[float, float]:
        return cpu_seconds(proxy.process.pid), cpu_seconds(broker.process.pid)

    topic = f"bench_{uuid.uuid4().hex[:8]}"
    runner.run(create(name_server, topic))
    load = Load(proxy.address, topic, args.size, args.at_once)
    runner.run(load.receives(0))
    for what, work in (
        ("sends", lambda: runner.run(load.sends(args.count))),
        ("received and acknowledged", lambda: runner.run(load.receives(args.count))),
    ):
        before, began = cpu(), time.perf_counter()
        took = work()
        seconds, after = time.perf_counter() - began, cpu()
        yield f"{what}/s", args.count / seconds
        call = "sending" if what == "sends" else "acknowledging"
        yield f"{call}: median (ms)", 1000 * statistics.median(took)
        yield f"{call}: p99 (ms)", 1000 * statistics.quantiles(took, n=100)[98]
        used = [1e6 * (then - now) / args.count for then, now in zip(after, before, strict=True)]
        yield f"{what}: CPU of the proxy (µs per message)", used[0]
        yield f"{what}: CPU of the broker (µs per message)", used[1]
        yield f"{what}: CPU of both (µs per message)", sum(used)
    yield "memory after it (MiB)", resident_mib(proxy.process.pid)


async def create(name_server: str, topic: str) -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TopicConfig(topic, QUEUES, QUEUES), cluster="DefaultCluster")
        # Apache's proxy rejects the settings of an unknown group.
        await admin.create_group(SubscriptionGroupConfig(f"g_{topic}"), cluster="DefaultCluster")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--count", type=int, default=10_000, help="messages of one round (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=10_000, help="messages before, of each (%(default)s)")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a body (%(default)s)")
    parser.add_argument("--at-once", type=int, default=64, help="sends under way (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each proxy, in turn (%(default)s)")
    parser.add_argument("--other-version", type=Path, help="src of another version, whose proxy is measured, too")
    add_out(parser)
    args = parser.parse_args()
    started = dict(PROXIES)
    if args.other_version is not None:
        started["other version"] = partial(gantry_proxy, source=args.other_version.resolve())
    if missing := missing_tools():
        print(f"bench: {missing}", file=sys.stderr)
        return 1
    build()
    with recorded(args, "bench/proxy.py"):
        measure_all(started, args)
    return 0


def measure_all(started: Mapping[str, Callable[..., Server]], args: argparse.Namespace) -> None:
    """Measures the proxies in turn, and prints the results."""
    rows: dict[str, dict[str, list[float]]] = {}

    def note(row: str, name: str, value: float) -> None:
        rows.setdefault(row, {}).setdefault(name, []).append(value)

    # All clients share one loop, because grpcio does not support several.
    with asyncio.Runner() as runner, ExitStack() as stack, tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        name_server = gantry_namesrv(directory / "namesrv")
        stack.callback(name_server.kill)
        broker = gantry_broker(directory / "broker", name_server.address)
        stack.callback(broker.kill)
        runner.run(create(name_server.address, "first"))
        proxies: dict[str, Server] = {}
        for name, start in started.items():
            progress(f"{name}: start")
            began = time.perf_counter()
            proxies[name] = start(directory / name, name_server.address)
            stack.callback(proxies[name].kill)
            runner.run(first_answer(proxies[name].address, "first"))
            note("start to first answer (s)", name, time.perf_counter() - began)
            time.sleep(5)
            note("idle memory (MiB)", name, resident_mib(proxies[name].process.pid))
        warm_up = argparse.Namespace(**{**vars(args), "count": args.warm_up})
        for number in range(args.rounds + 1):
            for name, proxy in proxies.items():
                progress(f"{name}: {f'round {number}' if number else 'warm-up'}")
                for row, value in measure(runner, proxy, broker, name_server.address, args if number else warm_up):
                    if number:
                        note(row, name, value)
    print(
        f"{args.count:,} messages of {args.size:,} bytes, {args.at_once} sends and {RECEIVERS} receives at once, each "
        f"message acknowledged by itself; the median of {args.rounds} rounds, after {args.warm_up:,} messages.\n"
    )
    print(f"| | {' | '.join(started)} |\n|---|{'---|' * len(started)}")
    for row, values in rows.items():
        print(f"| {row} | {' | '.join(figure(statistics.median(values[name])) for name in started)} |")


if __name__ == "__main__":
    raise SystemExit(main())
