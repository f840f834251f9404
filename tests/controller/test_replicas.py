"""The decisions of a controller for each request. Codes and remarks are those of Apache's controller."""

from __future__ import annotations

import pytest
from constants import change_constant
from controller_support import CLUSTER, NAME, Brokers, address, check_code
from msgspec.structs import replace

from gantrymq.controller import replicas
from gantrymq.controller.replicas import Decision
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ElectMasterResponseBody, SyncStateSet
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.controller import BrokerSetRequestHeader
from gantrymq.protocol.headers.header import header_fields


def fields(decision: Decision) -> dict[str, str]:
    assert decision.header is not None
    return header_fields(decision.header)


def refusal(decision: Decision) -> tuple[int, str | None]:
    assert decision.changed is None
    return decision.code, decision.remark


def elected(decision: Decision) -> tuple[list[int] | None, dict[int, str] | None]:
    body = decode_json(decision.body, ElectMasterResponseBody)
    group = body.broker_member_group
    return body.sync_state_set, group.broker_addrs if group is not None else None


# -- ids --------------------------------------------------------------------------------------------------------


def test_ids_are_given_out_one_after_the_other() -> None:
    brokers = Brokers()
    header = BrokerSetRequestHeader(cluster_name=CLUSTER, broker_name=NAME)
    for expected in (1, 2, 3):
        answer = fields(brokers.replicas.get_next_broker_id(header))
        assert answer == {"clusterName": CLUSTER, "brokerName": NAME, "nextBrokerId": str(expected)}
        applied = brokers.do(brokers.apply(expected))
        assert (applied.code, fields(applied)) == (0, {"clusterName": CLUSTER, "brokerName": NAME})
    assert {i: r.address for i, r in brokers.now.replicas.items()} == {i: address(i) for i in (1, 2, 3)}


def test_the_first_broker_gets_the_first_id() -> None:
    assert refusal(Brokers().apply(2)) == (
        ResponseCode.CONTROLLER_BROKER_ID_INVALID,
        "Broker-set: broker-a hasn't been registered in controller, but broker try to apply brokerId: 2",
    )


def test_an_id_is_its_check_codes() -> None:
    brokers = Brokers(2)
    again = brokers.apply(2)
    assert (again.code, again.changed) == (0, None)
    assert refusal(brokers.apply(2, "other:1;2")) == (
        ResponseCode.CONTROLLER_BROKER_ID_INVALID,
        "Fail to apply brokerId: 2 in broker-set: broker-a",
    )


@pytest.mark.parametrize("broker_id", [0, -1, 1 << 40, (1 << 63) - 1])
def test_ids_that_nobody_was_offered(broker_id: int) -> None:
    assert Brokers(1).apply(broker_id).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Brokers().apply(1, "x" * 1000).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert Brokers(1).register(1, "x" * 1000).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    most = replicas.MAX_REPLICAS
    assert Brokers(most - 1).apply(most).code == ResponseCode.SUCCESS
    assert Brokers(most).apply(most + 1).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    change_constant(monkeypatch, "replicas.MAX_BROKERS", 2)
    assert Brokers(1).apply(2).code == ResponseCode.SUCCESS
    assert Brokers(2).apply(2).code == ResponseCode.SUCCESS
    assert Brokers(2).apply(3).code == ResponseCode.CONTROLLER_INVALID_REQUEST
    change_constant(monkeypatch, "replicas.MAX_BROKER_SETS", 0)
    assert Brokers().apply(1).code == ResponseCode.CONTROLLER_INVALID_REQUEST


