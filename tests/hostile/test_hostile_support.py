"""Tests of this suite's own tools: they detect what they must detect."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
from hostile_support import Target, UnderAttack, faults
from wait_until import wait_until

_LINE = "2026-11-22 02:04:52,488 {} gantrymq.broker.broker: something\n"


Harm = Callable[[Target], Awaitable[None]]


async def _stall(broker: Target) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    # On a busy machine, the broker would not run in some of this time anyway, which does not count.
    await asyncio.sleep(2)
    os.kill(broker.pid, signal.SIGCONT)


async def _kill(broker: Target) -> None:
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not broker.process.is_running)


async def _write_into_the_log(broker: Target) -> None:
    with broker.process.log_path.open("a") as log:
        log.write("forged\n")


async def _damage_a_queue(broker: Target) -> None:
    await broker.probe_no_more()
    broker.process.stop()
    queue = next((broker.store / "consumequeue" / "innocent" / "0").iterdir())
    with queue.open("r+b") as file:
        file.write(bytes(6) + b"\x07")


@pytest.mark.parametrize(
    ("harm", "notice"),
    [
        (_stall, r"slowest_ms=\d{3,4}"),
        (_kill, "broker-a ended"),
        (_write_into_the_log, "forged"),
        (_damage_a_queue, "innocent"),
    ],
)
async def test_harm_is_noticed(under_attack: UnderAttack, harm: Harm, notice: str) -> None:
    async def attack() -> None:
        async with under_attack() as broker:
            await harm(broker)

    with pytest.raises(AssertionError, match=notice):
        await attack()


async def test_memory_is_noticed(under_attack: UnderAttack) -> None:
    async def attack() -> None:
        async with under_attack(most_memory=5.0):
            pass

    with pytest.raises(AssertionError, match="memory="):
        await attack()


def test_what_a_fault_is() -> None:
    good = _LINE.format("INFO") + _LINE.format("WARNING")
    error = _LINE.format("ERROR") + "  | Traceback (most recent call last):\n"
    assert faults(good) == []
    assert faults(good + error) == [error[:-1]]
    assert faults(good + error, ["something"]) == []
    assert faults(good + "forged\n") == ["forged"]
    assert len(faults(good + _LINE.format("INFO")[:-1] + " was never awaited\n")) == 1
