"""Tests that equal subscriptions share one compiled filter, and that the total length of all filters is limited."""

from __future__ import annotations

import pytest
from constants import change_constant

from gantrymq.errors import ClientError, RequestRefused
from gantrymq.filter import sql
from gantrymq.filter.filter_cache import SHORT, FilterCache
from gantrymq.filter.sql import compile_in_steps, compile_sql
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.steps import finish


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "filter_cache.FILTER_CHARACTERS", 4000)
    # A new cache, because other tests have compiled expressions too.
    monkeypatch.setattr(sql, "compiled_filters", sql.CompiledFilters())
    monkeypatch.setattr(sql, "filters_in_use", FilterCache())


def test_room_is_given_back_with_the_last_who_holds_a_filter() -> None:
    filters: FilterCache[object] = FilterCache()  # type: ignore[type-var]
    text = "x" * 1500
    filters.take(text)
    one = filters.add(text, frozenset([1]).__contains__)
    other = filters.get(text)
    assert other is one
    with pytest.raises(RequestRefused, match="requests wait with subscriptions of 1500 characters") as refused:
        filters.take("y" * 1500)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    del one
    assert filters.characters == 1500
    del other
    assert filters.characters == 0
    assert filters.get(text) is None


def test_short_ones_find_room_beside_long_ones() -> None:
    filters: FilterCache[object] = FilterCache()  # type: ignore[type-var]
    filters.take("x" * 2000)
    with pytest.raises(RequestRefused):
        filters.take("y" * (SHORT + 1))
    for _ in range(2000 // SHORT):
        filters.take("y" * SHORT)
    with pytest.raises(RequestRefused):
        filters.take("y" * SHORT)
    filters.give_back("x" * 2000)
    filters.take("y" * SHORT)


def test_expressions_that_are_being_compiled_count() -> None:
    compile_sql("a = 1")
    texts = [" OR ".join(["a = 1"] * 150) + f" OR b = {n}" for n in range(1, 10)]
    steps = [compile_in_steps(text) for text in texts]
    next(steps[0])
    with pytest.raises(RequestRefused):
        next(steps[1])
    for one in steps:
        one.close()
    assert compile_sql(texts[5]) is compile_sql(texts[5])


@pytest.mark.parametrize("end", ["", " OR"], ids=["right", "wrong"])
def test_what_is_compiled_twice_at_once_is_one_and_counts_once(end: str) -> None:
    text = " OR ".join(["a = 1"] * 60) + end
    both = [compile_in_steps(text), compile_in_steps(text)]
    for steps in both:
        next(steps)
    outcomes: list[object] = []
    for steps in both:
        try:
            outcomes.append(finish(steps))
        except ClientError as e:
            outcomes.append(str(e))
    assert outcomes[0] == outcomes[1]
    assert sql.compiled_filters.characters == len(text)
    assert sql.filters_in_use.characters == (0 if end else len(text))
    outcomes.clear()
    sql.compiled_filters.clear()
    assert sql.filters_in_use.characters == 0