def test_registering() -> None:
    brokers = Brokers(2)
    assert refusal(brokers.register(3)) == (
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        "BrokerId: 3 hasn't been registered in broker-set: broker-a",
    )
    assert refusal(Brokers().register(1)) == (
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        "Broker-set: broker-a hasn't been registered in controller",
    )
    without_master = brokers.register(1)
    assert fields(without_master) == {"clusterName": CLUSTER, "brokerName": NAME}
    assert without_master.body == b'{"syncStateSet":[],"syncStateSetEpoch":0}'
    brokers.elect(1)
    with_master = brokers.register(2)
    assert fields(with_master) == {
        "clusterName": CLUSTER,
        "brokerName": NAME,
        "masterBrokerId": "1",
        "masterAddress": address(1),
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert with_master.body == b'{"syncStateSet":[1],"syncStateSetEpoch":1}'


def test_a_master_that_does_not_live_is_not_told() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    del brokers.living[1]
    assert "masterBrokerId" not in fields(brokers.register(2))


def test_a_broker_moves() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    assert fields(brokers.register(1, "elsewhere:1"))["masterAddress"] == "elsewhere:1"
    assert brokers.now.master_address == "elsewhere:1"
    assert brokers.now.replicas[1].check_code == check_code(1)


# -- elections --------------------------------------------------------------------------------------------------


def test_whoever_asks_first_is_the_first_master() -> None:
    brokers = Brokers(2, live=0)
    decision = brokers.elect(2)
    assert decision.code == ResponseCode.SUCCESS
    assert fields(decision) == {
        "masterBrokerId": "2",
        "masterAddress": address(2),
        "masterEpoch": "1",
        "syncStateSetEpoch": "1",
    }
    assert elected(decision) == ([2], {1: address(1), 2: address(2)})
    body = b'{"brokerMemberGroup":{"cluster":"DefaultCluster","brokerName":"broker-a","brokerAddrs":'
    assert decision.body.startswith(body)


@pytest.mark.parametrize("broker_id", [-1, 9])
def test_the_first_master_is_a_broker_of_the_set(broker_id: int) -> None:
    brokers = Brokers(2)
    brokers.elect(broker_id)
    assert (brokers.now.master, brokers.now.master_epoch) == (None, 0)
    assert brokers.elect(1).code == ResponseCode.SUCCESS


def test_nobody_knows_the_set() -> None:
    assert refusal(Brokers().elect(1)) == (
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        "Broker hasn't been registered",
    )


def test_a_master_that_lives_is_kept() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    decision = brokers.elect(2)
    assert refusal(decision) == (
        ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        "The old master 1 is still alive, not need to elect new master for broker broker-a",
    )
    assert fields(decision)["masterBrokerId"] == "1"
    assert decision.body == b'{"syncStateSet":[1]}'


def test_only_one_in_sync_is_the_next() -> None:
    brokers = Brokers(3)
    brokers.elect(1)
    brokers.alter(1, 2)
    brokers.lives(3, epoch=9, offset=9)
    del brokers.living[1]
    decision = brokers.elect()
    assert fields(decision) == {
        "masterBrokerId": "2",
        "masterAddress": address(2),
        "masterEpoch": "2",
        "syncStateSetEpoch": "3",
    }
    assert brokers.now.sync_state_set == {2}


def test_nobody_in_sync_lives() -> None:
    brokers = Brokers(3)
    brokers.elect(1)
    del brokers.living[1]
    assert refusal(brokers.elect(2)) == (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "Failed to elect a new master")
    decision = brokers.elect()
    assert (decision.code, decision.remark) == (
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        "Old master has down and failed to elect a new broker master",
    )
    now = brokers.now
    assert (now.master, now.master_epoch, now.sync_state_set, now.sync_state_set_epoch) == (None, 2, {1}, 1)
    assert brokers.elect().changed is None
    # The in-sync replica returns.
    brokers.lives(1)
    assert fields(brokers.elect(1))["masterEpoch"] == "3"


def test_unclean() -> None:
    brokers = Brokers(3)
    brokers.elect(1)
    del brokers.living[1]
    assert fields(brokers.elect(unclean=True))["masterBrokerId"] == "2"


def test_designated() -> None:
    brokers = Brokers(3)
    brokers.elect(1)
    assert refusal(brokers.elect(2, designate=True))[0] == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    brokers.alter(1, 2)
    assert fields(brokers.elect(2, designate=True))["masterBrokerId"] == "2"
    assert fields(brokers.elect(3, designate=True, unclean=True))["masterBrokerId"] == "3"
    assert brokers.elect(3, designate=True).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST


def test_which_sets_need_a_master() -> None:
    brokers = Brokers(2)
    assert brokers.replicas.without_living_master(brokers.live) == []
    brokers.elect(1)
    assert brokers.replicas.without_living_master(brokers.live) == []
    del brokers.living[1]
    assert brokers.replicas.without_living_master(brokers.live) == [NAME]
    brokers.living.clear()
    assert brokers.replicas.without_living_master(brokers.live) == []


# -- the sync-state set -----------------------------------------------------------------------------------------


def test_the_master_changes_the_sync_state_set() -> None:
    brokers = Brokers(3)
    brokers.elect(1)
    decision = brokers.alter(1, 2, 2)
    assert (decision.code, fields(decision)) == (0, {"newSyncStateSetEpoch": "2"})
    assert decode_json(decision.body, SyncStateSet) == SyncStateSet([1, 2], 2)
    assert brokers.now.sync_state_set == {1, 2}


REJECTED = "Rejecting alter syncStateSet request because the "


@pytest.mark.parametrize(
    ("members", "changes", "code", "remark"),
    [
        ((1,), {}, 2013, "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"),
        ((1, 2), {"master": 2}, 2002, REJECTED + "current leader is:{1}, not {2}"),
        ((1, 2), {"epoch": 0}, 2000, REJECTED + "current master epoch is:{1}, not {0}"),
        ((1, 2), {"of": 0}, 2001, REJECTED + "current syncStateSet epoch is:{1}, not {0}"),
        ((1, 9), {}, 2003, REJECTED + "replicas {9} don't exist"),
        ((1, 3), {}, 2006, REJECTED + "replicas {3} don't alive"),
        ((2,), {}, 2013, REJECTED + "newSyncStateSet don't contains origin leader {1}"),
        ((), {}, 2013, REJECTED + "newSyncStateSet don't contains origin leader {1}"),
    ],
)
def test_what_it_may_not_become(members: tuple[int, ...], changes: dict[str, int], code: int, remark: str) -> None:
    brokers = Brokers(3, live=2)
    brokers.elect(1)
    decision = brokers.alter(*members, **changes)
    assert refusal(decision) == (code, remark)
    assert fields(decision) == {"newSyncStateSetEpoch": "0"}


def test_it_may_not_change_without_a_master() -> None:
    brokers = Brokers(2)
    assert refusal(brokers.alter(1, master=1)) == (2002, REJECTED + "current leader is:{null}, not {1}")


# -- queries and cleanup ----------------------------------------------------------------------------------------


def test_replica_info() -> None:
    brokers = Brokers(2)
    assert refusal(brokers.replicas.get_replica_info("other")) == (
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        "Broker metadata is not existed",
    )
    assert fields(brokers.replicas.get_replica_info(NAME)) == {"masterEpoch": "0"}
    brokers.elect(2)
    info = brokers.replicas.get_replica_info(NAME)
    assert fields(info) == {"masterBrokerId": "2", "masterAddress": address(2), "masterEpoch": "1"}
    assert info.body == b'{"syncStateSet":[2],"syncStateSetEpoch":1}'


def test_who_is_in_sync_is_told() -> None:
    brokers = Brokers(3, live=2)
    brokers.elect(1)
    brokers.alter(1, 2)
    infos = brokers.replicas.infos([NAME, "other"], brokers.live)
    assert infos.keys() == {NAME}
    info = infos[NAME]
    assert (info.master_broker_id, info.master_address, info.master_epoch) == (1, address(1), 1)
    assert [(r.broker_id, r.alive) for r in info.in_sync_replicas] == [(1, True), (2, True)]
    assert [(r.broker_id, r.alive) for r in info.not_in_sync_replicas] == [(3, False)]


def test_a_set_with_a_master_is_not_cleaned() -> None:
    brokers = Brokers(2, live=1)
    brokers.elect(1)
    refused = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    assert refusal(brokers.clean()) == (refused, "Broker broker-a is still alive, clean up failure")
    assert refusal(brokers.clean("2;1")) == (refused, "Broker [broker-a,  1] is still alive, clean up failure")
    for wrong, named in (
        ("x;1", "x"),
        ("1;;2", ""),
        (";", ""),
        ("1_0", "1_0"),
        ("\u0661", "\u0661"),
        ("9" * 5000, "9" * 100),
    ):
        assert refusal(brokers.clean(wrong)) == (
            refused,
            "Please set the option <brokerControllerIdsToClean> according to the format, exception: "
            f'java.lang.NumberFormatException: For input string: "{named}"',
        )
    assert refusal(Brokers().clean()) == (refused, "Broker broker-a is not existed,clean broker data failure.")
    assert brokers.clean("2").code == ResponseCode.SUCCESS
    assert brokers.now.replicas.keys() == {1}


def test_a_master_that_is_cleaned_is_the_master_no_more() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    brokers.alter(1, 2)
    brokers.clean("1", living=True)
    now = brokers.now
    assert (now.master, now.master_epoch, now.sync_state_set, now.sync_state_set_epoch) == (None, 2, {2}, 3)
    assert fields(brokers.elect(2))["masterEpoch"] == "3"


def test_who_lacks_messages_is_not_elected_when_all_others_were_cleaned() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    brokers.clean("1", living=True)
    assert brokers.elect(2).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert fields(brokers.elect(2, unclean=True))["masterBrokerId"] == "2"


def test_epochs_go_on_after_all_was_cleaned() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    brokers.clean(living=True)
    assert brokers.replicas.get(NAME) is None
    assert brokers.apply(2).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    brokers.do(brokers.apply(1, "new:1;1"))
    assert fields(brokers.elect(1))["masterEpoch"] == "3"


def test_a_wrong_change_is_noticed() -> None:
    brokers = Brokers(2)
    brokers.elect(1)
    now = brokers.now
    for wrong in (
        now.with_sync_state_set({2}),
        now.with_sync_state_set({1, 9}),
        replace(now.with_master(2), master_epoch=now.master_epoch),
        replace(now.with_master(2), master_epoch=0),
        replace(now.with_sync_state_set({1, 2}), sync_state_set_epoch=now.sync_state_set_epoch),
    ):
        with pytest.raises(GantryError, match="the change isn't made"):
            wrong.check_follows(now)
