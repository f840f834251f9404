"""Concurrent requests to many servers. Collects the results, and the failures with their reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from gantrymq.errors import GantryError

T = TypeVar("T")


class Unasked(msgspec.Struct, frozen=True):
    """A server, or a part of its data, that is missing on a page, with the reason."""

    what: str
    why: str


class Responses(Generic[T]):
    """The results by key, and the failed requests."""

    def __init__(self) -> None:
        self.results: dict[str, T] = {}
        self.unasked: list[Unasked] = []


async def query_each(
    keys: Iterable[str], request: Callable[[str], Awaitable[T]], within_s: float | None
) -> Responses[T]:
    """Runs `request` for each key concurrently, each with a timeout of `within_s`. Never raises a GantryError.

    If `within_s` is None, `request` must have a timeout of its own.
    """
    responses: Responses[T] = Responses()

    async def query(key: str) -> None:
        try:
            async with asyncio.timeout(within_s):
                responses.results[key] = await request(key)
        except TimeoutError:
            responses.unasked.append(Unasked(key, f"no answer in {within_s:g} s"))
        except GantryError as e:
            responses.unasked.append(Unasked(key, str(e)))

    await asyncio.gather(*(query(key) for key in dict.fromkeys(keys)))
    responses.unasked.sort(key=lambda unasked: unasked.what)
    return responses
