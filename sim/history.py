"""What the clients of a run saw: what they asked for, what was acknowledged, what they received."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum


class Delay(Enum):
    """The way in which the delivery time of a message is given."""

    NONE = "NONE"
    #: A delay level, or a delay: added to the time of the broker that stores it.
    LEVEL = "LEVEL"
    AFTER = "AFTER"
    #: A time by the clock of the producer.
    AT = "AT"


@dataclass
class Sent:
    """One message that a producer asked to be stored. Its body is its `name`."""

    name: str
    topic: str
    #: Of ordered messages: those of one key come one after the other, numbered from 0.
    key: str = ""
    number: int = 0
    asked_at: float = 0.0
    #: Not to be delivered before, s.
    not_before: float = 0.0
    delay: Delay = Delay.NONE
    #: Error of the producer's clock at the send, in s.
    clock_error_s: float = 0.0
    #: Acknowledged at; None while nobody knows.
    stored_at: float | None = None
    #: Rolled back: never to be delivered.
    is_void: bool = False
    #: Who acknowledged it, the broker's name and its host:port, where in its log, and in which queue at which offset.
    broker: str = ""
    stored_by: str = ""
    physical_offset: int = -1
    place: tuple[str, int, int] | None = None


@dataclass
class Received:
    name: str
    group: str
    at: float
    #: The consumer that had it, the broker, the queue and its offset there.
    by: str
    broker: str
    queue: int
    offset: int


@dataclass
class Handling:
    """A handler at work on a message of an orderly group."""

    group: str
    queue: tuple[str, str, int]
    by: str


@dataclass
class History:
    """Of one run; `trace` is told of everything in order."""

    sent: dict[str, Sent] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    #: (time, what): everything that happened, in the order of the loop.
    trace: list[tuple[float, str]] = field(default_factory=list)
    #: What must never happen and did, noted at once.
    problems: list[str] = field(default_factory=list)
    #: What failed calls of clients said.
    errors: list[str] = field(default_factory=list)
    #: From when to when each fault was, s.
    faults: list[tuple[float, float]] = field(default_factory=list)
    #: Begin and end, in s, of each fault after which a broker may repeat deliveries and commits.
    crashes: list[tuple[float, float]] = field(default_factory=list)
    #: Orderly handlers at work.
    handling: list[Handling] = field(default_factory=list)

    def note(self, at: float, what: str) -> None:
        self.trace.append((at, what))

    def fail(self, at: float, who: str, error: Exception) -> None:
        self.errors.append(f"{who}: {type(error).__name__}: {error}")
        self.note(at, self.errors[-1])

    def ask(self, message: Sent) -> None:
        self.sent.setdefault(message.name, message)
        self.note(message.asked_at, f"send {message.name}")

    def acknowledge(self, name: str, at: float) -> None:
        self.sent[name].stored_at = at
        self.note(at, f"stored {name}")

    def receive(self, received: Received) -> None:
        self.received.append(received)
        self.note(received.at, f"{received.group} has {received.name} by {received.by}")

    def by_group(self) -> dict[str, dict[str, list[Received]]]:
        """What each group received, by name."""
        groups: dict[str, dict[str, list[Received]]] = defaultdict(lambda: defaultdict(list))
        for one in self.received:
            groups[one.group][one.name].append(one)
        return groups
