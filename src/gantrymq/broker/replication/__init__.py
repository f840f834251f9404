"""Replication of the commit log between a master and its slaves, as seen by the broker.

`replication` accepts slaves on a master and follows the master on a slave. `required_replicas` computes how many
replicas a message needs. `sync_state_set` computes the confirm offset in controller mode. `slave_requests` and
`slave_reads` define the responses of a slave. Metadata is copied by `broker.slave`, and the log itself is transferred
by `gantrymq.replication`.
"""

from __future__ import annotations

from gantrymq.broker.replication.ha_access import HaAccess
from gantrymq.broker.replication.replication import Replication
from gantrymq.broker.replication.required_replicas import ALL_IN_SYNC_STATE_SET, Mode, not_enough, replicas_needed
from gantrymq.broker.replication.slave_reads import SlaveReads
from gantrymq.broker.replication.slave_requests import STAND_IN_CODES, as_doubted_master, as_slave, slave_refusal
from gantrymq.broker.replication.sync_state_set import SyncStateSet

__all__ = [
    "ALL_IN_SYNC_STATE_SET",
    "STAND_IN_CODES",
    "HaAccess",
    "Mode",
    "Replication",
    "SlaveReads",
    "SyncStateSet",
    "as_doubted_master",
    "as_slave",
    "not_enough",
    "replicas_needed",
    "slave_refusal",
]
