"""Tests of `gantry mirror` with killed, stopped and hung processes, and with topics that are created again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mirror_support import Side, both, create, messages, mirror_once, name_server
from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import NoRouteInfo
from gantrymq.mirror import Mirror, MirrorOptions
from gantrymq.mirror.cluster import Cluster
from gantrymq.protocol.message import Message, MessageQueue
from gantrymq.protocol.properties import UNIQUE_KEY
from gantrymq.testing.embedded import EmbeddedCluster
from gantrymq.testing.processes import ProcessCluster, ServerProcess

COUNT = 200


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="east") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(broker_cluster_name="west") as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return request.node.name.replace("[", "-").replace("]", "")


@pytest.fixture
def queue(topic: str) -> MessageQueue:
    return MessageQueue(topic, "broker-a", 0)


async def send_numbers(cluster: Side, queue: MessageQueue, numbers: range) -> None:
    """Sends numbers in order, in one request."""
    async with Producer(name_server(cluster), "test") as producer:
        await producer.send_batch([Message(queue.topic, b"%06d" % number) for number in numbers], queue=queue)


async def numbers(cluster: Side, queue: MessageQueue) -> list[int]:
    """Returns the messages of a queue. The list is empty if the topic does not exist."""
    async with AdminClient(name_server(cluster)) as admin:
        try:
            begin, end = await Cluster(admin).bounds(queue)
        except NoRouteInfo:
            return []
        return [int(message.body) async for message in admin.messages_of_queue(queue, begin, end)]


@contextmanager
def command(source: str, target: str, topic: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `gantry mirror` in a process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gantrymq.cli", "mirror", "--from", source, "--to", target, "--topics", topic, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def copied(process: subprocess.Popen[str], target: Side, queue: MessageQueue) -> Callable[[], Awaitable[bool]]:
    """Returns a condition: the target has a copy. It fails if the process has ended."""

    async def is_reached() -> bool:
        assert process.poll() is None, process.communicate()
        return bool(await numbers(target, queue))

    return is_reached


# -- the command ------------------------------------------------------------------------------------------------


async def test_sigkill_while_it_copies(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(COUNT))
    # The rate makes the kill come in the middle. No state is stored in the first 5 s.
    with command(source.name_server, target.name_server, topic, "--rate", "40") as process:
        await until(copied(process, target, queue), 60.0)
        process.send_signal(signal.SIGKILL)
        assert process.wait(10.0) == -signal.SIGKILL
    assert len(await numbers(target, queue)) < COUNT
    with command(source.name_server, target.name_server, topic, "--once", "--json") as process:
        out, err = await asyncio.to_thread(process.communicate, timeout=60.0)
        assert process.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["lag"] == 0
    assert await numbers(target, queue) == list(range(COUNT))


@pytest.mark.parametrize(
    ("number", "options", "exit_code"),
    [
        pytest.param(signal.SIGINT, [], 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, [], 0, id="sigterm"),
        pytest.param(signal.SIGTERM, ["--once"], 143, id="sigterm-once"),
    ],
)
async def test_a_signal_stops_it_and_stores_the_positions(
    source: EmbeddedCluster,
    target: EmbeddedCluster,
    topic: str,
    queue: MessageQueue,
    number: signal.Signals,
    options: list[str],
    exit_code: int,
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(COUNT))
    state_topic = f"state-{topic}"
    with command(
        source.name_server,
        target.name_server,
        topic,
        *("--rate", "40", "--json", "--state-topic", state_topic, *options),
    ) as process:
        await until(copied(process, target, queue), 60.0)
        process.send_signal(number)
        out, err = await asyncio.to_thread(process.communicate, timeout=30.0)
    assert (process.returncode, "Traceback" in err) == (exit_code, False), err
    last = json.loads(out.splitlines()[-1])
    assert 0 < last["copied"] < COUNT
    async with AdminClient(target.name_server) as admin:
        assert await Cluster(admin).bounds(MessageQueue(state_topic, "broker-a", 0)) >= (0, 1)
    await mirror_once(source, target, topic, state_topic=state_topic)
    assert await numbers(target, queue) == list(range(COUNT))


async def test_a_closed_output_ends_it(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(3))
    with command(source.name_server, target.name_server, topic, "--json") as process:
        assert process.stdout is not None
        # As `| head -n 1`.
        assert json.loads(await asyncio.to_thread(process.stdout.readline))["queues"] == 1
        process.stdout.close()
        assert await asyncio.to_thread(process.wait, 60.0) == 1
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


# -- brokers ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(source: Side, target: Side, topic: str, **options: Any) -> AsyncIterator[Mirror]:
    """Runs a mirror whose requests have a short timeout."""
    async with both(source, target, timeout=1.0) as sides:
        mirror = Mirror(*sides, MirrorOptions(topics=[topic], **options))
        stop = asyncio.Event()
        task = asyncio.create_task(mirror.run(stop))
        try:
            yield mirror
        finally:
            stop.set()
            await task


@contextmanager
def hung(server: ServerProcess) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def test_a_hung_target_broker(source: EmbeddedCluster, tmp_path: Path, topic: str, queue: MessageQueue) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(COUNT))
    with ProcessCluster(tmp_path, broker_properties={"brokerClusterName": "west"}) as target:
        async with running(source, target, topic, rate=100) as mirror:
            await until(lambda: mirror.progress.copied > 0)
            with hung(target.brokers[0]):
                [failed] = await until(lambda: mirror.progress.failed)
            assert failed[:3] == queue
            # Less than the 15 s for which a pull waits for a message.
            await until(lambda: mirror.progress.lag == 0 and not mirror.progress.failed, 12.0)
        found = await numbers(target, queue)
    # The broker can store a request of the pause after the search. A request has the messages of one second at most.
    assert list(dict.fromkeys(found)) == list(range(COUNT))
    assert len(found) <= COUNT + 100


async def test_a_killed_target_broker(source: EmbeddedCluster, tmp_path: Path, topic: str, queue: MessageQueue) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(COUNT))
    with ProcessCluster(tmp_path, broker_properties={"brokerClusterName": "west"}) as target:
        async with running(source, target, topic, rate=100) as mirror:
            await until(lambda: mirror.progress.copied > 0)
            target.brokers[0].kill()
            await until(lambda: mirror.progress.failed)
            await until(lambda: not target.brokers[0].is_running)
            target.brokers[0].restart()
            await until(lambda: mirror.progress.lag == 0 and not mirror.progress.failed, 60.0)
        assert await numbers(target, queue) == list(range(COUNT))


async def test_a_hung_source_broker_does_not_delay_the_others(
    target: EmbeddedCluster, tmp_path: Path, topic: str
) -> None:
    queues = [MessageQueue(topic, broker, 0) for broker in ("broker-a", "broker-b")]
    with ProcessCluster(tmp_path, brokers=2, broker_properties={"brokerClusterName": "east"}) as source:
        await create(source, topic, 1)
        for queue in queues:
            await send_numbers(source, queue, range(3))
        # The topic exists on the target, so that the next start needs no answer of the hung broker.
        await create(target, topic, 1)
        with hung(source.brokers[1]):
            async with running(source, target, topic) as mirror:
                [failed] = await until(lambda: mirror.progress.failed)
                await until(lambda: mirror.progress.copied == 3)
        assert failed[:3] == (topic, "broker-b", 0)
        await mirror_once(source, target, topic)
    assert sorted(await numbers(target, queues[0])) == [0, 0, 1, 1, 2, 2]


# -- topics that are created again --------------------------------------------------------------------------------


async def delete(cluster: EmbeddedCluster, topic: str, name: str) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.delete_topic(topic, name)

        async def is_deleted() -> bool:
            return topic not in await admin.topic_list()

        await until(is_deleted)


@pytest.mark.parametrize("count", [3, 20], ids=["shorter", "longer"])
async def test_a_source_topic_that_is_created_again(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue, count: int
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(10))
    await mirror_once(source, target, topic)
    await delete(source, topic, "east")
    await create(source, topic, 1)
    await send_numbers(source, queue, range(100, 100 + count))
    assert (await mirror_once(source, target, topic)).copied == count
    assert await numbers(target, queue) == [*range(10), *range(100, 100 + count)]
    assert (await mirror_once(source, target, topic)).copied == 0


async def test_a_source_topic_that_is_created_again_while_it_is_copied(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(10))
    async with running(source, target, topic) as mirror:
        await until(lambda: mirror.progress.copied == 10)
        await delete(source, topic, "east")
        await create(source, topic, 1)
        await send_numbers(source, queue, range(100, 103))
        await until(lambda: mirror.progress.copied == 13, 60.0)
    assert await numbers(target, queue) == [*range(10), *range(100, 103)]


async def test_a_target_topic_that_is_created_again(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(10))
    await mirror_once(source, target, topic)
    await delete(target, topic, "west")
    assert (await mirror_once(source, target, topic)).copied == 10
    assert await numbers(target, queue) == list(range(10))


async def test_a_target_topic_that_is_created_again_while_it_is_copied(
    source: EmbeddedCluster, target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    await create(source, topic, 1)
    await send_numbers(source, queue, range(10))
    async with running(source, target, topic) as mirror:
        await until(lambda: mirror.progress.copied == 10)
        # The mirror waits for messages of the source, so no request of it fails.
        await delete(target, topic, "west")
        await create(target, topic, 1)
        await send_numbers(source, queue, range(10, 12))

        async def has_all() -> bool:
            return set(await numbers(target, queue)) == set(range(12))

        await until(has_all, 60.0)


async def test_a_source_that_has_lost_its_newest_messages(
    target: EmbeddedCluster, topic: str, queue: MessageQueue
) -> None:
    # Copies of the lost messages 10 to 12, as after the failover to a slave.
    with EmbeddedCluster(broker_cluster_name="lost") as before:
        await create(before, topic, 1)
        await send_numbers(before, queue, range(13))
        await mirror_once(before, target, topic)
        sent = await messages(before, topic)
    with EmbeddedCluster(broker_cluster_name="lost") as after:
        await create(after, topic, 1)
        async with Producer(after.name_server, "test") as producer:
            for message in sent[:10]:
                properties = {UNIQUE_KEY: message.msg_id}
                await producer.send(Message(topic, message.body, properties=properties), queue=queue)
        await send_numbers(after, queue, range(100, 105))
        await mirror_once(after, target, topic)
    assert await numbers(target, queue) == [*range(13), *range(100, 105)]
