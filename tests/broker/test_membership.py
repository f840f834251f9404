"""Membership of slaves in the sync-state set: slaves that fall behind leave it.

The tests also cover the time until such a slave can join again.
"""

from __future__ import annotations

from math import inf

import pytest

from gantrymq.broker.controller.membership import Membership
from gantrymq.replication.slaves import Slave

ME, OTHER, THIRD = 1, 2, 3
LATE_S = 1.5


def slave(broker_id: int, caught_up_at: float, *, is_learner: bool = False) -> Slave:
    return Slave(f"127.0.0.1:{broker_id}", broker_id, 0, 0, is_learner, caught_up_at)


class Looks:
    """A master's checks of one slave, `OTHER`.

    The slave is a member while it keeps up.
    """

    def __init__(self, *, is_short: bool = False) -> None:
        self.membership = Membership()
        self.members = {ME, OTHER}
        self.is_short = is_short

    def look(self, now: float, lag_s: float) -> bool:
        """Returns true if the slave is a member after a check that finds a lag of `lag_s` seconds."""
        found = self.membership.in_time(
            [slave(OTHER, now - lag_s)], self.members, now, LATE_S, is_short=self.is_short and len(self.members) < 2
        )
        self.members = {ME} | {each.broker_id for each in found}
        return OTHER in self.members

    def leave(self, now: float) -> float:
        """Lets the slave lag until it is removed, and returns the time of the removal."""
        assert self.look(now, LATE_S)
        assert not self.look(now + 0.125, LATE_S + 0.125)
        return now + 0.125

    def away_s(self, now: float) -> float:
        """Returns the time until a slave that has caught up is a member again, in seconds."""
        for eighths in range(1000):
            if self.look(now + eighths / 8, 0.0):
                return eighths / 8
        raise AssertionError("it never comes back")


def test_a_member_leaves_when_it_is_late_twice() -> None:
    looks = Looks()
    assert looks.look(10.0, LATE_S - 0.25)
    assert looks.membership.look_at == pytest.approx(10.25)
    assert looks.look(10.25, LATE_S)
    assert looks.membership.look_at == pytest.approx(10.35)
    assert looks.look(10.3125, LATE_S + 0.0625)
    assert not looks.look(10.375, LATE_S + 0.125)


def test_a_master_that_stood_still_takes_nobody_out() -> None:
    looks = Looks()
    assert looks.look(10.0, 0.0)
    assert looks.look(100.0, 90.0)
    # The slave reads the data that arrived meanwhile.
    assert looks.look(100.1, 0.0)
    assert looks.look(200.0, 100.0)


def test_a_slave_that_was_never_late_comes_at_once() -> None:
    looks = Looks()
    looks.members = {ME}
    assert not looks.look(10.0, inf)
    assert not looks.look(10.0, LATE_S)
    assert looks.look(11.0, 0.01)


def test_who_leaves_again_and_again_stays_out_for_longer() -> None:
    looks, now, away = Looks(), 10.0, []
    for _ in range(9):
        now = looks.leave(now)
        assert not looks.look(now + 0.01, LATE_S)
        away.append(looks.away_s(now))
        now += away[-1] + 10.0
    assert away == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0], abs=0.13)


def test_it_must_be_caught_up_all_the_time() -> None:
    looks = Looks()
    now = looks.leave(10.0)
    assert not looks.look(now, 0.0)
    assert not looks.look(now + 0.9, LATE_S / 2 + 0.1)
    assert not looks.look(now + 1.1, 0.0)
    assert looks.membership.look_at == pytest.approx(now + 2.1)
    assert not looks.look(now + 2.0, 0.0)
    assert looks.look(now + 2.2, 0.0)


def test_one_departure_counts_once_however_often_the_controller_is_asked() -> None:
    looks = Looks()
    now = looks.leave(10.0)
    for step in range(20):
        # The controller has not removed the slave yet.
        looks.members = {ME, OTHER}
        assert not looks.look(now + step, LATE_S + step)
    assert looks.away_s(now + 20) == pytest.approx(1.0, abs=0.13)


def test_a_long_time_without_being_late_is_rewarded() -> None:
    looks, now = Looks(), 10.0
    for _ in range(4):
        now = looks.leave(now)
        now += looks.away_s(now) + 1.0
    assert looks.look(now, 0.0)
    assert looks.look(now + 301, 0.0)
    now = looks.leave(now + 302)
    assert looks.away_s(now) == pytest.approx(1.0, abs=0.13)


def test_too_few_members_need_it_at_once() -> None:
    looks, now = Looks(is_short=True), 10.0
    for _ in range(5):
        now = looks.leave(now)
        assert looks.away_s(now) == 0.0
        now += 1.0


def test_nobody_waits_for_a_learner() -> None:
    slaves = [slave(OTHER, 10.0), slave(THIRD, 10.0, is_learner=True)]
    found = Membership().in_time(slaves, {ME}, 10.0, LATE_S, is_short=False)
    assert [each.broker_id for each in found] == [OTHER]
