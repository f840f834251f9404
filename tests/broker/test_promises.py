"""The number of replicas that a message needs, and the requests that wait for them. Plain tables only."""

from __future__ import annotations

import pytest

from gantrymq.broker.append.late_responses import answer_within_ms
from gantrymq.broker.append.slave_waits import SlaveWaits
from gantrymq.broker.replication.master_address import MasterAddress
from gantrymq.broker.replication.required_replicas import ALL_IN_SYNC_STATE_SET, Mode, replicas_needed
from gantrymq.broker.replication.slave_reads import SlaveReads
from gantrymq.errors import RequestRefused
from gantrymq.protocol.codes import ResponseCode
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.get_result import GetResult, GetStatus


@pytest.mark.parametrize(
    ("mode", "keys", "in_sync", "alive", "needed"),
    [
        # The number of live replicas does not matter.
        (Mode.PLAIN, {}, 1, 1, 1),
        (Mode.PLAIN, {"in_sync_replicas": 3}, 1, 1, 3),
        (Mode.PLAIN, {"in_sync_replicas": 3, "min_in_sync_replicas": 2}, 1, 1, 3),
        (Mode.PLAIN, {"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, 1, 1, 3),
        (Mode.PLAIN, {"all_ack_in_sync_state_set": True}, 1, 1, 1),
        (Mode.ACTING_MASTER, {"in_sync_replicas": 2}, 2, 3, 2),
        (Mode.ACTING_MASTER, {"in_sync_replicas": 2}, 1, 3, None),
        (Mode.ACTING_MASTER, {"in_sync_replicas": 2}, 3, 1, None),
        (Mode.ACTING_MASTER, {"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, 2, 3, 2),
        (Mode.ACTING_MASTER, {"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, 1, 3, 1),
        (
            Mode.ACTING_MASTER,
            {"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True, "min_in_sync_replicas": 2},
            1,
            3,
            None,
        ),
        (Mode.CONTROLLER, {"in_sync_replicas": 2}, 1, 1, 2),
        (Mode.CONTROLLER, {"min_in_sync_replicas": 2}, 1, 3, None),
        (Mode.CONTROLLER, {"min_in_sync_replicas": 2, "in_sync_replicas": 2}, 2, 3, 2),
        (
            Mode.CONTROLLER,
            {"min_in_sync_replicas": 2, "all_ack_in_sync_state_set": True},
            2,
            3,
            ALL_IN_SYNC_STATE_SET,
        ),
    ],
)
def test_what_a_send_needs(mode: Mode, keys: dict[str, int], in_sync: int, alive: int, needed: int | None) -> None:
    config = ReplicationConfig(**keys)  # type: ignore[arg-type]
    if needed is not None:
        assert replicas_needed(config, mode, in_sync, alive) == needed
        return
    with pytest.raises(RequestRefused, match="in-sync replicas not enough") as refused:
        replicas_needed(config, mode, in_sync, alive)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


class Replicas:
    """The acknowledged offset of each replica."""

    def __init__(self) -> None:
        self.has: list[int] = []
        self.asked = 0

    def replicated(self, count: int) -> int:
        self.asked += 1
        return sorted(self.has, reverse=True)[count - 2] if count - 1 <= len(self.has) else 0


def test_all_up_to_the_watermark_are_answered_at_once() -> None:
    replicas = Replicas()
    waits: SlaveWaits[str] = SlaveWaits(replicas.replicated)
    for name, end in (("a", 10), ("b", 20), ("c", 30)):
        waits.add(name, end, 2, 0.0, 1.0)
    assert list(waits.reached()) == []
    replicas.has, replicas.asked = [20], 0
    assert list(waits.reached()) == ["a", "b"]
    assert replicas.asked == 1
    assert len(waits) == 1
    assert waits.is_reached(20, 2)
    assert not waits.is_reached(21, 2)


def test_each_waits_for_as_many_as_it_was_promised() -> None:
    replicas = Replicas()
    replicas.has = [50, 5]
    waits: SlaveWaits[str] = SlaveWaits(replicas.replicated)
    assert waits.add("three", 10, 3, 0.0, 1.0)
    assert not waits.add("two", 60, 2, 0.5, 1.0)
    assert list(waits.reached()) == []
    replicas.has = [50, 10]
    assert list(waits.reached()) == ["three"]
    replicas.has = [60, 10]
    assert list(waits.reached()) == ["two"]


@pytest.mark.parametrize(
    ("timeout_ms", "least", "most"),
    [(None, 2000, 2000), (3000, 1875, 2000), (1, 0, 0), (2, 1, 1), (100, 62, 66), (86_400_000, 54_000_000, 57_600_000)],
)
def test_an_answer_comes_before_its_client_s_timeout(timeout_ms: int | None, least: int, most: int) -> None:
    assert least <= answer_within_ms(timeout_ms) <= most


def test_there_are_few_different_durations() -> None:
    assert len({answer_within_ms(timeout_ms) for timeout_ms in range(1, 60_000)}) < 200


def test_time_is_up_in_order() -> None:
    waits: SlaveWaits[str] = SlaveWaits(Replicas().replicated)
    assert waits.next_deadline is None
    assert waits.add("a", 10, 2, 0.0, 1.0)
    assert not waits.add("b", 20, 2, 1.0, 1.0)
    assert waits.next_deadline == 1.0
    assert list(waits.late(0.5)) == []
    assert list(waits.late(1.0)) == ["a"]
    assert waits.next_deadline == 2.0


def test_each_waits_for_its_own_time() -> None:
    replicas = Replicas()
    waits: SlaveWaits[str] = SlaveWaits(replicas.replicated)
    assert waits.add("long", 10, 2, 0.0, 3.0)
    assert waits.add("short", 20, 2, 0.1, 0.5)
    assert waits.add("shorter", 30, 2, 0.2, 0.1)
    assert not waits.add("short, too", 40, 2, 0.3, 0.5)
    assert abs((waits.next_deadline or 0.0) - 0.3) < 1e-9
    assert list(waits.late(0.7)) == ["short", "shorter"]
    replicas.has = [10]
    assert list(waits.reached()) == ["long"]
    assert list(waits.late(1.0)) == ["short, too"]
    assert (len(waits), waits.next_deadline) == (0, None)


def test_who_is_followed() -> None:
    following = MasterAddress("host:1", "")
    assert (following.address, following.ha_address) == (None, None)
    following.reported("n1", "host:2", "host:3")
    assert (following.address, following.ha_address) == ("host:2", "host:3")
    # A NameServer can report a new master late. The first one stays until no NameServer reports it.
    following.reported("n2", "host:4", "host:5")
    assert following.address == "host:2"
    following.reported("n1", "host:4", "host:5")
    assert (following.address, following.ha_address) == ("host:4", "host:5")
    following.reported("n1", None, None)
    assert following.address == "host:4"
    following.forget("n2")
    assert (following.address, following.ha_address) == (None, None)


def test_nobody_follows_himself() -> None:
    following = MasterAddress("host:1", "")
    following.reported("n1", "host:1", "host:2")
    assert following.address is None


def test_a_fixed_address_for_the_log() -> None:
    following = MasterAddress("host:1", "other:9")
    assert following.ha_address == "other:9"
    following.reported("n1", "host:2", "host:3")
    assert (following.address, following.ha_address) == ("host:2", "other:9")


@pytest.mark.parametrize(
    ("has_master", "behind", "code", "answered", "begin"),
    [
        (True, False, ResponseCode.SUCCESS, ResponseCode.SUCCESS, 7),
        (True, False, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, 7),
        (True, False, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY, 5),
        (True, True, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_NOT_FOUND, 7),
        (False, False, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_NOT_FOUND, 7),
        (False, False, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_RETRY_IMMEDIATELY, 7),
        (False, False, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND, 5),
    ],
)
def test_what_a_slave_answers(has_master: bool, behind: bool, code: int, answered: int, begin: int) -> None:
    reads = SlaveReads(2, lambda: has_master)
    result = GetResult(GetStatus.FOUND, 7, 0, 9)
    result.suggest_pulling_from_slave = behind
    assert reads.code(code, result, 5) == answered
    assert result.next_begin_offset == begin
    assert reads.suggested_broker() == (0 if has_master else 2)
