"""The decisions and responses of a controller (impl/manager/ReplicasInfoManager). No I/O, no clock.

A change has two steps. A method such as `alter_sync_state_set` returns a Decision: the response and the changed broker
set. After the state store has stored the set, `apply` makes it current and the response is sent. Between the two steps,
no other decision may be made for the same set.

Codes and remarks are Java's. docs/controller.md lists the differences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gantrymq.controller.broker_set import FIRST_BROKER_ID, BrokerSet, Replica
from gantrymq.controller.election import elect
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBroker
from gantrymq.protocol.bodies.controller import (
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.controller import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ApplyBrokerIdResponseHeader,
    BrokerSetRequestHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponseHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
)
from gantrymq.protocol.headers.header import Header

#: Limits on broker sets, on brokers in total and per set, and on the characters of a name, an address or a check code.
MAX_BROKER_SETS = 20_000
MAX_BROKERS = 20_000
MAX_REPLICAS = 64
MAX_TEXT = 512
#: A number as Java parses it, in a list of ids.
_ID = re.compile(r"[+-]?[0-9]{1,19}")
#: The broker id in a request that does not come from a broker.
NO_BROKER = -1

#: Looks up an active broker. Returns None if the broker is not active.
Live = Callable[[BrokerIdentity], LiveBroker | None]


@dataclass(frozen=True, slots=True)
class Decision:
    """A response, and the changed broker set. `changed` is None if nothing changes."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    body: bytes = b""
    changed: BrokerSet | None = None


