"""What several wait for: one task for all of them, and for each an exception of its own."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


def own_copy(error: E) -> E:
    """`error` for one of several who raise it: raised again and again, one object gathers tracebacks and notes.

    Not by copy.copy, which calls the class with `args`: the message alone, where a class takes more than that.
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
    """The result of a task that others wait for, too: a caller that is cancelled doesn't end it.

    Raises a copy of what the task raised; CancelledError if the task itself was cancelled.
    """
    if not task.done():
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise own_copy(error)
    return task.result()
