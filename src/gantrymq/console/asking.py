"""Asking many servers at once: what answered, and what didn't and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from gantrymq.errors import GantryError

T = TypeVar("T")


class Unasked(msgspec.Struct, frozen=True):
    """A server, or a part of it, that is missing in what is shown, and why."""

    what: str
    why: str


class Answers(Generic[T]):
    """{who: what it answered}, and those that didn't."""

    def __init__(self) -> None:
        self.answers: dict[str, T] = {}
        self.unasked: list[Unasked] = []


async def ask_each(whom: Iterable[str], question: Callable[[str], Awaitable[T]], within_s: float) -> Answers[T]:
    """Asks all of them; who hasn't answered after `within_s` counts as silent. Never raises a GantryError."""
    asked = list(dict.fromkeys(whom))
    answers: Answers[T] = Answers()

    async def ask(one: str) -> None:
        try:
            async with asyncio.timeout(within_s):
                answers.answers[one] = await question(one)
        except TimeoutError:
            answers.unasked.append(Unasked(one, f"no answer in {within_s:g} s"))
        except GantryError as e:
            answers.unasked.append(Unasked(one, str(e)))

    await asyncio.gather(*(ask(one) for one in asked))
    answers.unasked.sort(key=lambda unasked: unasked.what)
    return answers
