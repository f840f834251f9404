"""The state of a broker in controller mode.

The tests cover the role, the in-sync set, the lease, and the files of the broker id.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.broker.controller.identity import Applied, Identity
from gantrymq.broker.controller.lease import Lease
from gantrymq.broker.controller.roles import BrokerSetState, Role, Roles
from gantrymq.broker.replication.sync_state_set import SyncStateSet
from gantrymq.errors import ConfigError, StoreError
from gantrymq.protocol.codes import ResponseCode
from gantrymq.replication.slaves import Slave

ME, OTHER, THIRD = 1, 2, 3
HERE, THERE = "127.0.0.1:1", "127.0.0.1:2"


def told(epoch: int, master: int | None = None, address: str | None = None) -> BrokerSetState:
    return BrokerSetState(epoch, master, address or (f"127.0.0.1:{master}" if master is not None else None))


@pytest.mark.parametrize(
    ("before", "now", "role"),
    [
        # The first notification.
        ([], told(1, ME), Role(1, ME, HERE)),
        ([], told(1, OTHER), Role(1, OTHER, THERE)),
        ([], told(1), Role(1)),
        # The same notification again.
        ([told(1, ME)], told(1, ME), None),
        ([told(1, OTHER)], told(1, OTHER), None),
        # A later epoch.
        ([told(1, ME)], told(2, OTHER), Role(2, OTHER, THERE)),
        ([told(1, OTHER)], told(2, ME), Role(2, ME, HERE)),
        ([told(1, ME)], told(2, ME), Role(2, ME, HERE)),
        ([told(1, ME)], told(2), Role(2)),
        ([told(2)], told(3, ME), Role(3, ME, HERE)),
        # An epoch can begin without a master and get one later.
        ([told(2)], told(2, ME), Role(2, ME, HERE)),
        # An earlier epoch: from a deposed controller, or a delayed message.
        ([told(2, OTHER)], told(1, ME), None),
        ([told(2)], told(1, ME), None),
        # A controller that does not have the state of the master at the moment.
        ([told(2, ME)], told(2), None),
        # The master has a new address.
        ([told(2, OTHER)], told(2, OTHER, "127.0.0.1:9"), Role(2, OTHER, "127.0.0.1:9")),
        # Two masters in one epoch.
        ([told(2, ME)], told(2, OTHER), None),
        ([told(2, OTHER)], told(2, ME), None),
        # A master without an address is ignored.
        ([], BrokerSetState(1, OTHER, None), Role(1)),
        ([], BrokerSetState(1, OTHER, ""), Role(1)),
    ],
)
def test_roles(before: list[BrokerSetState], now: BrokerSetState, role: Role | None) -> None:
    roles = Roles(ME)
    for each in before:
        roles.apply(each)
    was = roles.role
    assert roles.apply(now) == (role is not None)
    assert roles.role == (role or was)
    assert roles.is_master == (roles.role.master_id == ME)


def test_a_controller_older_than_the_log_is_not_believed() -> None:
    roles = Roles(ME)
    roles.last_epoch = 5
    for each in (told(4, ME), told(4, OTHER)):
        assert roles.is_too_old(each)
        assert not roles.apply(each)
    assert roles.apply(told(5, ME))
    assert roles.role == Role(5, ME, HERE)


# -- the in-sync set --------------------------------------------------------------------------------------------


def slave(broker_id: int, acknowledged: int, caught_up_at: float = 100.0, *, is_learner: bool = False) -> Slave:
    return Slave(f"127.0.0.1:{broker_id}", broker_id, acknowledged, acknowledged, is_learner, caught_up_at)


@pytest.mark.parametrize(
    ("members", "slaves", "confirmed"),
    [
        ({ME}, [], 1000),
        ({ME}, [slave(OTHER, 10)], 1000),
        ({ME, OTHER}, [slave(OTHER, 700)], 700),
        ({ME, OTHER, THIRD}, [slave(OTHER, 700), slave(THIRD, 600)], 600),
        # A disconnected member blocks the confirm offset.
        ({ME, OTHER, THIRD}, [slave(OTHER, 700)], 0),
        ({ME, OTHER}, [], 0),
        ({ME, OTHER}, [slave(THIRD, 700)], 0),
        # A learner does not count as an in-sync replica, even if the set contains it.
        ({ME, OTHER}, [slave(OTHER, 700, is_learner=True)], 0),
    ],
)
def test_what_is_confirmed(members: set[int], slaves: list[Slave], confirmed: int) -> None:
    in_sync = SyncStateSet(ME, members, 1, 0)
    assert in_sync.confirmed(slaves, 1000) == confirmed


def caught_up(broker_id: int, at: float) -> Slave:
    found = slave(broker_id, 1000)
    found.caught_up_at = at
    return found


@pytest.mark.parametrize(
    ("members", "slaves", "confirms"),
    [
        ({ME}, [], True),
        ({ME, OTHER}, [caught_up(OTHER, 96)], True),
        ({ME, OTHER}, [caught_up(OTHER, 93)], False),
        # The member left, perhaps because it was elected.
        ({ME, OTHER}, [], False),
        ({ME, OTHER, THIRD}, [caught_up(OTHER, 99)], False),
        ({ME, OTHER}, [caught_up(THIRD, 99)], False),
    ],
)
def test_replicas_in_sync_confirm_their_master(members: set[int], slaves: list[Slave], confirms: bool) -> None:
    assert SyncStateSet(ME, members, 1, 0).none_has_left(slaves, 100.0, 6.0) == confirms


def test_a_set_that_the_controller_has_not_named_confirms_nobody() -> None:
    assert not SyncStateSet(ME, (), 0, 0).none_has_left([], 100.0, 6.0)


def test_a_replica_that_is_being_taken_out_counts_until_the_controller_has_answered() -> None:
    in_sync = SyncStateSet(ME, {ME, OTHER}, 1, 0)
    in_sync.ask(frozenset({ME}))
    assert not in_sync.none_has_left([], 100.0, 6.0)
    in_sync.update({ME}, 2)
    assert in_sync.none_has_left([], 100.0, 6.0)


def test_what_is_confirmed_never_goes_back() -> None:
    in_sync = SyncStateSet(ME, {ME}, 1, 0)
    assert in_sync.confirmed([], 1000) == 1000
    in_sync.update({ME, OTHER}, 2)
    assert in_sync.confirmed([slave(OTHER, 900)], 1200) == 1000
    assert in_sync.confirmed([], 1300) == 1000
    assert in_sync.confirmed([slave(OTHER, 1250)], 1300) == 1250


@pytest.mark.parametrize(
    ("members", "slaves", "wanted"),
    [
        ({ME}, [], None),
        ({ME, OTHER}, [slave(OTHER, 500)], None),
        # Members that are disconnected or too slow are removed.
        ({ME, OTHER}, [], {ME}),
        ({ME, OTHER, THIRD}, [slave(OTHER, 500)], {ME, OTHER}),
        # A slave joins when it has the log up to the confirm offset, if that offset is in this epoch.
        ({ME}, [slave(OTHER, 1000)], {ME, OTHER}),
        ({ME}, [slave(OTHER, 999)], None),
        ({ME}, [slave(OTHER, 1000), slave(THIRD, 1000)], {ME, OTHER, THIRD}),
    ],
)
def test_who_is_to_be_in_sync(members: set[int], slaves: list[Slave], wanted: set[int] | None) -> None:
    in_sync = SyncStateSet(ME, members, 1, 400)
    in_sync.confirmed(slaves, 1000)
    assert in_sync.wanted(slaves) == wanted


def test_nobody_is_in_sync_before_the_epoch_begins() -> None:
    """The confirm offset of an earlier master is not enough: its log can have a different end."""
    in_sync = SyncStateSet(ME, {ME, THIRD}, 1, 400)
    assert in_sync.confirmed([slave(OTHER, 300)], 400) == 0
    assert in_sync.wanted([slave(OTHER, 399), slave(THIRD, 0)]) is None
    assert in_sync.wanted([slave(OTHER, 400), slave(THIRD, 0)]) == {ME, OTHER, THIRD}


def test_both_sets_count_while_the_answer_is_not_known() -> None:
    in_sync = SyncStateSet(ME, {ME}, 1, 0)
    slaves = [slave(OTHER, 700)]
    in_sync.ask(frozenset({ME, OTHER}))
    assert in_sync.count == 2
    assert in_sync.confirmed(slaves, 1000) == 700
    # The request had no response. It is repeated, and members of the earlier request still count.
    assert in_sync.wanted([]) == {ME}
    in_sync.ask(frozenset({ME}))
    assert in_sync.confirmed([], 1000) == 700
    in_sync.refused(frozenset({ME}), ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
    assert in_sync.confirmed([], 1000) == 1000
    assert in_sync.wanted([]) is None


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        (ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, True),
        (ResponseCode.CONTROLLER_INVALID_REPLICAS, True),
        # The set is unchanged. An earlier request can have succeeded although its response was lost.
        (ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, False),
        (ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, False),
        # There is another master. It can be the broker that was about to join.
        (ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, False),
        (ResponseCode.CONTROLLER_INVALID_MASTER, False),
        (ResponseCode.CONTROLLER_NOT_LEADER, False),
        (ResponseCode.SYSTEM_ERROR, False),
    ],
)
def test_what_a_refusal_tells(code: int, is_known: bool) -> None:
    in_sync = SyncStateSet(ME, {ME}, 1, 0)
    wanted = frozenset({ME, OTHER})
    in_sync.ask(wanted)
    in_sync.refused(wanted, code)
    assert in_sync.is_alone == is_known


def test_who_is_taken_out_counts_until_the_controller_says_so() -> None:
    in_sync = SyncStateSet(ME, {ME, OTHER}, 1, 0)
    in_sync.ask(frozenset({ME}))
    assert in_sync.confirmed([], 1000) == 0
    assert in_sync.update({ME}, 2)
    assert in_sync.confirmed([], 1000) == 1000


def test_an_older_set_is_no_news() -> None:
    in_sync = SyncStateSet(ME, {ME, OTHER}, 5, 0)
    assert not in_sync.update({ME}, 5)
    assert not in_sync.update({ME}, 4)
    assert in_sync.members == {ME, OTHER}


# -- the lease --------------------------------------------------------------------------------------------------


def test_without_leases_none_is_over() -> None:
    lease = Lease()
    assert not lease.is_over(1e9)
    lease.answered(10.0, None)
    assert not lease.is_over(1e9)


def test_a_lease_is_over_before_its_controller_thinks_so() -> None:
    lease = Lease()
    lease.answered(100.0, 10.0)
    assert not lease.is_over(108.9)
    assert lease.is_over(109.1)
    # A controller that does not lead cannot extend the lease, and a late response cannot shorten it.
    lease.answered(105.0, 10.0)
    lease.answered(106.0, 0.0)
    lease.answered(101.0, 10.0)
    assert lease.until == pytest.approx(114.0)


def test_who_was_granted_none_yet_has_none() -> None:
    lease = Lease()
    lease.answered(100.0, 0.0)
    assert lease.is_over(100.0)


# -- the files of the broker id ---------------------------------------------------------------------------------


def identity(directory: Path, cluster: str = "DefaultCluster", name: str = "broker-a") -> Identity:
    found = Identity(directory, cluster, name)
    found.load()
    return found


def test_an_id_is_applied_for_until_it_is_given(tmp_path: Path) -> None:
    first = identity(tmp_path)
    assert (first.broker_id, first.applied) == (None, None)
    first.apply_for(7, "127.0.0.1:10911;1700000000000")
    # The file format of Java.
    assert (tmp_path / "brokerIdentity-temp").read_text() == "DefaultCluster#broker-a#7#127.0.0.1:10911;1700000000000"
    again = identity(tmp_path)
    assert again.applied == Applied(7, "127.0.0.1:10911;1700000000000")
    again.given()
    assert (tmp_path / "brokerIdentity").read_text() == "DefaultCluster#broker-a#7"
    assert not (tmp_path / "brokerIdentity-temp").exists()
    assert identity(tmp_path).broker_id == 7


def test_an_id_that_another_has_is_forgotten(tmp_path: Path) -> None:
    first = identity(tmp_path)
    first.apply_for(7, "x")
    first.refused()
    assert identity(tmp_path).applied is None


@pytest.mark.parametrize("text", ["", "DefaultCluster#broker-a", "DefaultCluster#broker-a#seven", "a#b#1#c"])
def test_a_damaged_id_ends_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "brokerIdentity").write_text(text)
    with pytest.raises(StoreError, match="damaged"):
        identity(tmp_path)


@pytest.mark.parametrize(("cluster", "name"), [("Other", "broker-a"), ("DefaultCluster", "broker-b")])
def test_the_id_of_another_broker_ends_the_start(tmp_path: Path, cluster: str, name: str) -> None:
    (tmp_path / "brokerIdentity").write_text("DefaultCluster#broker-a#7")
    with pytest.raises(ConfigError, match="change one of them"):
        identity(tmp_path, cluster, name)
