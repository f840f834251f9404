"""Detects responses that mean that another broker of the same name is or becomes master.

The client then requests the topic's route again, which contains the address of the new master.
"""

from __future__ import annotations

from gantrymq.errors import BrokerError, RefusalReason

#: Reasons that a former master gives, or a new master that does not accept messages yet.
_REASONS = (RefusalReason.NOT_MASTER, RefusalReason.MAY_BE_STORED, RefusalReason.NOT_ENOUGH_REPLICAS)


def is_role_change(error: BaseException) -> bool:
    """Returns whether a broker rejected a request because of its role, so that the route must be requested again."""
    return isinstance(error, BrokerError) and error.reason in _REASONS
