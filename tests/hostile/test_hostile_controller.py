"""Each request code of a controller with meaningless fields and bodies, beside an innocent broker."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from every_request import (
    Known,
    Request,
    hostile_bodies,
    hostile_fields,
    large_bodies,
    learn,
    unreadable_fields,
)
from hostile_support import MOST_LOG, MOST_MEMORY, SLOWEST_MS, faults
from prober import Figures
from server_handlers import handlers_of
from test_every_request import Attacker, attack

from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.protocol.frame_reader import FrameReader
from gantrymq.testing.processes import ServerProcess


async def known_to_controller(directory: Path) -> list[Known]:
    config = ControllerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        controller_store_path=directory / "learning",
        config_store_path=directory / "learning.properties",
    )
    controller = Controller(config)
    await controller.start()
    try:
        reader, writer = await asyncio.open_connection(*controller.address.rsplit(":", 1))

        async def ask(request: Request) -> None:
            writer.write(request.frame(1))
            # The controller responds to this code in any case, which shows that the previous request was handled.
            writer.write(Request(-1, "no such code", {}).frame(2))
            frames = FrameReader()
            while True:
                if any(answer.opaque == 2 for answer in frames.feed(await reader.read(1 << 20))):
                    return

        return await learn(handlers_of(controller), ask)
    finally:
        await controller.stop()


@asynccontextmanager
async def attacked(directory: Path) -> AsyncIterator[ServerProcess]:
    """Starts a controller and an innocent broker.

    At the end, asserts the conditions that must hold after every attack.
    """
    properties = {
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "controllerStorePath": str(directory / "state"),
        "configStorePath": str(directory / "controller.properties"),
    }
    controller = ServerProcess("controller", "controller", directory, properties, ())
    try:
        controller.wait_until_ready(time.monotonic() + 30)
        script = Path(__file__).with_name("controller_prober.py")
        prober = await asyncio.create_subprocess_exec(
            *(sys.executable, str(script), controller.address, str(controller.pid)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert prober.stdout is not None
            assert await prober.stdout.readline() == b"ready\n"
            yield controller
            output, _ = await prober.communicate(b"")
        finally:
            if prober.returncode is None:
                prober.kill()
                await prober.wait()
        assert controller.is_running
    finally:
        controller.stop()
    figures = Figures(**json.loads(output.splitlines()[-1]))
    print(f"{figures.rounds} rounds, slowest answer {figures.slowest_ms:.0f} ms, {figures.memory:.0f} MiB")
    assert not figures.errors, figures.errors
    assert figures.stall_ms < SLOWEST_MS, figures
    assert figures.memory < MOST_MEMORY, figures
    assert controller.exit_code == 0, "it had to be killed"
    log = controller.log_path.read_text(errors="replace")
    assert len(log) < MOST_LOG
    found = faults(log)
    assert not found, found[:5]


@pytest.mark.parametrize("encoding", ["json", "binary"])
async def test_fields_and_bodies_for_the_controller(tmp_path: Path, encoding: str) -> None:
    known = await known_to_controller(tmp_path)
    assert sum(bool(one.fields) for one in known) >= 8
    assert sum(one.body_type is not None for one in known) == 2
    async with attacked(tmp_path) as controller:
        for attacks in (hostile_fields, hostile_bodies):
            await attack(controller, known, attacks, binary=encoding == "binary")
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("escaped*")))


async def test_large_bodies_for_the_controller(tmp_path: Path) -> None:
    known = await known_to_controller(tmp_path)
    async with attacked(tmp_path) as controller:
        await attack(controller, known, large_bodies, binary=False, at_once=1)


@pytest.mark.parametrize("encoding", ["json", "binary"])
async def test_fields_that_are_no_text_for_the_controller(tmp_path: Path, encoding: str) -> None:
    known = await known_to_controller(tmp_path)
    async with attacked(tmp_path) as controller:
        attacker = Attacker(controller, binary=encoding == "binary")
        for one in known:
            requests = list(unreadable_fields(one))
            served = await asyncio.gather(*map(attacker.is_served, requests))
            assert all(served), [r.what for r, is_served in zip(requests, served, strict=True) if not is_served]
