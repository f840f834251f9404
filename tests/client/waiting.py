"""Waiting for a state, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TIMEOUT_S = 20.0


async def eventually(holds: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Returns as soon as `holds()` is true; fails the test when it isn't in time."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.005)
