"""Load for scale.py: plain requests over several connections, encoded by this project's client.

The cost of this module is the client's and is not counted. A rejected request ends the run.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from gantrymq.client.producing.send_command import send_command
from gantrymq.protocol.batch import encode_batch
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.offset import UpdateConsumerOffsetRequestHeader
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.properties import encode_properties
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.remoting.connection import Connection

UNDER_WAY = 32
#: Number of messages per pull of Apache's consumers, and their longest wait in milliseconds.
PULLED = 32
SUSPEND_MS = 15_000
GROUP = "scale"
_TIMEOUT_MS = 60_000
_BATCH = 1000
_BATCHES_UNDER_WAY = 4
_PULL = int(RequestCode.PULL_MESSAGE)


def queues_of(topics: Sequence[str], queues: int) -> list[MessageQueue]:
    """Returns queue 0 of every topic, then queue 1 of every topic, and so on."""
    return [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(queues) for topic in topics]


async def connect(address: str, count: int = 1) -> list[Connection]:
    host, port = address.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    # Ignores notifications of changed group members.
    handlers = {int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED): lambda connection, request: None}
    connections = []
    for _ in range(count):
        sock = socket.create_connection((host, int(port)))
        _, connection = await loop.create_connection(lambda: Connection(handlers), sock=sock)
        connections.append(connection)
    return connections


async def ask_all(
    connections: Sequence[Connection],
    requests: Iterator[RemotingCommand],
    under_way: int = UNDER_WAY,
    read: Callable[[RemotingCommand], int] = lambda answer: len(answer.body),
) -> list[int]:
    """Sends the requests over the connections in turn, `under_way` at a time. Returns `read` of each response.

    Raises RuntimeError if a request is rejected.
    """
    numbered = enumerate(requests)
    found: list[int] = []

    async def work() -> None:
        for number, request in numbered:
            answer = await connections[number % len(connections)].invoke(request, _TIMEOUT_MS)
            if answer.code:
                raise RuntimeError(f"request {request.code} was answered {answer.code}: {answer.remark}")
            found.append(read(answer))

    await asyncio.gather(*(work() for _ in range(under_way)))
    return found


async def send(
    connections: Sequence[Connection],
    queues: Sequence[MessageQueue],
    count: int,
    size: int = 128,
    under_way: int = UNDER_WAY,
) -> None:
    """Sends single messages to the queues in turn."""
    body = bytes(size)

    def requests() -> Iterator[RemotingCommand]:
        for number in range(count):
            yield send_command(
                GROUP, queues[number % len(queues)], body, _properties(number), time.time_ns() // 1_000_000
            )

    await ask_all(connections, requests(), under_way)


async def fill(connections: Sequence[Connection], queues: Sequence[MessageQueue], first: int, count: int) -> None:
    """Sends messages of 128 B with unique keys in batches, numbered from `first` on."""
    body = bytes(128)

    def requests() -> Iterator[RemotingCommand]:
        for at in range(first, first + count, _BATCH):
            queue = queues[at // _BATCH % len(queues)]
            numbers = range(at, min(at + _BATCH, first + count))
            batch = encode_batch((0, body, _properties(number)) for number in numbers)
            yield send_command(GROUP, queue, batch, b"", time.time_ns() // 1_000_000, batch=True)

    await ask_all(connections, requests(), _BATCHES_UNDER_WAY)


def unique_key(number: int) -> str:
    return f"{number:032X}"


def _properties(number: int) -> bytes:
    return encode_properties({"UNIQ_KEY": unique_key(number), "WAIT": "true"})


async def pull(
    connections: Sequence[Connection], places: Iterable[tuple[MessageQueue, int]], under_way: int = UNDER_WAY
) -> int:
    """Pulls from these (queue, offset) positions. Returns the number of messages found."""
    requests = (pull_request(queue, offset) for queue, offset in places)
    return sum(await ask_all(connections, requests, under_way, _found))


def pull_request(queue: MessageQueue, offset: int, *, suspend: bool = False, group: str = GROUP) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=PULLED,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend else 0),
        commit_offset=0,
        suspend_timeout_millis=SUSPEND_MS,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return _binary(RemotingCommand.request(_PULL, header))


def _found(answer: RemotingCommand) -> int:
    count = at = 0
    body = memoryview(answer.body)
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        count += 1
    return count


def heartbeat(client_id: str, groups: Sequence[str], topic: str) -> RemotingCommand:
    """Returns the heartbeat of a consumer in all these groups, each subscribed to the topic."""
    subscription = SubscriptionData(topic, sub_version=1)
    consumers = [ConsumerData(group, subscription_data_set=[subscription]) for group in groups]
    body = encode_json(HeartbeatData(client_id, consumer_data_set=consumers))
    return _binary(RemotingCommand.request(RequestCode.HEART_BEAT, body=body))


def commit(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return _binary(RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))


def _binary(request: RemotingCommand) -> RemotingCommand:
    """Selects the binary header, as all clients of this project do."""
    request.serialize_type = SerializeType.ROCKETMQ
    return request


async def close(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.close()
    # Lets the servers process the close before the next measurement.
    await asyncio.sleep(0)
