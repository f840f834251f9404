"""OffsetStore: a group's consume offsets on the brokers (client/consumer/store/RemoteBrokerOffsetStore)."""

from __future__ import annotations

from gantrymq.client.client_instance import ClientInstance
from gantrymq.errors import ConnectFailed
from gantrymq.protocol.message import MessageQueue


class OffsetStore:
    """Reads and commits where `group` goes on; remembers what it committed, to repeat nothing."""

    def __init__(self, client: ClientInstance, group: str) -> None:
        self._client = client
        self._group = group
        self._committed: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> int | None:
        """The committed queue offset; None when there is none. Raises a RemotingError or BrokerError."""
        return await self._client.api.query_offset(self._address(queue), self._group, queue.topic, queue.queue_id)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commits `offset` and waits for the broker's answer. Raises a RemotingError or BrokerError."""
        if self._committed.get(queue) != offset:
            await self._client.api.update_offset(self._address(queue), self._group, queue.topic, queue.queue_id, offset)
            self._committed[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """For a queue that another consumer may commit from now on."""
        self._committed.pop(queue, None)

    def _address(self, queue: MessageQueue) -> str:
        address = self._client.routes.broker_address(queue.broker_name)
        if address is None:
            raise ConnectFailed(f"no route names broker {queue.broker_name}", queue.broker_name)
        return address
