"""In controller mode, consumers receive a message only after all in-sync replicas have it (`ReputMessageService`).

Otherwise a replica without the message could become master. A consumer that had already read the message would then
skip the next message with the same queue offset. The log of a slave can also contain unconfirmed messages, after a role
change or a restart. The next master decides whether these messages stay.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.broker.append import Appender
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore


class ConfirmedMessages:
    """Notifies waiting consumers of messages that are confirmed. `confirmed` returns the confirm offset.

    Messages that arrive during a confirmation are confirmed together afterwards, so that the cost for each message is
    low.
    """

    def __init__(self, store: MessageStore, appender: Appender, confirmed: Callable[[], int]) -> None:
        self._store = store
        self._appender = appender
        self._confirmed = confirmed
        #: Queues with messages that are confirmed when the confirm offset reaches `_end`.
        self._queues: dict[ConsumeQueue, None] = {}
        self._end = 0
        self.end()

    def in_sync_changed(self, *, is_alone: bool) -> None:
        """Adapts to a changed sync-state set. If this master `is_alone` in it, messages need no confirmation."""
        appender = self._appender
        self._store.set_confirm_offset(None if is_alone else self._confirmed)
        if not is_alone:
            if appender.unconfirmed is None:
                appender.needs_confirmation(True)
        elif appender.unconfirmed is not None:
            appender.confirmed({**self._queues, **appender.unconfirmed})
            appender.needs_confirmation(False)
            self._queues = {}

    def end(self) -> None:
        """Hides unconfirmed messages, because the broker isn't a master. They may be truncated from its log."""
        self._store.set_confirm_offset(self._confirmed)
        self._appender.needs_confirmation(False)
        self._queues = {}

    def look(self) -> None:
        """Checks for newly confirmed messages. Call it when a replica may have more of the log."""
        new = self._appender.unconfirmed
        if new is None or not (new or self._queues):
            return
        confirmed = self._confirmed()
        if self._queues and confirmed >= self._end:
            self._appender.confirmed(self._queues)
            self._queues = {}
        if new and not self._queues:
            self._queues = self._appender.take_unconfirmed()
            self._end = self._store.max_physical_offset
            if confirmed >= self._end:
                self._appender.confirmed(self._queues)
                self._queues = {}
