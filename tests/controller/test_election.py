"""The election policy, with one test per case of `DefaultElectPolicy`."""

from __future__ import annotations

import pytest

from gantrymq.controller.election import elect
from gantrymq.controller.live_brokers import LiveBroker

ALL = {1, 2, 3, 4}


def broker(epoch: int = 1, offset: int = 0, priority: int = 0) -> LiveBroker:
    return LiveBroker("b:1", None, 0, 1, priority, epoch, offset)


def elected(
    *candidates: set[int], live: dict[int, LiveBroker], old: int | None = None, designated: int | None = None
) -> int | None:
    return elect(candidates, live.get, old_master=old, designated=designated)


def test_a_master_that_lives_stays() -> None:
    live = {1: broker(), 2: broker(offset=100)}
    assert elected({1, 2}, live=live, old=1) == 1
    assert elected({1, 2}, live=live, old=1, designated=1) == 1


def test_another_is_designated_or_nobody() -> None:
    live = {1: broker(), 2: broker()}
    assert elected({1, 2}, live=live, old=1, designated=2) == 2
    assert elected({1, 3}, live=live, old=1, designated=3) is None
    assert elected({1}, live=live, old=1, designated=2) is None


def test_the_furthest_log_wins_then_priority_then_the_lowest_id() -> None:
    assert elected(ALL, live={2: broker(1, 900), 3: broker(2, 100), 4: broker(2, 99)}) == 3
    assert elected(ALL, live={2: broker(2, 100), 3: broker(2, 100 + 2**33), 4: broker(2, 99)}) == 3
    assert elected(ALL, live={2: broker(priority=5), 3: broker(priority=4)}) == 3
    assert elected(ALL, live={4: broker(), 2: broker(), 3: broker()}) == 2


def test_others_are_looked_at_only_when_no_candidate_before_them_lives() -> None:
    live = {2: broker(), 3: broker(9, 9)}
    assert elected({1, 2}, ALL, live=live, old=1) == 2
    assert elected({1}, ALL, live=live, old=1) == 3
    assert elected({1}, ALL, live=live, old=1, designated=2) == 2


@pytest.mark.parametrize("old", [None, 1])
def test_nobody_lives(old: int | None) -> None:
    assert elected({1, 2}, ALL, live={}, old=old) is None
