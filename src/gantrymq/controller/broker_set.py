"""The controller's data about the brokers of one name (Java: BrokerReplicaInfo, SyncStateInfo).

A BrokerSet is immutable. Each change creates a new one, and the state store keeps it as JSON. `check_follows` verifies
these invariants before a set is stored:

- The master, if any, is in the sync-state set. All members of the sync-state set are replicas.
- Both epochs only grow: a new master has a higher master epoch, and a new sync-state set has a higher set epoch.

If all brokers of a set are removed, its epochs are kept. Brokers that later use the name start with higher epochs.
Slaves therefore recognize that a former, disconnected master is older than its successors. Java starts at 0 again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from zlib import crc32

import msgspec

from gantrymq.errors import BodyError, GantryError
from gantrymq.protocol.bodies.controller import BrokerMemberGroup, SyncStateSet
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.java import Int64

#: First id that a controller assigns (MixAll.FIRST_BROKER_CONTROLLER_ID). 0 is the master's id without a controller.
FIRST_BROKER_ID = 1
_CHECKSUM = re.compile(rb',"crc32":([0-9]{1,10})\}\Z')


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """A broker of a set: its HOST:PORT, and the check code with which it applied for its id."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The brokers of one name. Immutable, including its maps and sets."""

    cluster_name: str
    broker_name: str
    replicas: dict[Int64, Replica] = {}
    next_broker_id: int = FIRST_BROKER_ID
    #: Id of the master. None before the first election, and if no broker can be elected.
    master: Int64 | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[Int64] = frozenset()
    sync_state_set_epoch: int = 0
    #: True after the first election. After that, only brokers with all acknowledged messages can be elected.
    had_master: bool = False

    # -- looking ------------------------------------------------------------------------------------------------

    @property
    def master_address(self) -> str | None:
        return self.address_of(self.master) if self.master is not None else None

    def address_of(self, broker_id: int) -> str | None:
        replica = self.replicas.get(broker_id)
        return replica.address if replica is not None else None

    def sync_state(self) -> SyncStateSet:
        return SyncStateSet(sorted(self.sync_state_set), self.sync_state_set_epoch)

    def members(self) -> BrokerMemberGroup:
        addresses = {broker_id: replica.address for broker_id, replica in sorted(self.replicas.items())}
        return BrokerMemberGroup(self.cluster_name, self.broker_name, addresses)

    # -- changes ------------------------------------------------------------------------------------------------

    def with_replica(self, broker_id: int, replica: Replica) -> BrokerSet:
        """Adds a broker with its id. No id is assigned twice, even after its broker was removed."""
        return self._changed(
            replicas={**self.replicas, broker_id: replica}, next_broker_id=max(self.next_broker_id, broker_id + 1)
        )

    def with_address(self, broker_id: int, address: str) -> BrokerSet:
        moved = msgspec.structs.replace(self.replicas[broker_id], address=address)
        return self._changed(replicas={**self.replicas, broker_id: moved})

    def with_master(self, broker_id: int) -> BrokerSet:
        """Sets an elected master. It becomes the only member of the sync-state set, because other brokers may lag."""
        return self._changed(
            master=broker_id,
            master_epoch=self.master_epoch + 1,
            sync_state_set=frozenset((broker_id,)),
            sync_state_set_epoch=self.sync_state_set_epoch + 1,
            had_master=True,
        )

    def without_master(self) -> BrokerSet:
        """Removes the master if no other broker can be elected. The sync-state set does not change."""
        return self._changed(master=None, master_epoch=self.master_epoch + 1)

    def with_sync_state_set(self, members: Iterable[int]) -> BrokerSet:
        return self._changed(sync_state_set=frozenset(members), sync_state_set_epoch=self.sync_state_set_epoch + 1)

    def without(self, broker_ids: Iterable[int]) -> BrokerSet:
        """Removes brokers on request of an administrator. If no broker is left, only the epochs are kept."""
        gone = frozenset(broker_ids)
        left = {broker_id: replica for broker_id, replica in self.replicas.items() if broker_id not in gone}
        changed = self
        if self.master in gone:
            changed = changed.without_master()
        if gone & self.sync_state_set:
            changed = changed.with_sync_state_set(self.sync_state_set - gone)
        if not left:
            return changed._changed(replicas={}, next_broker_id=FIRST_BROKER_ID, had_master=False)
        return changed._changed(replicas=left)

    def _changed(self, **changes: Any) -> BrokerSet:
        return msgspec.structs.replace(self, **changes)

    # -- for the state store ------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Returns JSON with a checksum. Earlier versions ignore the checksum."""
        text = encode_json(self)
        return b'%b,"crc32":%d}' % (text[:-1], crc32(text))

    @classmethod
    def decode(cls, data: bytes) -> BrokerSet:
        """Parses the JSON. Raises BodyError. JSON from an earlier version has no checksum."""
        checksum = _CHECKSUM.search(data)
        if checksum is not None:
            data = data[: checksum.start()] + b"}"
            if crc32(data) != int(checksum[1]):
                raise BodyError("its checksum is wrong")
        return decode_json(data, cls)

    @classmethod
    def check_kept(cls, name: str, data: bytes) -> None:
        """Raises GantryError if `data` is not a valid broker set with this name."""
        kept = cls.decode(data)
        if kept.broker_name != name:
            raise GantryError(f"it is that of {kept.broker_name!r}")
        if problem := _problem(cls(cluster_name="", broker_name=name), kept):
            raise GantryError(problem)

    def check_follows(self, before: BrokerSet | None) -> None:
        """Raises GantryError if this set violates an invariant after `before`, so that it is not stored."""
        if problem := _problem(before or BrokerSet(cluster_name="", broker_name=self.broker_name), self):
            raise GantryError(f"broker set {self.broker_name!r}: {problem}; the change isn't made")


def _problem(before: BrokerSet, after: BrokerSet) -> str | None:
    if after.master is not None and after.master not in after.sync_state_set:
        return f"its master {after.master} would not be in the sync-state set"
    if not after.sync_state_set <= after.replicas.keys():
        return f"its sync-state set {sorted(after.sync_state_set)} would have brokers that it doesn't know"
    if after.master_epoch < before.master_epoch or after.sync_state_set_epoch < before.sync_state_set_epoch:
        return "an epoch would go back"
    if after.master != before.master and after.master_epoch == before.master_epoch:
        return f"epoch {after.master_epoch} would have two masters"
    if after.sync_state_set != before.sync_state_set and after.sync_state_set_epoch == before.sync_state_set_epoch:
        return "another sync-state set would have the same epoch"
    return None
