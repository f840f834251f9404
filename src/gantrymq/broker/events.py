"""The events of a broker: a feature publishes an event, other features subscribe to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, ParamSpec

from gantrymq.remoting.connection import Connection
from gantrymq.store.consume_queue import ConsumeQueue

P = ParamSpec("P")


class Event(Generic[P]):
    """An event and its subscribers. They are called in the order of their subscription."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, None]] = []

    def subscribe(self, subscriber: Callable[P, None]) -> None:
        self._subscribers.append(subscriber)

    def publish(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Calls every subscriber, even if one of them raises. Raises the first error at the end."""
        problem: Exception | None = None
        for subscriber in self._subscribers:
            try:
                subscriber(*args, **kwargs)
            except Exception as e:
                problem = problem or e
        if problem is not None:
            raise problem


@dataclass(frozen=True, slots=True)
class BrokerEvents:
    """The events of one broker. All events are published in the broker's event loop."""

    #: Topics were created, changed or deleted: their names.
    topics_changed: Event[[Collection[str]]] = field(default_factory=Event)
    #: An administrator deleted topics, or a slave copied the deletion: the topics' names and queues.
    topics_deleted: Event[[Collection[str], Collection[ConsumeQueue]]] = field(default_factory=Event)
    #: An administrator deleted a consumer group: its name.
    group_deleted: Event[[str]] = field(default_factory=Event)
    #: Queues were deleted because all their messages have expired.
    queues_expired: Event[[]] = field(default_factory=Event)
    #: An administrator set the offsets of a group: topic, group, and the new offset by queue id.
    offsets_reset: Event[[str, str, Mapping[int, int]]] = field(default_factory=Event)
    #: The configuration was changed while the broker runs, or by a change of role.
    config_changed: Event[[]] = field(default_factory=Event)
    #: A lookup has found other NameServers. The argument is true if only the DNS result has changed: DNS can omit a
    #: NameServer that is up. The argument is false if `namesrvAddr` or the page of the address server has changed.
    name_servers_changed: Event[[bool]] = field(default_factory=Event)
    #: The broker has become master, slave or acting master, so request codes have other handlers.
    role_changed: Event[[]] = field(default_factory=Event)
    #: A replica has received more of this master's log, has connected or has disconnected.
    replica_acknowledged: Event[[]] = field(default_factory=Event)
    #: A slave has stored messages of its master in these queues.
    messages_replicated: Event[[Collection[ConsumeQueue]]] = field(default_factory=Event)
    #: A slave follows another master. Its tables are outdated.
    master_changed: Event[[]] = field(default_factory=Event)
    #: A slave has no connection to its master, or has lost or found the master. The NameServers may have the master's
    #: address.
    master_uncertain: Event[[]] = field(default_factory=Event)
    #: A slave reports that another broker is master in this epoch. Without signatures, the report can be forged.
    newer_epoch: Event[[int]] = field(default_factory=Event)
    #: Whether another broker may be master instead of this one. While this is true, this broker rejects messages.
    mastership_doubted: Event[[bool]] = field(default_factory=Event)
    #: A peer has disconnected.
    connection_closed: Event[[Connection]] = field(default_factory=Event)
