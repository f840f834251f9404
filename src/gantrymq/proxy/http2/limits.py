"""Limits: what a peer may take of a server, and the tables that all its connections share."""

from __future__ import annotations

from dataclasses import dataclass, field

from gantrymq.proxy.http2.time_quota import SharedTime
from gantrymq.proxy.http2.untaken import UntakenBytes
from gantrymq.remoting.incomplete_input import IncompleteInputs


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one server; at most `streams` at once on one connection."""

    untaken: UntakenBytes = field(default_factory=UntakenBytes)
    incomplete: IncompleteInputs = field(default_factory=IncompleteInputs)
    time: SharedTime = field(default_factory=SharedTime)
    streams: int = 1024
