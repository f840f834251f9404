"""Tests of a task with several waiters: each gets its own exception, and none cancels the task for the others."""

from __future__ import annotations

import asyncio
import traceback

import pytest

from gantrymq.background.shared_task import own_copy, result_of
from gantrymq.errors import BrokerError, ConnectFailed


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as e:
        return e


@pytest.mark.parametrize(
    "error",
    [
        ConnectFailed("can't connect", "127.0.0.1:1"),
        BrokerError(2, "busy", "127.0.0.1:1"),
        OSError(24, "too many open files"),
        KeyError("key"),
    ],
)
def test_a_copy_is_the_same_but_for_what_is_added_to_it(error: Exception) -> None:
    error.__cause__ = ValueError("cause")
    error.add_note("before")
    original = raised(error)
    copied = own_copy(original)
    assert copied is not original
    assert type(copied) is type(original)
    assert str(copied) == str(original)
    assert copied.args == original.args
    assert copied.__cause__ is original.__cause__
    assert {**vars(copied)} == {**vars(original)}
    copied.add_note("after")
    assert original.__notes__ == ["before"]
    length = len(traceback.extract_tb(original.__traceback__))
    for _ in range(3):
        raised(own_copy(original))
    assert len(traceback.extract_tb(original.__traceback__)) == length


def test_what_cannot_be_copied_is_itself() -> None:
    class Strange(Exception):
        def __new__(cls, one: int, two: int) -> Strange:
            return super().__new__(cls, one)

    error = Strange(1, 2)
    error.args = (1,)
    assert own_copy(error) is error


async def test_each_waiter_gets_its_own_error() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ConnectFailed("can't connect", "127.0.0.1:1")

    task = asyncio.ensure_future(fail())
    outcomes = await asyncio.gather(*(result_of(task) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, ConnectFailed) for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 3


async def test_who_gives_up_ends_it_for_nobody_else() -> None:
    go_on = asyncio.Event()

    async def work() -> int:
        await go_on.wait()
        return 7

    task = asyncio.ensure_future(work())
    first, second = (asyncio.ensure_future(result_of(task)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go_on.set()
    assert await second == 7
    assert first.cancelled()


async def test_a_cancelled_task_is_told() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    waiter = asyncio.ensure_future(result_of(task))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
