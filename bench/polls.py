"""Long polls: one client has thousands of pending pulls, as many idle consumers would have."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

from measures import Figures, Measure, alternate
from systems import Cluster, resident_mib

from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.headers.send import SendMessageRequestHeaderV2
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection

_QUEUES_PER_TOPIC = 8
#: Longest wait of Java's consumers (`DefaultMQPushConsumer.brokerSuspendMaxTimeMillis`) before they pull again.
_SUSPEND_MS = 15_000
#: Two rounds of pulls.
IDLE_S = 30.0
_ARRIVALS = 200


class Polls:
    """Keeps one pull pending for every queue. Records the arrival times of messages."""

    def __init__(self, connection: Connection, queues: Sequence[tuple[str, int]]) -> None:
        self._connection = connection
        self._queues = queues
        self._offsets: dict[tuple[str, int], int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.arrived: asyncio.Queue[tuple[tuple[str, int], float]] = asyncio.Queue()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._poll(*queue)) for queue in self._queues]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def check(self) -> None:
        """Raises the exception that ended one of the pulls."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _poll(self, topic: str, queue_id: int) -> None:
        offset = 0
        while True:
            header = PullMessageRequestHeader(
                consumer_group="polls",
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=PULL_SUBSCRIPTION | PULL_SUSPEND,
                commit_offset=0,
                suspend_timeout_millis=_SUSPEND_MS,
                sub_version=0,
                subscription="*",
                expression_type="TAG",
            )
            request = RemotingCommand.request(RequestCode.PULL_MESSAGE, header)
            response = await self._connection.invoke(request, 2 * _SUSPEND_MS)
            if response.code == ResponseCode.SUCCESS:
                self.arrived.put_nowait(((topic, queue_id), time.perf_counter()))
            elif response.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
                raise RuntimeError(f"pull of {topic}-{queue_id}: {response.code} {response.remark}")
            offset = int(response.ext_fields["nextBeginOffset"])


def polls(clusters: Sequence[Cluster], args: argparse.Namespace) -> list[Measure]:
    """Measures the broker's CPU time and memory with pending pulls, and the time from a send to the pull's response."""
    count = -(-args.polls // _QUEUES_PER_TOPIC)
    topics = [f"polls{i}" for i in range(count)]
    for cluster in clusters:
        cluster.make_topics(topics, _QUEUES_PER_TOPIC)
    queues = [(topic, queue_id) for topic in topics for queue_id in range(_QUEUES_PER_TOPIC)][: args.polls]
    return alternate(
        clusters, args, f"{args.polls:,} waiting pulls", lambda cluster, _: asyncio.run(_run(cluster, queues))
    )


async def _run(cluster: Cluster, queues: Sequence[tuple[str, int]]) -> Figures:
    client, sending_client = RemotingClient(), RemotingClient()
    polls = Polls(await client.connection(cluster.broker.address), queues)
    sender = await sending_client.connection(cluster.broker.address)
    polls.start()
    try:
        # After the first round, each queue was pulled once, and the load is steady.
        await asyncio.sleep(_SUSPEND_MS / 1000)
        polls.check()
        while not polls.arrived.empty():
            polls.arrived.get_nowait()
        before = cluster.cpu_seconds()
        await asyncio.sleep(IDLE_S)
        cpu_s = cluster.cpu_seconds() - before
        polls.check()
        latencies = [await _arrival(polls, sender, queue) for queue in queues[:: max(len(queues) // _ARRIVALS, 1)]]
        memory = resident_mib(cluster.broker.process.pid)
    finally:
        await polls.stop()
        await client.close()
        await sending_client.close()
    return {
        # Memory comes first, because it decides whether the system is warm. The small CPU figures never become steady.
        ("broker memory", "MiB"): memory,
        ("broker CPU", "% of a processor"): cpu_s / IDLE_S * 100,
        ("send to answered pull, median", "ms"): statistics.median(latencies) * 1000,
        ("send to answered pull, p99", "ms"): sorted(latencies)[int(len(latencies) * 0.99)] * 1000,
    }


async def _arrival(polls: Polls, sender: Connection, queue: tuple[str, int]) -> float:
    topic, queue_id = queue
    header = SendMessageRequestHeaderV2(
        producer_group="polls",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties="",
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=0,
        batch=False,
        broker_name="broker-a",
    )
    began = time.perf_counter()
    response = await sender.invoke(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"x" * 128), 10_000)
    if response.code:
        raise RuntimeError(f"send to {topic}-{queue_id}: {response.code} {response.remark}")
    # A pull between two rounds gets its message at once, and is measured like the others.
    while True:
        arrived, at = await asyncio.wait_for(polls.arrived.get(), 30)
        if arrived == queue:
            return at - began
