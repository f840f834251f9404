"""ConnectionLimits: the limits that all connections of one server or client share."""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.remoting.quota import Quota
from gantrymq.remoting.turns import Turns
from gantrymq.remoting.unfinished_frames import UnfinishedFrames
from gantrymq.remoting.untaken_answers import UntakenAnswers


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits on all connections together. The connections of a client share `turns` only.

    Attributes:
        turns: Shares the time of the event loop.
        frames: Limits incomplete frames. None: no limit.
        untaken: Limits responses that peers do not read. None: no limit.
        response_tasks: Limits requests that tasks answer. None: no limit.
    """

    turns: Turns
    frames: UnfinishedFrames | None = None
    untaken: UntakenAnswers | None = None
    response_tasks: Quota | None = None
