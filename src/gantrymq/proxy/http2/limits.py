"""The limits of a server for its peers. All connections of the server share them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq.proxy.http2.read_slices import ReadSlices
from gantrymq.proxy.http2.time_quota import SharedTime
from gantrymq.proxy.http2.unread_responses import UnreadResponses
from gantrymq.remoting.incomplete_input import IncompleteInputs


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. A connection has at most `streams` concurrent streams."""

    unread: UnreadResponses = field(default_factory=UnreadResponses)
    incomplete: IncompleteInputs = field(default_factory=IncompleteInputs)
    time: SharedTime = field(default_factory=SharedTime)
    slices: ReadSlices = field(default_factory=ReadSlices)
    streams: int = 1024
