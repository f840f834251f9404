"""Progress: the figures of a mirror that people and programs see."""

from __future__ import annotations

from typing import Any, NamedTuple


class FailedQueue(NamedTuple):
    """A source queue whose last attempt failed, and the error. Broker and queue are None if it is a whole topic."""

    topic: str
    broker: str | None
    queue_id: int | None
    error: str


class Progress(NamedTuple):
    """The state of a mirror.

    Attributes:
        queues: Number of source queues.
        copied: Number of messages that this process has copied.
        left_out: Number of messages that it has not copied: loops, and records that are not readable.
        lag: Number of messages in the source queues that are not copied yet.
        groups: Number of group offsets that this process has committed on the target.
        failed: Queues whose last attempt failed. They are retried.
        failed_groups: Errors of the last translation of group offsets. It is repeated.
    """

    queues: int
    copied: int
    left_out: int
    lag: int
    groups: int
    failed: list[FailedQueue]
    failed_groups: list[str]

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a JSON object."""
        return {
            "queues": self.queues,
            "copied": self.copied,
            "leftOut": self.left_out,
            "lag": self.lag,
            "groupOffsets": self.groups,
            "failed": [
                {"topic": failed.topic, "broker": failed.broker, "queueId": failed.queue_id, "error": failed.error}
                for failed in self.failed
            ],
            "failedGroups": self.failed_groups,
        }

    def __str__(self) -> str:
        text = f"{self.copied:,} messages copied, lag {self.lag:,}, {self.queues} queues"
        return f"{text}, {len(self.failed)} failed" if self.failed else text
