"""Tests of a group of tasks with one owner. Errors are logged, and all tasks end with the owner."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gantrymq.background.tasks import Tasks


async def test_what_fails_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks("resets of offsets")
    go_on = asyncio.Event()
    done: list[str] = []

    async def fail() -> None:
        raise OSError("no disk")

    async def succeed() -> None:
        await go_on.wait()
        done.append("succeeded")

    tasks.start(succeed())
    tasks.start(fail())
    assert len(tasks) == 2
    while len(tasks) == 2:
        await asyncio.sleep(0)
    gc.collect()
    assert "resets of offsets failed: OSError: no disk" in caplog.text
    go_on.set()
    await tasks.wait()
    assert done == ["succeeded"]


async def test_stop_cancels_and_waits() -> None:
    tasks = Tasks("work")
    ended: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("ended")

    tasks.start(slow_to_end())
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended == ["ended"]
    assert len(tasks) == 0


async def test_after_the_stop_nothing_begins() -> None:
    tasks = Tasks("work")
    began: list[str] = []

    async def work() -> None:
        began.append("began")

    await tasks.stop()
    tasks.start(work())
    await tasks.wait()
    assert began == []


async def test_wait_waits_for_what_is_begun_meanwhile() -> None:
    tasks = Tasks("work")
    done: list[str] = []

    async def second() -> None:
        await asyncio.sleep(0)
        done.append("second")

    async def first() -> None:
        await asyncio.sleep(0)
        tasks.start(second())

    tasks.start(first())
    await tasks.wait()
    assert done == ["second"]
