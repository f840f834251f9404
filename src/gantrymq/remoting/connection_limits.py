"""ConnectionLimits: the limits that all connections of one server or client share."""

from __future__ import annotations

from dataclasses import dataclass

from gantrymq.remoting.incomplete_frames import IncompleteFrames
from gantrymq.remoting.quota import Quota
from gantrymq.remoting.time_slices import TimeSlices
from gantrymq.remoting.unread_responses import UnreadResponses


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits on all connections together. The connections of a client share `slices` only.

    Attributes:
        slices: Shares the time of the event loop.
        frames: Limits incomplete frames. None: no limit.
        unread: Limits responses that peers do not read. None: no limit.
        response_tasks: Limits the requests that are answered by tasks. None: no limit.
    """

    slices: TimeSlices
    frames: IncompleteFrames | None = None
    unread: UnreadResponses | None = None
    response_tasks: Quota | None = None
