"""The slaves of a master and the progress of each (`DefaultHAService`, `GroupTransferService`)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gantrymq.replication.config import ReplicationConfig

#: A value that is larger than any offset.
MAX_OFFSET = (1 << 63) - 1


@dataclass(slots=True, eq=False)
class Slave:
    """A slave that has sent its first report. `broker_id` is -1 for a Java slave, which does not send it."""

    address: str
    broker_id: int
    #: Physical offset up to which the slave has the log.
    acknowledged: int
    #: Offset of the next byte to send.
    next_offset: int
    #: True if no send waits for this slave.
    is_learner: bool = False
    #: Last time at which the slave had the whole log, as far as the master can determine, in seconds.
    caught_up_at: float = -inf
    #: End of the log at `mark_at`. When the slave acknowledges this offset, it has caught up to that time. Without the
    #: mark, a slave of a steadily growing log would never count as caught up.
    mark: int = 0
    mark_at: float = -inf


class Slaves:
    """A master's table of its slaves. Times are in seconds of a monotonic clock."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self._slaves: dict[Slave, None] = {}

    def __len__(self) -> int:
        return len(self._slaves)

    def all(self) -> list[Slave]:
        """Returns the slaves in the order of their arrival."""
        return list(self._slaves)

    def joined(self, slave: Slave) -> Slave | None:
        """Adds a slave. Removes and returns the slave's entry from an earlier connection, if there is one."""
        former = None
        if slave.broker_id >= 0:
            former = next((each for each in self._slaves if each.broker_id == slave.broker_id), None)
        if former is not None:
            del self._slaves[former]
        self._slaves[slave] = None
        return former

    def acknowledged(self, slave: Slave, offset: int, end: int, now: float) -> bool:
        """Records a slave's offset while the log ends at `end`. Returns true if the offset has increased."""
        if offset >= slave.mark:
            slave.caught_up_at = now if offset >= end else slave.mark_at
            slave.mark, slave.mark_at = end, now
        grew = offset > slave.acknowledged
        slave.acknowledged = offset
        return grew and slave in self._slaves

    def gone(self, slave: Slave) -> None:
        """Removes a slave whose connection is lost. Further calls have no effect."""
        self._slaves.pop(slave, None)

    def is_in_sync(self, slave: Slave, end: int) -> bool:
        """Returns true if the slave lags behind by less than `haMaxGapNotInSync`."""
        return end - slave.acknowledged < self._config.ha_max_gap_not_in_sync

    def in_sync_count(self, end: int) -> int:
        """Returns the number of in-sync copies, including the master's (`inSyncReplicasNums`)."""
        return 1 + sum(self.is_in_sync(slave, end) for slave in self._slaves if not slave.is_learner)

    def replicated(self, count: int) -> int:
        """Returns the offset up to which `count` copies, including the master's, have the log. 0 if fewer exist."""
        if count <= 1:
            return MAX_OFFSET
        acknowledged = [slave.acknowledged for slave in self._slaves if not slave.is_learner]
        if count - 1 > len(acknowledged):
            return 0
        return max(acknowledged) if count == 2 else sorted(acknowledged, reverse=True)[count - 2]
