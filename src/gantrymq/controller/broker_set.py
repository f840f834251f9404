"""BrokerSet: what a controller knows of the brokers of one name (Java: BrokerReplicaInfo, SyncStateInfo).

A value: whatever happens to a set makes a new one, which the state store keeps as JSON. These hold of each, whatever
was asked for, and `check_follows` looks after them before a set is kept:

    the master, if there is one, is in the sync-state set, and all of that are replicas
    both epochs only grow; another master means a greater master epoch, other members a greater epoch of theirs

A set all of whose brokers were removed stays as its epochs: brokers that come again under its name begin beyond them.
So a master that was cut off meanwhile is older than all who came after, for every slave. (Java begins at 0 again.)
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

#: MixAll.FIRST_BROKER_CONTROLLER_ID: 0 stays what it is for brokers without a controller.
FIRST_BROKER_ID = 1
_CHECKSUM = re.compile(rb',"crc32":([0-9]{1,10})\}\Z')


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """A broker of a set: host:port, and what it showed when it applied for its id."""

    address: str
    check_code: str


class BrokerSet(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The brokers of one name. Its maps and sets are never changed."""

    cluster_name: str
    broker_name: str
    replicas: dict[Int64, Replica] = {}
    next_broker_id: int = FIRST_BROKER_ID
    #: None at first, and while there is nobody who could be elected.
    master: Int64 | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[Int64] = frozenset()
    sync_state_set_epoch: int = 0
    #: There was a master once: from then on only those who have what it acknowledged may be the next.
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

    # -- what may happen to it ----------------------------------------------------------------------------------

    def with_replica(self, broker_id: int, replica: Replica) -> BrokerSet:
        """A broker was given its id. Numbers are given out once, whatever becomes of who had them."""
        return self._changed(
            replicas={**self.replicas, broker_id: replica}, next_broker_id=max(self.next_broker_id, broker_id + 1)
        )

    def with_address(self, broker_id: int, address: str) -> BrokerSet:
        moved = msgspec.structs.replace(self.replicas[broker_id], address=address)
        return self._changed(replicas={**self.replicas, broker_id: moved})

    def with_master(self, broker_id: int) -> BrokerSet:
        """It was elected, and is the only one that surely has all that is acknowledged."""
        return self._changed(
            master=broker_id,
            master_epoch=self.master_epoch + 1,
            sync_state_set=frozenset((broker_id,)),
            sync_state_set_epoch=self.sync_state_set_epoch + 1,
            had_master=True,
        )

    def without_master(self) -> BrokerSet:
        """The master is gone, and nobody can be elected. Who was in sync with it still is."""
        return self._changed(master=None, master_epoch=self.master_epoch + 1)

    def with_sync_state_set(self, members: Iterable[int]) -> BrokerSet:
        return self._changed(sync_state_set=frozenset(members), sync_state_set_epoch=self.sync_state_set_epoch + 1)

    def without(self, broker_ids: Iterable[int]) -> BrokerSet:
        """An administrator has removed these brokers; with the last of them all but the epochs is forgotten."""
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
        """JSON with its own checksum, which readers of an earlier version skip."""
        text = encode_json(self)
        return b'%b,"crc32":%d}' % (text[:-1], crc32(text))

    @classmethod
    def decode(cls, data: bytes) -> BrokerSet:
        """Raises BodyError. Text without a checksum is that of an earlier version."""
        checksum = _CHECKSUM.search(data)
        if checksum is not None:
            data = data[: checksum.start()] + b"}"
            if crc32(data) != int(checksum[1]):
                raise BodyError("its checksum is wrong")
        return decode_json(data, cls)

    @classmethod
    def check_kept(cls, name: str, data: bytes) -> None:
        """Raises GantryError when `data` isn't the text of a set of that name."""
        kept = cls.decode(data)
        if kept.broker_name != name:
            raise GantryError(f"it is that of {kept.broker_name!r}")
        if problem := _problem(cls(cluster_name="", broker_name=name), kept):
            raise GantryError(problem)

    def check_follows(self, before: BrokerSet | None) -> None:
        """Raises GantryError when this can't come after `before`: a fault of this program, which must go no further."""
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
