from __future__ import annotations

import asyncio

import pytest
from waiting import until

from gantrymq.client.periodic import repeat


async def test_goes_on_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0

    async def action() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("as always")

    task = asyncio.create_task(repeat(0.001, action))
    await until(lambda: calls >= 3)
    task.cancel()
    assert "as always" in caplog.text
