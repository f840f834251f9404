"""How far an operator has worked through a queue: brokers keep it, as the offset of the group TOOLS_CONSUMER there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from gantrymq.client.admin.messages import TOOLS_GROUP, AdminMessages
from gantrymq.errors import GantryError
from gantrymq.protocol.message import MessageQueue


@dataclass(slots=True)
class Place:
    begin: int
    end: int
    #: All before it are dealt with.
    done: int = 0


class AdminPlaces(AdminMessages):
    """Queues that are worked through bit by bit."""

    @asynccontextmanager
    async def _place_in(self, queue: MessageQueue, *, again: bool) -> AsyncIterator[Place]:
        """From where to where the queue is to be read; at the end the broker keeps how far it was."""
        address = await self.broker_address(queue.broker_name)
        topic, queue_id = queue.topic, queue.queue_id
        end = await self.api.max_offset(address, topic, queue_id, self.timeout_ms)
        first = await self.api.min_offset(address, topic, queue_id, self.timeout_ms)
        before = await self.committed_offset(address, TOOLS_GROUP, topic, queue_id) or 0
        place = Place(max(first, 0 if again else before), end)

        async def keep() -> None:
            if place.done > before:
                await self.api.update_offset(
                    address, TOOLS_GROUP, topic, queue_id, place.done, timeout_ms=self.timeout_ms
                )

        try:
            yield place
        except BaseException:
            with suppress(GantryError):
                await keep()
            raise
        await keep()
