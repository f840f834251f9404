"""How many replicas must have a message before its sender is told that it is stored (`CommitLog.asyncPutMessage`).

Only a SYNC_MASTER asks, and only for messages that their producer waits for (`waitStoreMsgOK`). The master itself is
one of the replicas: with Java's default, inSyncReplicas=1, no slave is waited for.
"""

from __future__ import annotations

from enum import Enum

from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.replication.config import ReplicationConfig

#: All of the sync-state set, however many these are (`MixAll.ALL_ACK_IN_SYNC_STATE_SET`).
ALL_IN_SYNC_STATE_SET = -1


class Mode(Enum):
    """What looks after a broker's replicas: nobody, slaves that stand in for a master, or a controller."""

    PLAIN = "plain"
    ACTING_MASTER = "enableSlaveActingMaster"
    CONTROLLER = "enableControllerMode"


def replicas_needed(config: ReplicationConfig, mode: Mode, in_sync: int, alive: int) -> int:
    """The number of replicas that must have the next message, or ALL_IN_SYNC_STATE_SET.

    `in_sync` are the master and the slaves that are less than haMaxGapNotInSync behind, `alive` those that the
    NameServer knows. Raises RequestRefused when too few are there; without a controller and acting masters nobody asks.
    """
    if mode is Mode.CONTROLLER:
        if in_sync < config.min_in_sync_replicas:
            raise not_enough()
        return ALL_IN_SYNC_STATE_SET if config.all_ack_in_sync_state_set else config.in_sync_replicas
    needed = config.in_sync_replicas
    if mode is Mode.ACTING_MASTER:
        there = min(in_sync, alive)
        if config.enable_auto_in_sync_replicas:
            needed = max(min(needed, there), config.min_in_sync_replicas)
        if needed > there:
            raise not_enough()
    return needed


def not_enough() -> RequestRefused:
    """What a send is refused with (`PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH`)."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", RefusalReason.NOT_ENOUGH_REPLICAS)
