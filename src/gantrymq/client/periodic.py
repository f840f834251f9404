"""Work that is repeated as long as a client lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def repeat(interval_s: float, action: Callable[[], Awaitable[None]]) -> None:
    """Awaits `action` every `interval_s`, the first time after one; a failure is logged and ends nothing."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await action()
        except Exception:
            log.exception("%s failed, it will be tried again in %g s", action, interval_s)
