"""RequestWaits: the wait queues of requests that store a message, and of their responses."""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.broker.append.new_topics import NewTopics
from gantrymq.broker.append.pending_responses import PendingResponses
from gantrymq.broker.append.preallocation_waits import PreallocationWaits


@dataclass(frozen=True, slots=True)
class RequestWaits:
    """The wait queues that features use to store messages for clients.

    Attributes:
        files: Requests that wait for a preallocated file.
        new_topics: Requests that wait until their new topic is on disk.
        flush: Responses that wait for the disk or for replicas.
    """

    files: PreallocationWaits
    new_topics: NewTopics
    flush: PendingResponses
