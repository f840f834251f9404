"""Position of an operator in a queue: the committed offset of the group TOOLS_CONSUMER on the broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from gantrymq.client.admin.messages import AdminMessages
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import TOOLS_GROUP


@dataclass(slots=True)
class ReadPosition:
    begin: int
    end: int
    #: Offset after the last processed message.
    done: int = 0


class AdminReadPositions(AdminMessages):
    """Base for queues that an operator processes step by step."""

    @asynccontextmanager
    async def _read_position(self, queue: MessageQueue, *, again: bool) -> AsyncIterator[ReadPosition]:
        """Yields the range to read. At the end, commits the position up to which the caller has processed the range."""
        address = await self.broker_address(queue.broker_name)
        topic, queue_id = queue.topic, queue.queue_id
        end = await self._transport.api.max_offset(address, topic, queue_id, self._transport.timeout_ms)
        first = await self._transport.api.min_offset(address, topic, queue_id, self._transport.timeout_ms)
        before = await self.committed_offset(address, TOOLS_GROUP, topic, queue_id) or 0
        position = ReadPosition(max(first, 0 if again else before), end)

        async def keep() -> None:
            if position.done > before:
                await self._transport.api.update_offset(
                    address, TOOLS_GROUP, topic, queue_id, position.done, timeout_ms=self._transport.timeout_ms
                )

        try:
            yield position
        except BaseException:
            with suppress(GantryError):
                await keep()
            raise
        await keep()
