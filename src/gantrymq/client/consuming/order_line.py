"""OrderLine: the messages of one queue that are handled one after the other, and what is done about the first of them.

All that changes a line's state is in `change`, which is told what has happened and answers with the one thing to do
next. Whoever does it (`orderly.py`) tells the line how it ended; nothing else begins meanwhile, whatever comes in
between. The states, and what leads from one to the next:

    IDLE       --MESSAGES-->          the next message
    HANDLING   --CONSUMED-->          the next message
               --FAILED-->            SUSPENDED, or BURYING when it was tried often enough
    BURYING    --BURIED-->            the next message
               --NOT_BURIED-->        SUSPENDED
    LOCKING    --LOCKED-->            the next message
               --NOT_LOCKED-->        SUSPENDED
    SUSPENDED  --RESUMED-->           the next message
    any        --END-->               ENDED, for good
    the next message:                 HANDLING, LOCKING without the queue's lock, IDLE when there is none

Source: client/impl/consumer/ConsumeMessageOrderlyService (ConsumeRequest, processConsumeResult).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from gantrymq.protocol.message import MessageExt

#: tryLockLaterAndReconsume: the pause before a queue is looked at again whose lock was lost.
LOCK_RETRY_S = 3.0


class State(Enum):
    """What is under way."""

    IDLE = auto()
    HANDLING = auto()
    BURYING = auto()
    LOCKING = auto()
    SUSPENDED = auto()
    ENDED = auto()


class Event(Enum):
    """What has happened."""

    MESSAGES = auto()
    CONSUMED = auto()
    FAILED = auto()
    BURIED = auto()
    NOT_BURIED = auto()
    LOCKED = auto()
    NOT_LOCKED = auto()
    RESUMED = auto()
    END = auto()


class Step(Enum):
    """What is to be done now."""

    NOTHING = auto()
    #: Give the first message to the handler.
    HANDLE = auto()
    #: Send the first message to the dead letters.
    BURY = auto()
    #: Take the queue's lock again.
    LOCK = auto()
    #: Wait `pause_s`.
    SUSPEND = auto()


#: The state that each event ends; in another state it comes too late and changes nothing.
_ENDS = {
    Event.MESSAGES: State.IDLE,
    Event.CONSUMED: State.HANDLING,
    Event.FAILED: State.HANDLING,
    Event.BURIED: State.BURYING,
    Event.NOT_BURIED: State.BURYING,
    Event.LOCKED: State.LOCKING,
    Event.NOT_LOCKED: State.LOCKING,
    Event.RESUMED: State.SUSPENDED,
}


class OrderLine:
    """`messages` come in at the end. One that failed `max_reconsume_times` is buried (None: never), others wait.

    `suspend_s` is how long. What can't be decoded is buried at once: it would fail for ever.
    """

    def __init__(self, max_reconsume_times: int | None, suspend_s: float) -> None:
        self.messages: deque[MessageExt] = deque()
        self.state = State.IDLE
        self.pause_s = 0.0
        self._max_reconsume_times = max_reconsume_times
        self._suspend_s = suspend_s

    def change(self, event: Event, has_lock: bool) -> Step:
        """What to do after `event`; `has_lock` says whether the queue may be handled now."""
        if event is Event.END:
            self.state = State.ENDED
            return Step.NOTHING
        if _ENDS[event] is not self.state:
            return Step.NOTHING
        match event:
            case Event.CONSUMED | Event.BURIED:
                self.messages.popleft()
            case Event.FAILED if self._is_hopeless(self.messages[0]):
                self.state = State.BURYING
                return Step.BURY
            case Event.FAILED | Event.NOT_BURIED:
                self.messages[0].reconsume_times += 1
                return self._suspend(self._suspend_s)
            case Event.NOT_LOCKED:
                return self._suspend(LOCK_RETRY_S)
        if not self.messages:
            self.state = State.IDLE
            return Step.NOTHING
        if not has_lock:
            self.state = State.LOCKING
            return Step.LOCK
        self.state = State.HANDLING
        return Step.HANDLE

    def _is_hopeless(self, message: MessageExt) -> bool:
        if message.is_undecodable:
            return True
        return self._max_reconsume_times is not None and message.reconsume_times >= self._max_reconsume_times

    def _suspend(self, pause_s: float) -> Step:
        self.state = State.SUSPENDED
        self.pause_s = pause_s
        return Step.SUSPEND
