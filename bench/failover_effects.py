"""Evidence that a fault took effect, from the server that it hit.

A full disk and a wrong clock leave a broker in service, so the histories of the clients do not show them. The broker's
own responses do: the errors of its background jobs, and the store timestamps of new messages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from struct import Struct

from failover_faults import CLOCK_S
from failover_load import Acknowledged

from gantrymq.background.failures import failed_jobs
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.message_id import encode_offset_message_id

#: Longest wait for the effect of a fault, in seconds. Brokers save their tables every 5 to 10 s.
EFFECT_S = 30.0
#: Text of the result row if the server reported nothing.
NO_EFFECT = "no effect"
_PORT = Struct(">I")


@dataclass(frozen=True, slots=True)
class Victim:
    """A broker that a fault hits, and the messages that it acknowledged since the begin of the fault."""

    address: str
    #: In milliseconds since 1970.
    since_ms: int
    acknowledged: list[Acknowledged]


@dataclass(frozen=True, slots=True)
class Evidence:
    """How to see a fault. Both functions return what the broker reports, or an empty text."""

    effect: Callable[[AdminClient, Victim], Awaitable[str]]
    recovery: Callable[[AdminClient, Victim], Awaitable[str]]


def failed_writes(number: int) -> Callable[[AdminClient, Victim], Awaitable[str]]:
    """Returns a function that reports the jobs whose last failure is this error."""

    async def effect(admin: AdminClient, victim: Victim) -> str:
        try:
            return failed_in(await admin.runtime_info(victim.address), number, victim.since_ms)
        except GantryError:
            return ""

    return effect


def failed_in(runtime_info: Mapping[str, str], number: int, since_ms: int) -> str:
    """Returns the jobs whose last failure is this error, in these statistics of a broker."""
    names = [
        job.name
        for job in failed_jobs(runtime_info)
        if os.strerror(number) in job.last_error and (job.last_failure_ms or 0) >= since_ms
    ]
    return f"{errno.errorcode[number]}: {', '.join(names)}" if names else ""


async def restored_writes(admin: AdminClient, victim: Victim) -> str:
    try:
        return restored_in(await admin.runtime_info(victim.address))
    except GantryError:
        return ""


def restored_in(runtime_info: Mapping[str, str]) -> str:
    """Returns a text if no job fails, in these statistics of a broker."""
    return "" if any(job.failing_since_ms for job in failed_jobs(runtime_info)) else "all jobs write again"


async def clock_error_s(admin: AdminClient, victim: Victim) -> float | None:
    """Returns the store timestamp of the newest message minus its born timestamp, in seconds. None without a message.

    The clocks of the producers are right.
    """
    if not victim.acknowledged:
        return None
    newest = victim.acknowledged[-1]
    message_id = encode_offset_message_id(newest.host + _PORT.pack(newest.port), newest.physical_offset)
    try:
        message = await admin.message_by_offset_id(message_id)
    except GantryError:
        return None
    return (message.store_timestamp - message.born_timestamp) / 1000


async def wrong_clock(admin: AdminClient, victim: Victim) -> str:
    error = await clock_error_s(admin, victim)
    return "" if error is None or abs(error) < CLOCK_S / 2 else f"store timestamp {error:+.0f} s"


async def right_clock(admin: AdminClient, victim: Victim) -> str:
    error = await clock_error_s(admin, victim)
    return "" if error is None or abs(error) >= CLOCK_S / 2 else f"store timestamp {error:+.0f} s"


_LIMITED = Evidence(failed_writes(errno.EFBIG), restored_writes)
_FULL = Evidence(failed_writes(errno.ENOSPC), restored_writes)
_UNSYNCED = Evidence(failed_writes(errno.EIO), restored_writes)
_CLOCK = Evidence(wrong_clock, right_clock)
#: The faults whose effect is checked.
EVIDENCE = {
    "no file may grow": _LIMITED,
    "slave's files may not grow": _LIMITED,
    "disk full": _FULL,
    "slave's disk full": _FULL,
    "fsync fails": _UNSYNCED,
    "slave's fsync fails": _UNSYNCED,
    "clock ahead": _CLOCK,
    "clock behind": _CLOCK,
}
