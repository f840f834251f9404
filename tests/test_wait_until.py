"""Tests of the helper that other tests use to wait for a state."""

from __future__ import annotations

import asyncio

import pytest
from wait_until import until, wait_until


async def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, [], "there"])
    assert await until(lambda: next(answers)) == "there"

    async def ask() -> object:
        return next(more)

    more = iter([None, 7])
    assert await until(ask) == 7
    again = iter([False, {"a": 1}])
    assert wait_until(lambda: next(again)) == {"a": 1}


async def test_who_waits_in_vain_is_told_what_came_last_and_where() -> None:
    with pytest.raises(AssertionError, match=r"not reached in 0.02 s; .*test_wait_until.py:\d+\) said last: ''"):
        await until(lambda: "", 0.02)
    with pytest.raises(AssertionError, match=r"not reached in 0.02 s; .*test_wait_until.py:\d+\) said last: 0"):
        wait_until(lambda: 0, 0.02)


async def test_a_condition_that_never_answers_is_given_up() -> None:
    with pytest.raises(AssertionError, match=r"not reached in 0.02 s"):
        await until(lambda: asyncio.sleep(60), 0.02)


async def test_errors_of_the_condition_are_its_own() -> None:
    def late() -> None:
        raise TimeoutError("the condition's")

    with pytest.raises(TimeoutError, match="the condition's"):
        await until(late)
    with pytest.raises(TimeoutError, match="the condition's"):
        wait_until(late)