class Replicas:
    """All broker sets by name. Callers pass a function that looks up active brokers."""

    def __init__(self) -> None:
        self._sets: dict[str, BrokerSet] = {}
        self._broker_count = 0

    def __len__(self) -> int:
        return len(self._sets)

    def __iter__(self) -> Iterator[BrokerSet]:
        return (each for each in list(self._sets.values()) if each.replicas)

    def load(self, sets: Iterable[BrokerSet]) -> None:
        """Replaces all broker sets with those of the state store."""
        self._sets = {each.broker_name: each for each in sets}
        self._broker_count = sum(len(each.replicas) for each in self._sets.values())

    def apply(self, changed: BrokerSet) -> None:
        """Replaces a broker set by `changed`, after the state store has stored this change."""
        before = self._sets.get(changed.broker_name)
        self._sets[changed.broker_name] = changed
        self._broker_count += len(changed.replicas) - (len(before.replicas) if before is not None else 0)

    def get(self, broker_name: str) -> BrokerSet | None:
        """Returns the broker set, or None if it has no brokers."""
        found = self._sets.get(broker_name)
        return found if found is not None and found.replicas else None

    def any(self, broker_name: str) -> BrokerSet | None:
        """Returns the broker set, even if all its brokers were removed."""
        return self._sets.get(broker_name)

    # -- ids ----------------------------------------------------------------------------------------------------

    def get_next_broker_id(self, header: BrokerSetRequestHeader) -> Decision:
        known = self.get(header.broker_name)
        return Decision(
            header=GetNextBrokerIdResponseHeader(
                cluster_name=header.cluster_name,
                broker_name=header.broker_name,
                next_broker_id=known.next_broker_id if known is not None else FIRST_BROKER_ID,
            )
        )

    def apply_broker_id(self, header: ApplyBrokerIdRequestHeader) -> Decision:
        name, broker_id, check_code = header.broker_name, header.applied_broker_id, header.register_check_code
        answer = ApplyBrokerIdResponseHeader(cluster_name=header.cluster_name, broker_name=name)
        address = check_code.partition(";")[0]
        if problem := _too_long(header.cluster_name, name, check_code):
            return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, problem, answer)
        known = self.get(name)
        replica = known.replicas.get(broker_id) if known is not None else None
        if replica is not None and replica.check_code == check_code:
            # A repeated request, perhaps because the first response was lost.
            return Decision(header=answer)
        if known is None and broker_id != FIRST_BROKER_ID:
            return Decision(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Broker-set: {name} hasn't been registered in controller, but broker try to apply brokerId: "
                f"{broker_id}",
                answer,
            )
        base = known or self._new_set(header)
        is_free = replica is None and FIRST_BROKER_ID <= broker_id < base.next_broker_id + MAX_REPLICAS
        if not is_free or len(base.replicas) >= MAX_REPLICAS:
            return Decision(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"Fail to apply brokerId: {broker_id} in broker-set: {name}",
                answer,
            )
        if self._broker_count >= MAX_BROKERS or (len(self._sets) >= MAX_BROKER_SETS and name not in self._sets):
            return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, "there are too many brokers already", answer)
        return Decision(header=answer, changed=base.with_replica(broker_id, Replica(address, check_code)))

    def _new_set(self, header: ApplyBrokerIdRequestHeader) -> BrokerSet:
        """Returns a set without brokers. It keeps the epochs of an earlier set with this name."""
        before = self._sets.get(header.broker_name)
        return BrokerSet(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            master_epoch=before.master_epoch if before is not None else 0,
            sync_state_set_epoch=before.sync_state_set_epoch if before is not None else 0,
        )

    def register_broker(self, header: RegisterBrokerToControllerRequestHeader, live: Live) -> Decision:
        name, broker_id = header.broker_name, header.broker_id
        answer = RegisterBrokerToControllerResponseHeader(cluster_name=header.cluster_name, broker_name=name)
        known = self.get(name)
        if known is None or broker_id not in known.replicas:
            remark = (
                f"Broker-set: {name} hasn't been registered in controller"
                if known is None
                else f"BrokerId: {broker_id} hasn't been registered in broker-set: {name}"
            )
            return Decision(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, remark, answer)
        if problem := _too_long(header.broker_address):
            return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, problem, answer)
        moved = known.address_of(broker_id) != header.broker_address
        changed = known.with_address(broker_id, header.broker_address) if moved else None
        if known.master is not None and live(_identity(known, known.master)) is not None:
            answer.master_broker_id = known.master
            answer.master_address = (changed or known).master_address
            answer.master_epoch = known.master_epoch
            answer.sync_state_set_epoch = known.sync_state_set_epoch
        return Decision(header=answer, body=encode_json(known.sync_state()), changed=changed)

    # -- the sync-state set -------------------------------------------------------------------------------------

    def alter_sync_state_set(self, header: AlterSyncStateSetRequestHeader, body: SyncStateSet, live: Live) -> Decision:
        known = self.get(header.broker_name)
        if known is None:
            return _not_altered(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
        wanted = frozenset(body.sync_state_set)
        if wanted == known.sync_state_set:
            return _not_altered(
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
            )
        if problem := self._alter_problem(known, header, body.sync_state_set_epoch, wanted, live):
            code, reason = problem
            return _not_altered(code, f"Rejecting alter syncStateSet request because the {reason}")
        changed = known.with_sync_state_set(wanted)
        return Decision(
            header=AlterSyncStateSetResponseHeader(new_sync_state_set_epoch=changed.sync_state_set_epoch),
            body=encode_json(changed.sync_state()),
            changed=changed,
        )

    def _alter_problem(
        self,
        known: BrokerSet,
        header: AlterSyncStateSetRequestHeader,
        epoch: int,
        wanted: frozenset[int],
        live: Live,
    ) -> tuple[int, str] | None:
        """Returns code and reason if the sync-state set may not become `wanted`, otherwise None."""
        master = "null" if known.master is None else known.master
        if known.master != header.master_broker_id:
            return (
                ResponseCode.CONTROLLER_INVALID_MASTER,
                f"current leader is:{{{master}}}, not {{{header.master_broker_id}}}",
            )
        if known.master_epoch != header.master_epoch:
            return (
                ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
                f"current master epoch is:{{{known.master_epoch}}}, not {{{header.master_epoch}}}",
            )
        if known.sync_state_set_epoch != epoch:
            return (
                ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
                f"current syncStateSet epoch is:{{{known.sync_state_set_epoch}}}, not {{{epoch}}}",
            )
        for broker_id in sorted(wanted):
            if broker_id not in known.replicas:
                return ResponseCode.CONTROLLER_INVALID_REPLICAS, f"replicas {{{broker_id}}} don't exist"
            if live(_identity(known, broker_id)) is None:
                return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"replicas {{{broker_id}}} don't alive"
        if known.master not in wanted:
            return (
                ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
                f"newSyncStateSet don't contains origin leader {{{master}}}",
            )
        return None

    # -- elections ----------------------------------------------------------------------------------------------

    def elect_master(self, header: ElectMasterRequestHeader, live: Live, *, unclean: bool) -> Decision:
        """Elects a master. If `unclean`, a broker that lacks acknowledged messages can be elected as a last resort."""
        known = self.get(header.broker_name)
        if known is None:
            return Decision(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                "Broker hasn't been registered",
                ElectMasterResponseHeader(),
            )
        asked_by = header.broker_id
        elected = self.elected(known, header, live, unclean=unclean)
        if elected is None:
            return _nobody_elected(known, asked_by)
        if elected == known.master:
            return Decision(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"The old master {known.master} is still alive, not need to elect new master for broker "
                f"{known.broker_name}",
                _elected_header(known),
                encode_json(ElectMasterResponseBody(None, sorted(known.sync_state_set))),
            )
        changed = known.with_master(elected)
        body = ElectMasterResponseBody(changed.members(), sorted(changed.sync_state_set))
        return Decision(header=_elected_header(changed), body=encode_json(body), changed=changed)

    def elected(self, known: BrokerSet, header: ElectMasterRequestHeader, live: Live, *, unclean: bool) -> int | None:
        """Returns the id of the broker that an election would select, or None."""
        asked_by = header.broker_id
        if not known.had_master and asked_by in known.replicas:
            # The set has no messages yet, so the broker cannot lack any.
            return asked_by
        candidates: list[Iterable[int]] = [known.sync_state_set]
        if unclean:
            candidates.append(known.replicas)
        return elect(
            candidates,
            lambda broker_id: live(_identity(known, broker_id)),
            old_master=known.master,
            designated=asked_by if header.designate_elect else None,
        )

    def without_living_master(self, live: Live) -> list[str]:
        """Returns the sets whose master is not active while another broker is (scanNeedReelectBrokerSets)."""
        return [
            each.broker_name
            for each in self
            if each.master is not None
            and live(_identity(each, each.master)) is None
            and any(live(_identity(each, broker_id)) is not None for broker_id in each.replicas)
        ]

    # -- looking and cleaning -----------------------------------------------------------------------------------

    def get_replica_info(self, broker_name: str) -> Decision:
        known = self.get(broker_name)
        if known is None:
            return Decision(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                "Broker metadata is not existed",
                GetReplicaInfoResponseHeader(),
            )
        header = GetReplicaInfoResponseHeader(
            master_broker_id=known.master, master_address=known.master_address, master_epoch=known.master_epoch
        )
        return Decision(header=header, body=encode_json(known.sync_state()))

    def infos(self, broker_names: Iterable[str], live: Live) -> dict[str, ReplicasInfo]:
        """Returns the data of broker sets for a response. Unknown names are omitted."""
        sets = (self.get(name) for name in broker_names)
        return {known.broker_name: _replicas_info(known, live) for known in sets if known is not None}

    def clean_broker_data(self, header: CleanControllerBrokerDataRequestHeader, live: Live) -> Decision:
        name, text = header.broker_name, (header.broker_controller_ids_to_clean or "").strip()
        known = self.get(name)
        if not text and not header.is_clean_living_broker and known is not None and known.master is not None:
            return _not_cleaned(f"Broker {name} is still alive, clean up failure")
        ids: frozenset[int] | None = None
        if text:
            parts = text.rstrip(";").split(";")
            if wrong := [part for part in parts if not _ID.fullmatch(part)]:
                return _not_cleaned(
                    "Please set the option <brokerControllerIdsToClean> according to the format, exception: "
                    f'java.lang.NumberFormatException: For input string: "{wrong[0][:100]}"'
                )
            ids = frozenset(map(int, parts))
        if known is None:
            return _not_cleaned(f"Broker {name} is not existed,clean broker data failure.")
        if ids is None:
            return Decision(changed=known.without(known.replicas))
        if not header.is_clean_living_broker:
            for broker_id in sorted(ids):
                if live(_identity(known, broker_id)) is not None:
                    return _not_cleaned(f"Broker [{name},  {broker_id}] is still alive, clean up failure")
        return Decision(changed=known.without(ids))


def _identity(known: BrokerSet, broker_id: int) -> BrokerIdentity:
    return BrokerIdentity(known.cluster_name, known.broker_name, broker_id)


def _too_long(*texts: str) -> str | None:
    if all(len(text) <= MAX_TEXT for text in texts):
        return None
    return f"a name, an address or a check code has more than {MAX_TEXT} characters"


def _not_altered(code: int, remark: str) -> Decision:
    return Decision(code, remark, AlterSyncStateSetResponseHeader())


def _not_cleaned(remark: str) -> Decision:
    return Decision(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)


def _nobody_elected(known: BrokerSet, asked_by: int) -> Decision:
    if asked_by != NO_BROKER:
        return Decision(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master", ElectMasterResponseHeader()
        )
    return Decision(
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        "Old master has down and failed to elect a new broker master",
        ElectMasterResponseHeader(),
        # The new epoch shows the other brokers that there is no master. Each requests an election when ready.
        changed=known.without_master() if known.master is not None else None,
    )


def _elected_header(known: BrokerSet) -> ElectMasterResponseHeader:
    return ElectMasterResponseHeader(
        master_broker_id=known.master,
        master_address=known.master_address,
        master_epoch=known.master_epoch,
        sync_state_set_epoch=known.sync_state_set_epoch,
    )


def _replicas_info(known: BrokerSet, live: Live) -> ReplicasInfo:
    in_sync: list[ReplicaIdentity] = []
    others: list[ReplicaIdentity] = []
    replicas: Mapping[int, Replica] = known.replicas
    for broker_id, replica in sorted(replicas.items()):
        alive = live(_identity(known, broker_id)) is not None
        identity = ReplicaIdentity(known.broker_name, broker_id, replica.address, alive)
        (in_sync if broker_id in known.sync_state_set else others).append(identity)
    return ReplicasInfo(
        master_broker_id=known.master,
        master_address=known.master_address,
        master_epoch=known.master_epoch,
        sync_state_set_epoch=known.sync_state_set_epoch,
        in_sync_replicas=in_sync,
        not_in_sync_replicas=others,
    )
