"""Tests `stream_topic`: new messages, positions, timeouts, and queues that lost messages."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pyarrow as pa
import pytest
from wait_until import until

from gantrymq.arrow import TopicStream, stream_topic, write_topic
from gantrymq.arrow.topic_stream import COMMIT_INTERVAL_S, ROUND_ROWS
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import ClientError, ConfigError, DataLost
from gantrymq.testing.embedded import EmbeddedCluster


def write(cluster: EmbeddedCluster, topic: str, numbers: range) -> None:
    write_topic(
        cluster.name_server,
        topic,
        pa.table({"body": [str(n) for n in numbers], "tags": ["Odd" if n % 2 else "Even" for n in numbers]}),
    )


async def read(stream: TopicStream, count: int) -> list[int]:
    """Returns the sorted numbers of the next `count` messages."""
    found: list[int] = []
    while len(found) < count:
        found += map(int, (await anext(stream)).column("body").to_pylist())
    return sorted(found)


def test_a_stream_gets_new_messages_and_continues_from_its_position(cluster: EmbeddedCluster) -> None:
    async def run() -> None:
        await asyncio.to_thread(write, cluster, "stream", range(100))
        async with stream_topic(cluster.name_server, "stream", start="earliest", columns=["body"]) as stream:
            assert stream.position is None
            assert await read(stream, 100) == list(range(100))
            await asyncio.to_thread(write, cluster, "stream", range(100, 120))
            assert await read(stream, 20) == list(range(100, 120))
            position = json.loads(json.dumps(stream.position))
        await asyncio.to_thread(write, cluster, "stream", range(120, 130))
        odd = [("tags", "=", "Odd")]
        async with stream_topic(
            cluster.name_server, "stream", start="earliest", position=position, columns=["body"], filter=odd
        ) as stream:
            assert await read(stream, 5) == list(range(121, 130, 2))

    asyncio.run(run())


def test_a_stream_begins_at_the_end(cluster: EmbeddedCluster) -> None:
    async def run() -> None:
        await asyncio.to_thread(write, cluster, "stream-end", range(10))
        async with stream_topic(cluster.name_server, "stream-end", columns=["body"]) as stream:
            waiting = asyncio.create_task(read(stream, 10))
            await until(lambda: stream.position is not None)
            await asyncio.to_thread(write, cluster, "stream-end", range(10, 20))
            assert await waiting == list(range(10, 20))

    asyncio.run(run())


def test_a_topic_that_was_created_again(cluster: EmbeddedCluster) -> None:
    async def run() -> None:
        await asyncio.to_thread(write, cluster, "stream-again", range(100))
        async with stream_topic(cluster.name_server, "stream-again", start="earliest", columns=["body"]) as stream:
            await read(stream, 100)
            position = stream.position
        async with AdminClient(cluster.name_server) as admin:
            await admin.delete_topic("stream-again", "DefaultCluster")
        await asyncio.to_thread(write, cluster, "stream-again", range(100, 300))
        async with stream_topic(cluster.name_server, "stream-again", position=position) as stream:
            with pytest.raises(DataLost, match="created again"):
                await anext(stream)
        skip = {"failOnDataLoss": "false"}
        async with stream_topic(
            cluster.name_server, "stream-again", position=position, columns=["body"], options=skip
        ) as stream:
            assert await read(stream, 200) == list(range(100, 300))

    asyncio.run(run())


def test_a_stream_with_a_lower_end(cluster: EmbeddedCluster) -> None:
    """With failOnDataLoss=false, it reads each message after the end that the queue has."""

    async def run() -> None:
        await asyncio.to_thread(write, cluster, "stream-lower", range(100))
        async with stream_topic(cluster.name_server, "stream-lower", start="earliest", columns=["body"]) as stream:
            await read(stream, 100)
            position = stream.position
        # As if a crash of the broker had removed messages 100 to 199 of each queue, and all store times were unknown.
        assert position is not None
        ends = {key: end + 100 for key, end in position["stream-lower"].items()}
        ahead = {"stream-lower": ends, "$first": position["$first"], "$began": position["$began"]}
        skip = {"failOnDataLoss": "false"}
        async with stream_topic(
            cluster.name_server, "stream-lower", position=ahead, columns=["body"], options=skip
        ) as stream:
            waiting = asyncio.create_task(read(stream, 50))
            await until(lambda: stream.position is not None and stream.position["stream-lower"] != ends)
            await asyncio.to_thread(write, cluster, "stream-lower", range(100, 150))
            assert await waiting == list(range(100, 150))

    asyncio.run(run())


def test_a_timeout_ends_a_stream(cluster: EmbeddedCluster) -> None:
    async def run() -> None:
        await asyncio.to_thread(write, cluster, "stream-timeout", range(10))
        async with stream_topic(cluster.name_server, "stream-timeout", start="earliest", columns=["body"]) as stream:
            assert await read(stream, 10) == list(range(10))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.2)
            with pytest.raises(ClientError, match="has ended"):
                await anext(stream)
            position = stream.position
        await asyncio.to_thread(write, cluster, "stream-timeout", range(10, 20))
        async with stream_topic(cluster.name_server, "stream-timeout", position=position, columns=["body"]) as stream:
            assert await read(stream, 10) == list(range(10, 20))

    asyncio.run(run())


def test_an_invalid_position(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match=r"position: a dictionary was expected, .* not '\{"):
        stream_topic(cluster.name_server, "stream", position='{"stream": {}}')  # type: ignore[arg-type]


async def committed(admin: AdminClient, cluster: EmbeddedCluster, group: str, queues: int) -> list[int]:
    """Returns the offset that the group has committed in each queue of the topic with its name; 0 without one."""
    found = [await admin.committed_offset(cluster.brokers[0], group, group, queue_id) for queue_id in range(queues)]
    return [offset or 0 for offset in found]


def test_the_queues_of_a_backlog_advance_evenly(cluster: EmbeddedCluster) -> None:
    count = ROUND_ROWS * 6 // 5

    async def run() -> None:
        write_topic(cluster.name_server, "stream-backlog", pa.table({"body": ["a"] * count}))
        async with (
            AdminClient(cluster.name_server) as admin,
            stream_topic(
                cluster.name_server,
                "stream-backlog",
                start="earliest",
                columns=["queueId"],
                options={"consumerGroup": "stream-backlog"},
            ) as stream,
        ):
            rows = 0
            while rows <= ROUND_ROWS:
                rows += (await anext(stream)).num_rows
            assert stream.position is not None
            ends = stream.position["stream-backlog"].values()
            assert min(ends) > count / len(ends) / 2
            assert min(await committed(admin, cluster, "stream-backlog", len(ends))) > 0
            while rows < count:
                rows += (await anext(stream)).num_rows
            assert rows == count

    asyncio.run(run())


def write_three_queues(cluster: EmbeddedCluster, topic: str) -> None:
    """Writes 1,000 messages to each of three queues. A read returns three batches."""
    write_topic(cluster.name_server, topic, pa.table({"body": ["a"] * 3000}))


def test_a_slow_stream_commits_before_the_end_of_its_backlog(cluster: EmbeddedCluster) -> None:
    async def run() -> None:
        write_three_queues(cluster, "stream-slow")
        options = {"consumerGroup": "stream-slow"}
        async with (
            AdminClient(cluster.name_server) as admin,
            stream_topic(cluster.name_server, "stream-slow", start="earliest", options=options) as stream,
        ):
            assert (await anext(stream)).num_rows == 1000
            # Longer than the interval of commits.
            await asyncio.sleep(COMMIT_INTERVAL_S + 0.1)
            assert (await anext(stream)).num_rows == 1000
            assert sum(await committed(admin, cluster, "stream-slow", 8)) == 1000

    asyncio.run(run())


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_a_stream_commits_the_returned_batches(cluster: EmbeddedCluster, fails: bool) -> None:
    topic = f"stream-end-{fails}"

    async def run() -> None:
        write_three_queues(cluster, topic)
        with suppress(InterruptedError):
            async with stream_topic(
                cluster.name_server, topic, start="earliest", options={"consumerGroup": topic}
            ) as stream:
                assert (await anext(stream)).num_rows == 1000
                if fails:
                    raise InterruptedError
        async with AdminClient(cluster.name_server) as admin:
            assert sum(await committed(admin, cluster, topic, 8)) == (0 if fails else 1000)

    asyncio.run(run())
