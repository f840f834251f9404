"""A controller that hangs or dies while a master hands over.

It does so before the request, after the decision, or after the hand-over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from controllers_under_load import ControlledByProcesses, hand_over, under_load
from wait_until import until

from gantrymq.testing.processes import ServerProcess

#: The lease is nine tenths of it.
HEARTBEAT_TIMEOUT_MS = 3_000
#: Twice AdminClient's default request timeout (5 s), to allow for a slow machine. In seconds.
COMMAND_S = 10


class Hanging(ControlledByProcesses):
    """Brokers whose controller runs in another process and sends no notification of a new master.

    The brokers poll it every 2 s.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            controller_heart_beat_timeout_mills=HEARTBEAT_TIMEOUT_MS,
            sync_broker_metadata_period=2_000,
        )

    async def start_controller(self) -> None:
        properties = {
            "bindAddress": "127.0.0.1",
            "listenPort": str(self._port),
            "controllerStorePath": str(self.directory / "controller"),
            "configStorePath": str(self.directory / "controller.properties"),
            "notifyBrokerRoleChanged": "false",
        }
        self.process = ServerProcess("controller", "n0", self.directory, properties, ())
        self.controller = self.process  # type: ignore[assignment]
        await asyncio.to_thread(self.process.wait_until_ready, time.monotonic() + 30)

    async def _stop_controller(self) -> None:
        self.send_signal(signal.SIGCONT)
        await asyncio.to_thread(self.process.stop)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["goes on", "is killed"])
@pytest.mark.parametrize(
    ("step", "meanwhile", "master"),
    [("before", 1, 1), ("decided", 1, 2), ("told", 2, 2)],
    ids=["before", "decided", "told"],
)
async def test_it_hangs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], step: str, meanwhile: int, master: int, end: str
) -> None:
    async with Hanging(tmp_path) as replicas, under_load(replicas) as acknowledged:
        await until(lambda: len(acknowledged) > 50)
        if step == "before":
            replicas.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert await hand_over(replicas, 2) != 0
            assert time.monotonic() - began < COMMAND_S
            assert replicas.controller.address in capfd.readouterr().err
        else:
            assert await hand_over(replicas, 2) == 0
            if step == "told":
                await until(lambda: replicas.masters() == [2])
            replicas.send_signal(signal.SIGSTOP)
        # The lease expires, and the master continues: all in-sync replicas confirm that it is the only master.
        lease_ends = time.monotonic() + HEARTBEAT_TIMEOUT_MS / 1000
        await until(lambda: time.monotonic() > lease_ends)
        so_far = len(acknowledged)
        await until(lambda: len(acknowledged) > so_far + 50)
        assert replicas.masters() == [meanwhile]
        if end == "goes on":
            replicas.send_signal(signal.SIGCONT)
        else:
            replicas.send_signal(signal.SIGKILL)
            await asyncio.to_thread(replicas.process.stop)
            await replicas.start_controller()
        await until(lambda: replicas.masters() == [master])
        so_far = len(acknowledged)
        await until(lambda: len(acknowledged) > so_far + 50)
        assert replicas.masters() == [master]
