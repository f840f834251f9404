"""LightQueueCommits: commits the units of light queues in the background.

The store itself commits them when there are many. This keeps recovery after a crash short if there are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantrymq.background.jobs import Jobs
from gantrymq.broker.feature import Feature

if TYPE_CHECKING:
    from gantrymq.store.light.light_queues import LightQueues

#: Interval of commits, in seconds.
_COMMIT_S = 1.0


class LightQueueCommits(Feature):
    """Commits the units of one store, from `start` to `stop`. The store commits the last ones when it is closed."""

    def __init__(self, queues: LightQueues, jobs: Jobs) -> None:
        self._committing = jobs.repeating("commit the units of light queues", queues.catch_up, _COMMIT_S)

    async def start(self) -> None:
        self._committing.start()

    async def stop(self) -> None:
        self._committing.cancel()
