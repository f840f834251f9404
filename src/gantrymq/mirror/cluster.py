"""Cluster: the requests of a mirror to one of its two clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from gantrymq.client.admin.base import any_address, transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.broker_api import PullResult, PullStatus, SendResult
from gantrymq.client.producing.send_command import send_command
from gantrymq.client.pulled_messages import decode_pulled
from gantrymq.client.routes import read_queues
from gantrymq.errors import BrokerError, BrokerUnavailable
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_TAG, SUBSCRIBE_ALL
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_WRITE
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.compression import MAX_DECOMPRESSED_SIZE
from gantrymq.protocol.headers.pull import PullMessageRequestHeader
from gantrymq.protocol.message import MessageExt, MessageQueue
from gantrymq.protocol.sys_flag import PULL_SUBSCRIPTION, PULL_SUSPEND
from gantrymq.protocol.topic_name import TOOLS_GROUP

#: Producer group of the copies.
PRODUCER_GROUP = "gantry_mirror"
#: Longest time that a broker waits for a new message, and the timeout of such a pull, in ms.
SUSPEND_MS, SUSPEND_TIMEOUT_MS = 15_000, 30_000
#: Largest number of messages and bytes of a pull. Java's brokers return at most 32 messages. Each queue has one pull in
#: memory, so the number of queues limits the bytes.
PULL_MESSAGES, PULL_BYTES = 1024, 1024 * 1024
#: Longest pause between two attempts above a rate limit, in seconds.
_LONGEST_WAIT_S = 10.0


class Pulled(NamedTuple):
    """The messages of a pull, the offset of the next pull, and the end of the queue."""

    messages: list[MessageExt]
    next_offset: int
    end: int


class Bounds(NamedTuple):
    """The first offset of a queue, and the offset of its next new message."""

    begin: int
    end: int


class Cluster:
    """One side of a mirror. Routes are cached until a request fails (`forget_route`)."""

    def __init__(self, admin: AdminClient) -> None:
        self.admin = admin
        self._transport = transport_of(admin)
        self._api = self._transport.api
        self._timeout_ms = self._transport.timeout_ms
        self._routes: dict[str, TopicRouteData] = {}

    def forget_route(self, topic: str) -> None:
        """Makes the next request for the topic request its route again."""
        self._routes.pop(topic, None)

    async def route(self, topic: str) -> TopicRouteData:
        """Returns the route of the topic. Raises NoRouteInfo."""
        route = self._routes.get(topic)
        if route is None:
            route = self._routes[topic] = await self.admin.topic_route(topic)
        return route

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the readable queues of the topic, sorted. Raises NoRouteInfo."""
        return read_queues(topic, await self.route(topic))

    async def cluster_of(self, queue: MessageQueue) -> str:
        """Returns the cluster name of the queue's broker."""
        route = await self.route(queue.topic)
        names = [broker.cluster for broker in route.broker_datas if broker.broker_name == queue.broker_name]
        if not names:
            raise self._unavailable(queue)
        return names[0]

    async def write_queue_nums(self, topic: str) -> dict[str, int]:
        """Returns {broker name: number of writable queues}, sorted by name. Raises NoRouteInfo."""
        route = await self.route(topic)
        return {
            data.broker_name: data.write_queue_nums
            for data in sorted(route.queue_datas, key=lambda data: data.broker_name)
            if data.perm & PERM_WRITE and data.write_queue_nums
        }

    async def address(self, queue: MessageQueue, *, master: bool = False) -> str:
        """Returns HOST:PORT of the queue's master, or of a slave if there is no master. Raises BrokerUnavailable."""
        for broker in (await self.route(queue.topic)).broker_datas:
            if broker.broker_name == queue.broker_name:
                address = broker.master_address if master else any_address(broker)
                if address is not None:
                    return address
        self.forget_route(queue.topic)
        raise self._unavailable(queue)

    def _unavailable(self, queue: MessageQueue) -> BrokerUnavailable:
        return BrokerUnavailable(f"broker {queue.broker_name!r} of topic {queue.topic!r} is not reachable at present")

    async def bounds(self, queue: MessageQueue) -> Bounds:
        """Returns the first offset and the end of the queue."""
        address = await self.address(queue)
        topic, queue_id = queue.topic, queue.queue_id
        end = await self._api.max_offset(address, topic, queue_id, self._timeout_ms)
        return Bounds(await self._api.min_offset(address, topic, queue_id, self._timeout_ms), end)

    async def pull(
        self, queue: MessageQueue, offset: int, max_messages: int = PULL_MESSAGES, *, waits: bool = False
    ) -> Pulled:
        """Returns messages from `offset` on. With `waits`, the broker waits up to SUSPEND_MS for the first one."""
        header = PullMessageRequestHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            max_msg_bytes=PULL_BYTES,
            bulk_msg_nums=max_messages,
            bulk_msg_bytes=PULL_BYTES,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if waits else 0),
            commit_offset=0,
            suspend_timeout_millis=SUSPEND_MS if waits else 0,
            sub_version=0,
            subscription=SUBSCRIBE_ALL,
            expression_type=EXPRESSION_TAG,
            bname=queue.broker_name,
        )
        address = await self.address(queue)
        result = await self._api.pull(address, header, SUSPEND_TIMEOUT_MS if waits else self._timeout_ms)
        return _decoded(queue, offset, result)

    async def send(
        self,
        queue: MessageQueue,
        body: bytes,
        properties: bytes,
        born_timestamp: int,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        batch: bool = False,
    ) -> SendResult:
        """Sends a message, or a batch, to the master of the queue. Raises the errors of `BrokerApi.send`.

        While a rate limit of the broker is exceeded, waits and repeats the send.
        """
        command = send_command(
            PRODUCER_GROUP, queue, body, properties, born_timestamp, flag=flag, sys_flag=sys_flag, batch=batch
        )
        while True:
            address = await self.address(queue, master=True)
            try:
                return await self._api.send(address, command, queue, timeout_ms=self._timeout_ms)
            except BrokerError as e:
                if e.retry_after_ms is None:
                    raise
                await asyncio.sleep(min(e.retry_after_ms / 1000, _LONGEST_WAIT_S))

    async def committed_offset(self, queue: MessageQueue, group: str) -> int | None:
        """Returns the committed offset of a group, or None."""
        return await self.admin.committed_offset(await self.address(queue), group, queue.topic, queue.queue_id)

    async def commit_offset(self, queue: MessageQueue, group: str, offset: int) -> None:
        """Commits the offset of a group on the master of the queue."""
        address = await self.address(queue, master=True)
        await self._api.update_offset(address, group, queue.topic, queue.queue_id, offset, timeout_ms=self._timeout_ms)

    async def masters(self) -> dict[str, str]:
        """Returns {broker name: HOST:PORT of its master}, sorted. Raises BrokerUnavailable without a master."""
        brokers = (await self.admin.cluster_info()).broker_addr_table
        masters = {name: broker.master_address for name, broker in sorted(brokers.items()) if broker.master_address}
        if not masters:
            raise BrokerUnavailable(f"the cluster of {';'.join(self.admin.name_servers)} has no master at present")
        return masters

    async def cluster_names(self) -> list[str]:
        """Returns the names of all clusters at the NameServers, sorted."""
        return sorted((await self.admin.cluster_info()).cluster_addr_table)

    async def has_topic(self, address: str, topic: str) -> bool:
        """Returns whether the broker at `address` has the topic."""
        try:
            await self.admin.topic_config(address, topic)
        except BrokerError as e:
            if e.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return False
        return True


def _decoded(queue: MessageQueue, offset: int, result: PullResult) -> Pulled:
    if result.status is not PullStatus.FOUND:
        return Pulled([], result.next_begin_offset, result.max_offset)
    messages, undecoded = decode_pulled(
        result.body, queue, offset, MAX_DECOMPRESSED_SIZE, lambda unreadable: unreadable.stand_in(queue)
    )
    return Pulled(messages, result.next_begin_offset if undecoded is None else undecoded, result.max_offset)


def added(attributes: Mapping[str, str]) -> dict[str, str]:
    """Returns stored attributes as the changes that set them: `{"name": "value"}` becomes `{"+name": "value"}`."""
    return {f"+{name.removeprefix('+')}": value for name, value in attributes.items()}
