"""The table of in-flight messages whose invisible duration the proxy renews for its clients.

A message is in the table from its delivery until the client settles it or disconnects. To settle a message is to
acknowledge it, to change its invisible duration, or to move it to the dead-letter queue.

Shortly before the invisible duration of a message ends, `due` returns it. The caller renews it at the broker and
reports the result with `renewed` or `failed`. The table makes no requests and reads no clock.

Sources: service/receipt/DefaultReceiptHandleManager, common/ReceiptHandleGroup, RenewStrategyPolicy.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from gantrymq.limits import PROXY_IN_FLIGHT_MESSAGES
from gantrymq.proxy.consumer.handle import Handle

#: Invisible duration of a renewal, ms, by the number of earlier renewals of the message.
RENEW_MS = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))


class MessageKey(NamedTuple):
    """Identifies a message of a client. The identity stays the same when a renewal changes the message's handle."""

    message_id: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @classmethod
    def of(cls, message_id: str, handle: Handle) -> MessageKey:
        receipt = handle.receipt
        return cls(message_id, receipt.broker_name, receipt.queue_id, receipt.queue_offset)


@dataclass(slots=True, eq=False)
class InFlightMessage:
    """One in-flight message of a client."""

    client_id: str
    group: str
    topic: str
    key: MessageKey
    #: The handle from the last renewal. The client has only the first handle.
    handle: Handle
    reconsume_times: int
    popped_ms: int
    renew_times: int = 0
    failures: int = 0
    #: Set while the message is renewed. Other requests for it wait for the renewal, which changes the handle.
    renewal: asyncio.Future[None] | None = None
    #: Key of the message's slot in `InFlightMessages._slots`; -1 without a slot.
    slot: int = field(default=-1, repr=False)

    @property
    def renew_ms(self) -> int:
        """Invisible duration of the next renewal, ms."""
        return RENEW_MS[min(self.renew_times, len(RENEW_MS) - 1)]


class InFlightMessages:
    """All in-flight messages of a proxy. A message is due `ahead_ms` before its invisible duration ends."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms
        self._of_owner: dict[tuple[str, str], dict[MessageKey, InFlightMessage]] = {}
        #: Messages by the second in which they are due. A heap could not remove an acknowledged message cheaply.
        self._slots: dict[int, dict[InFlightMessage, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: InFlightMessage) -> bool:
        """Adds a message; replaces an earlier delivery to the same client. Returns False if the table is full."""
        mine = self._of_owner.setdefault((message.client_id, message.group), {})
        before = mine.pop(message.key, None)
        if before is not None:
            self._unschedule(before)
        elif self._count >= PROXY_IN_FLIGHT_MESSAGES:
            if not mine:
                del self._of_owner[message.client_id, message.group]
            return False
        else:
            self._count += 1
        mine[message.key] = message
        self._schedule(message)
        return True

    def take(self, client_id: str, group: str, key: MessageKey) -> InFlightMessage | None:
        """Removes and returns a message that its client is about to settle. Returns None if it is not in the table."""
        message = self._of_owner.get((client_id, group), {}).get(key)
        if message is not None:
            self.remove(message)
        return message

    def put_back(self, message: InFlightMessage) -> None:
        """Restores a message after the client's request failed, unless the client has received the message again."""
        if message.key not in self._of_owner.get((message.client_id, message.group), {}):
            self.add(message)

    def remove(self, message: InFlightMessage) -> None:
        """Removes a message, if it is in the table."""
        if not self.has(message):
            return
        owner = message.client_id, message.group
        mine = self._of_owner[owner]
        del mine[message.key]
        self._count -= 1
        self._unschedule(message)
        if not mine:
            del self._of_owner[owner]

    def has(self, message: InFlightMessage) -> bool:
        """Returns True if this delivery is still in the table."""
        return self._of_owner.get((message.client_id, message.group), {}).get(message.key) is message

    def remove_all(self, client_id: str | None = None) -> list[InFlightMessage]:
        """Removes and returns all messages of a client, or of all clients."""
        owners = [owner for owner in self._of_owner if client_id is None or owner[0] == client_id]
        messages = [message for owner in owners for message in self._of_owner[owner].values()]
        for message in messages:
            self.remove(message)
        return messages

    def due(self, now_ms: int) -> list[InFlightMessage]:
        """Returns the messages to renew, earliest first. `renewed` or `failed` schedules each of them again."""
        seconds = sorted(second for second in self._slots if second <= now_ms // 1000)
        found = [message for second in seconds for message in self._slots.pop(second)]
        for message in found:
            message.slot = -1
        return found

    def renewed(self, message: InFlightMessage, handle: Handle) -> None:
        """Stores the new handle after a renewal. The client may have settled the message in the meantime."""
        message.handle = handle
        message.renew_times += 1
        message.failures = 0
        self._schedule_again(message)

    def failed(self, message: InFlightMessage, now_ms: int) -> None:
        """Counts a failed renewal. The message is due again at once."""
        message.failures += 1
        self._schedule_again(message, now_ms // 1000)

    def _schedule_again(self, message: InFlightMessage, second: int | None = None) -> None:
        if self.has(message):
            self._schedule(message, second)

    def _schedule(self, message: InFlightMessage, second: int | None = None) -> None:
        message.slot = (message.handle.next_visible_ms - self._ahead_ms) // 1000 if second is None else second
        self._slots.setdefault(message.slot, {})[message] = None

    def _unschedule(self, message: InFlightMessage) -> None:
        slot = self._slots.get(message.slot)
        if slot is not None:
            slot.pop(message, None)
            if not slot:
                del self._slots[message.slot]
        message.slot = -1
