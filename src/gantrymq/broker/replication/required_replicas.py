"""Number of replicas that must have a message before the send is acknowledged (`CommitLog.asyncPutMessage`).

The number applies only to a SYNC_MASTER, and only if the producer waits for storage (`waitStoreMsgOK`). The master
counts as one replica. With Java's default, `inSyncReplicas=1`, a send does not wait for slaves.
"""

from __future__ import annotations

from enum import Enum

from gantrymq.errors import RefusalReason, RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.replication.config import ReplicationConfig

#: Requires every member of the sync-state set, whatever its size (`MixAll.ALL_ACK_IN_SYNC_STATE_SET`).
ALL_IN_SYNC_STATE_SET = -1


class Mode(Enum):
    """The failover mechanism of a broker: none, acting masters or a controller."""

    PLAIN = "plain"
    ACTING_MASTER = "enableSlaveActingMaster"
    CONTROLLER = "enableControllerMode"


def replicas_needed(config: ReplicationConfig, mode: Mode, in_sync: int, alive: int) -> int:
    """Returns the number of replicas that must have the next message, or ALL_IN_SYNC_STATE_SET.

    With a controller or acting masters, raises RequestRefused if too few replicas are available.

    Args:
        config: The replication settings.
        mode: The failover mechanism of the broker.
        in_sync: In controller mode, the size of the sync-state set. Otherwise the number of replicas that lag by less
            than `haMaxGapNotInSync`, the master included.
        alive: The number of brokers of this name that the NameServer lists. Used with acting masters only.
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
    """Returns the error for a send with too few replicas (`PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH`)."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough", RefusalReason.NOT_ENOUGH_REPLICAS)
