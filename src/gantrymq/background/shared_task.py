"""Shares the result of one task among several callers."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def own_copy(error: E) -> E:
    """Returns a copy of `error` for one of several callers.

    If all callers raised the same object, it would collect the tracebacks and notes of all. `copy.copy` is not usable:
    it calls the class with `args`, which lacks further constructor arguments.
    """
    try:
        copied = type(error).__new__(type(error), *error.args)
    except TypeError:
        return error
    copied.__dict__.update(error.__dict__)
    if notes := getattr(error, "__notes__", None):
        copied.__notes__ = list(notes)
    copied.__cause__, copied.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copied.with_traceback(error.__traceback__)


async def result_of(task: asyncio.Future[T]) -> T:
    """Returns the result of a shared task. If a caller is cancelled, the task continues for the others.

    Raises a copy of the task's exception. Raises CancelledError if the task itself was cancelled.
    """
    if not task.done():
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise own_copy(error)
    return task.result()
