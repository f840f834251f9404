"""Slaves: who follows a master, and up to where each has the log (`DefaultHAService`, `GroupTransferService`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gantrymq.replication.config import ReplicationConfig

#: No log is so long.
MAX_OFFSET = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class Slave:
    """One that has said how far it is. `broker_id` is -1 for a Java slave, which doesn't tell."""

    address: str
    broker_id: int
    #: All before this physical offset is in its log.
    acknowledged: int
    #: What is sent to it next.
    next_offset: int
    #: It is never waited for.
    is_learner: bool = False
    #: At that time, s, the log ended before what it has by now.
    caught_up_at: float = -inf
    #: Where the log ended at that time: when the slave has it, it had caught up then. A log that grows all the time has
    #: another end whenever an acknowledgement comes.
    mark: int = 0
    mark_at: float = -inf


class Slaves:
    """The table of a master. Times are seconds of a clock that only goes on."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self._slaves: dict[Slave, None] = {}

    def __len__(self) -> int:
        return len(self._slaves)

    def all(self) -> list[Slave]:
        """In the order in which they came."""
        return list(self._slaves)

    def joined(self, slave: Slave) -> Slave | None:
        """One more; returns the former connection of the same slave, which counts no more."""
        former = None
        if slave.broker_id >= 0:
            former = next((each for each in self._slaves if each.broker_id == slave.broker_id), None)
        if former is not None:
            del self._slaves[former]
        self._slaves[slave] = None
        return former

    def acknowledged(self, slave: Slave, offset: int, end: int, now: float) -> bool:
        """What a slave has now, while the log's end is `end`; whether that is more than before."""
        if offset >= slave.mark:
            slave.caught_up_at = now if offset >= end else slave.mark_at
            slave.mark, slave.mark_at = end, now
        grew = offset > slave.acknowledged
        slave.acknowledged = offset
        return grew and slave in self._slaves

    def gone(self, slave: Slave) -> None:
        """Its connection is lost; once more does no harm."""
        self._slaves.pop(slave, None)

    def is_in_sync(self, slave: Slave, end: int) -> bool:
        """It lacks less than haMaxGapNotInSync."""
        return end - slave.acknowledged < self._config.ha_max_gap_not_in_sync

    def in_sync_count(self, end: int) -> int:
        """How many copies there are that are in sync, the master's among them (`inSyncReplicasNums`)."""
        return 1 + sum(self.is_in_sync(slave, end) for slave in self._slaves if not slave.is_learner)

    def replicated(self, count: int) -> int:
        """The physical offset up to which `count` copies have the log, the master's among them; 0 with fewer copies."""
        if count <= 1:
            return MAX_OFFSET
        acknowledged = [slave.acknowledged for slave in self._slaves if not slave.is_learner]
        if count - 1 > len(acknowledged):
            return 0
        return max(acknowledged) if count == 2 else sorted(acknowledged, reverse=True)[count - 2]
