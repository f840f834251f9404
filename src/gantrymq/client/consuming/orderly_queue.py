"""OrderlyQueue: state machine of one queue whose messages are handled one after the other.

Only `change` changes the state: it takes an event and returns the next step. `orderly.py` executes that step and passes
its outcome as the next event. Steps do not overlap. The states and their transitions:

    IDLE       --MESSAGES-->          the next message
    HANDLING   --CONSUMED-->          the next message
               --FAILED-->            SUSPENDED, or BURYING after `max_reconsume_times`
    BURYING    --BURIED-->            the next message
               --NOT_BURIED-->        SUSPENDED
    LOCKING    --LOCKED-->            the next message
               --NOT_LOCKED-->        SUSPENDED
    SUSPENDED  --RESUMED-->           the next message
    any        --END-->               ENDED, which is final
    the next message:                 HANDLING; LOCKING if the lock is lost; IDLE if there is no message

Source: client/impl/consumer/ConsumeMessageOrderlyService (ConsumeRequest, processConsumeResult).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from gantrymq.protocol.message import MessageExt

#: Pause after a lock could not be acquired (tryLockLaterAndReconsume), s.
LOCK_RETRY_S = 3.0


class State(Enum):
    """The current step of a queue. BURYING: sending the first message to the dead-letter queue."""

    IDLE = auto()
    HANDLING = auto()
    BURYING = auto()
    LOCKING = auto()
    SUSPENDED = auto()
    ENDED = auto()


class Event(Enum):
    """An event of a queue, most of them the outcome of a step."""

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
    """The next step to execute."""

    NOTHING = auto()
    #: Pass the first message to the handler.
    HANDLE = auto()
    #: Send the first message to the dead-letter queue.
    BURY = auto()
    #: Acquire the queue's lock again.
    LOCK = auto()
    #: Wait for `pause_s` seconds.
    SUSPEND = auto()


#: The members that each consumed message needs. Access by `Event.CONSUMED` is slower.
CONSUMED, HANDLING, HANDLE = Event.CONSUMED, State.HANDLING, Step.HANDLE
#: The state in which each event is valid. In another state it is outdated and ignored.
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


class OrderlyQueue:
    """Messages and state of one queue. New `messages` are appended.

    A message that failed `max_reconsume_times` (None: no limit) is buried: it goes to the dead-letter queue. Before
    that, it is retried after `suspend_s` seconds. A message that cannot be decoded is buried at once, because each
    retry would fail.
    """

    def __init__(self, max_reconsume_times: int | None, suspend_s: float) -> None:
        self.messages: deque[MessageExt] = deque()
        self.state = State.IDLE
        self.pause_s = 0.0
        self._max_reconsume_times = max_reconsume_times
        self._suspend_s = suspend_s

    def change(self, event: Event, has_lock: bool) -> Step:
        """Changes the state and returns the next step. `has_lock` is true if the queue may be handled."""
        if event is CONSUMED and self.state is HANDLING and has_lock and len(self.messages) > 1:
            # The usual transition. The code below does the same, but is slower.
            self.messages.popleft()
            return HANDLE
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

    def after_failure(self) -> str:
        """Returns what follows if the handler of the first message has failed, for a log line."""
        if self.state is not State.HANDLING:
            return "the next consumer of its queue receives it"
        if self._is_hopeless(self.messages[0]):
            return "goes to the dead-letter queue"
        return f"next attempt in {self._suspend_s:g} s, its queue waits"

    def _is_hopeless(self, message: MessageExt) -> bool:
        if message.is_undecodable:
            return True
        return self._max_reconsume_times is not None and message.reconsume_times >= self._max_reconsume_times

    def _suspend(self, pause_s: float) -> Step:
        self.state = State.SUSPENDED
        self.pause_s = pause_s
        return Step.SUSPEND
