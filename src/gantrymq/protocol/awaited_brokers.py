"""Awaited brokers: a topic's brokers that a NameServer had before its restart and that have not registered again.

Brokers register every 30 s. In the first 30 s after its start, a NameServer can return a route that lacks brokers. The
route is complete only if it contains every awaited broker. Unlike Java's, GantryMQ's NameServer lists the awaited
brokers in its response to GET_ROUTEINFO_BY_TOPIC.
"""

from __future__ import annotations

from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.private_fields import AWAITED_BROKERS_FIELD, UPTIME_FIELD

#: Interval at which brokers register (`registerNameServerPeriod`), in milliseconds.
REGISTRATION_PERIOD_MS = 30_000


def awaited_brokers(response: RemotingCommand) -> frozenset[str]:
    """Returns the awaited brokers in a response to GET_ROUTEINFO_BY_TOPIC."""
    awaited = response.ext_fields.get(AWAITED_BROKERS_FIELD)
    if not awaited:
        return frozenset()
    uptime = response.ext_fields.get(UPTIME_FIELD, "")
    is_young = uptime.isascii() and uptime.isdigit() and int(uptime[:20]) < REGISTRATION_PERIOD_MS
    return frozenset(filter(None, awaited.split(";"))) if is_young else frozenset()
