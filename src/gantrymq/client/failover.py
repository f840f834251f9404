"""Detects responses that say that another broker of the same name is master, or is about to be.

A client then requests the topic's route again, from which it gets the address of the new master.
"""

from __future__ import annotations

from gantrymq.errors import BrokerError

#: The remark for a message that a former master has stored, and that the new master may have.
MAY_BE_STORED = "another broker has become master"
#: Remarks of a former master, and of a new one that can't take messages yet. The last one is also Java's.
_REMARKS = (
    "this broker is a slave",
    "another broker is master",
    MAY_BE_STORED,
    "no controller has said of late",
    "in-sync replicas not enough",
)


def is_role_change(error: BaseException) -> bool:
    """Whether a broker refused a request because of its role, so that the route must be requested again."""
    return isinstance(error, BrokerError) and any(remark in error.remark for remark in _REMARKS)
