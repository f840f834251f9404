"""History of a run: sends, acknowledgements and deliveries as the clients see them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum


class Delay(Enum):
    """How the delivery time of a message is given."""

    NONE = "NONE"
    #: A delay level or a delay. The broker that stores the message adds it to its own time.
    LEVEL = "LEVEL"
    AFTER = "AFTER"
    #: An absolute time by the producer's clock.
    AT = "AT"


@dataclass
class Sent:
    """One message of a producer. Its body is its `name`."""

    name: str
    topic: str
    #: For ordered messages: their sharding key, and their number within the key, from 0.
    key: str = ""
    number: int = 0
    asked_at: float = 0.0
    #: Earliest delivery time, in seconds.
    not_before: float = 0.0
    delay: Delay = Delay.NONE
    #: Error of the producer's clock at the send, in seconds.
    clock_error_s: float = 0.0
    #: Time of the acknowledgement, in seconds. None if there is none.
    stored_at: float | None = None
    #: True if the broker stored the message as its mode requires (SEND_OK).
    is_flushed: bool = False
    #: True if the transaction is rolled back: the message must never be delivered.
    is_void: bool = False
    #: The acknowledging broker: its name, its host:port, and the offset in its log. `place` is (broker name, queue id,
    #: queue offset).
    broker: str = ""
    stored_by: str = ""
    physical_offset: int = -1
    place: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Outage:
    """The log of a broker on its disk after a power failure, by the offset of each file."""

    broker: str
    at: float
    file_size: int
    log: dict[int, bytes]


@dataclass
class Received:
    name: str
    group: str
    at: float
    #: The consumer that received the message, and the broker, queue and queue offset of the message.
    by: str
    broker: str
    queue: int
    offset: int
    #: The only broker in sync, if it did not have the message on its disk yet; else "".
    in_memory_of: str = ""


@dataclass
class Handling:
    """A running call of an orderly group's handler."""

    group: str
    queue: tuple[str, str, int]
    by: str


@dataclass
class History:
    """History of one run. `trace` has all events in order."""

    sent: dict[str, Sent] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    #: (time in seconds, event) of everything that happened, in the order of the loop.
    trace: list[tuple[float, str]] = field(default_factory=list)
    #: Violations that a client detected during the run.
    problems: list[str] = field(default_factory=list)
    #: Messages of the errors that clients received.
    errors: list[str] = field(default_factory=list)
    #: Begin and end of each fault, in seconds.
    faults: list[tuple[float, float]] = field(default_factory=list)
    #: Begin and end, in seconds, of each fault after which a broker may repeat deliveries and commits.
    crashes: list[tuple[float, float]] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    #: Running calls of orderly handlers.
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
        """Returns the deliveries of each group, by message name."""
        groups: dict[str, dict[str, list[Received]]] = defaultdict(lambda: defaultdict(list))
        for one in self.received:
            groups[one.group][one.name].append(one)
        return groups
