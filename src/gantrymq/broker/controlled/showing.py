"""Showing: brokers in controller mode show messages when all in sync have them (`ReputMessageService`).

Before that another broker may become master that hasn't got them: who had read one would take the next message at its
queue offset for one that it has had, and skip it. A slave that was master, or was started again, has such messages in
its log, too, and learns only from its next master whether they stay there.
"""

from __future__ import annotations

from collections.abc import Callable

from gantrymq.broker.appender import Appender
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.store.message_store import MessageStore


class Showing:
    """Wakes who waits for messages when these are shown. `confirmed` says up to where all in sync have the log.

    What comes while some wait to be shown is shown with the next: that costs a message next to nothing.
    """

    def __init__(self, store: MessageStore, appender: Appender, confirmed: Callable[[], int]) -> None:
        self._store = store
        self._appender = appender
        self._confirmed = confirmed
        #: Queues with messages that are shown when all in sync have the log up to `_end`.
        self._queues: dict[ConsumeQueue, None] = {}
        self._end = 0
        self.end()

    def in_sync_changed(self, *, is_alone: bool) -> None:
        """The broker is master, and nobody but itself is in sync, or others are."""
        self._store.shown_until = None if is_alone else self._confirmed
        if not is_alone:
            if self._appender.unshown is None:
                self._appender.unshown = {}
        elif self._appender.unshown is not None:
            self._appender.show({**self._queues, **self._appender.unshown})
            self._appender.unshown, self._queues = None, {}

    def end(self) -> None:
        """It isn't master any more, or not yet: what isn't confirmed may be cut off its log."""
        self._store.shown_until, self._appender.unshown = self._confirmed, None
        self._queues = {}

    def look(self) -> None:
        """Others may have more of the log."""
        new = self._appender.unshown
        if new is None or not (new or self._queues):
            return
        confirmed = self._confirmed()
        if self._queues and confirmed >= self._end:
            self._appender.show(self._queues)
            self._queues = {}
        if new and not self._queues:
            self._queues, self._appender.unshown = new, {}
            self._end = self._store.max_physical_offset
            if confirmed >= self._end:
                self._appender.show(self._queues)
                self._queues = {}
