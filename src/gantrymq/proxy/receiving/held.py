"""HeldMessages: what clients have received and the proxy keeps invisible for them; a plain table, told the time in ms.

A message is here from its receipt until its client acknowledges it, gives it up or goes. When its invisible time is
nearly over it is `due`: whoever asks renews it and says how that went.

Sources: service/receipt/DefaultReceiptHandleManager, common/ReceiptHandleGroup, RenewStrategyPolicy.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from gantrymq.proxy.receiving.handle import Handle

#: For so long a message is made invisible, by how often it was renewed before.
RENEW_MS = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))
#: More aren't held: they come again after their invisible time, as without a proxy. 500 bytes each.
MAX_HELD = 500_000


class MessageKey(NamedTuple):
    """A message to its client: who acknowledges has the first handle, however often it was renewed."""

    message_id: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @classmethod
    def of(cls, message_id: str, handle: Handle) -> MessageKey:
        receipt = handle.receipt
        return cls(message_id, receipt.broker_name, receipt.queue_id, receipt.queue_offset)


@dataclass(slots=True, eq=False)
class Held:
    """One message that a client has."""

    client_id: str
    group: str
    topic: str
    key: MessageKey
    #: The newest.
    handle: Handle
    reconsume_times: int
    popped_ms: int
    renew_times: int = 0
    failures: int = 0
    #: While it is renewed: who has anything to say of it waits for the end, since then its handle is another one.
    renewal: asyncio.Future[None] | None = None
    #: Where it is in the order of times; -1 when it isn't.
    slot: int = field(default=-1, repr=False)

    @property
    def renew_ms(self) -> int:
        """For how long it is to be made invisible next."""
        return RENEW_MS[min(self.renew_times, len(RENEW_MS) - 1)]


class HeldMessages:
    """All held messages of a proxy. `ahead_ms` before a message's time is over it is due."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms
        self._of_owner: dict[tuple[str, str], dict[MessageKey, Held]] = {}
        #: By the second in which they are due. An acknowledgement takes its message out: a heap would keep it.
        self._slots: dict[int, dict[Held, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, held: Held) -> bool:
        """Whether there was room for it. What its client had received of the same message before is forgotten."""
        mine = self._of_owner.setdefault((held.client_id, held.group), {})
        before = mine.pop(held.key, None)
        if before is not None:
            self._unschedule(before)
        elif self._count >= MAX_HELD:
            if not mine:
                del self._of_owner[held.client_id, held.group]
            return False
        else:
            self._count += 1
        mine[held.key] = held
        self._schedule(held)
        return True

    def take(self, client_id: str, group: str, key: MessageKey) -> Held | None:
        """Takes a message out: its client has something to say of it."""
        held = self._of_owner.get((client_id, group), {}).get(key)
        if held is not None:
            self.remove(held)
        return held

    def put_back(self, held: Held) -> None:
        """What its client said came to nothing. If it has received the message again meanwhile, that one stays."""
        if held.key not in self._of_owner.get((held.client_id, held.group), {}):
            self.add(held)

    def remove(self, held: Held) -> None:
        """Takes a message out; once more does no harm."""
        if not self.is_held(held):
            return
        owner = held.client_id, held.group
        mine = self._of_owner[owner]
        del mine[held.key]
        self._count -= 1
        self._unschedule(held)
        if not mine:
            del self._of_owner[owner]

    def is_held(self, held: Held) -> bool:
        """Whether nothing was said of it yet."""
        return self._of_owner.get((held.client_id, held.group), {}).get(held.key) is held

    def remove_all(self, client_id: str | None = None) -> list[Held]:
        """Takes out what a client has, or what all have."""
        owners = [owner for owner in self._of_owner if client_id is None or owner[0] == client_id]
        messages = [held for owner in owners for held in self._of_owner[owner].values()]
        for held in messages:
            self.remove(held)
        return messages

    def due(self, now_ms: int) -> list[Held]:
        """Those whose time is nearly over, the first first. They aren't due again until `renewed` or `failed`."""
        seconds = sorted(second for second in self._slots if second <= now_ms // 1000)
        found = [held for second in seconds for held in self._slots.pop(second)]
        for held in found:
            held.slot = -1
        return found

    def renewed(self, held: Held, handle: Handle) -> None:
        """A broker has given the message more time, be it that its client has spoken meanwhile."""
        held.handle = handle
        held.renew_times += 1
        held.failures = 0
        self._schedule_again(held)

    def failed(self, held: Held, now_ms: int) -> None:
        """It wasn't renewed, and is due again at once."""
        held.failures += 1
        self._schedule_again(held, now_ms // 1000)

    def _schedule_again(self, held: Held, second: int | None = None) -> None:
        if self.is_held(held):
            self._schedule(held, second)

    def _schedule(self, held: Held, second: int | None = None) -> None:
        held.slot = (held.handle.next_visible_ms - self._ahead_ms) // 1000 if second is None else second
        self._slots.setdefault(held.slot, {})[held] = None

    def _unschedule(self, held: Held) -> None:
        slot = self._slots.get(held.slot)
        if slot is not None:
            slot.pop(held, None)
            if not slot:
                del self._slots[held.slot]
        held.slot = -1
