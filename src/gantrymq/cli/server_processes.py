"""ServerProcesses: runs several processes of `gantry broker` or `gantry proxy`, and restarts a process that ends."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gantrymq.background.jobs import Jobs
from gantrymq.errors import GantryError

#: The delay before a process that has ended is restarted, in seconds.
AGAIN_S = 1.0
#: The time after which a process that doesn't stop is killed, in seconds. It is a little shorter than
#: `servers.STOP_TIMEOUT_S`, the limit of this process itself.
STOP_S = 28.0


class ServerProcesses:
    """Runs `count` processes of `command`. Must be created in a running event loop.

    Args:
        command: "broker" or "proxy".
        count: Number of processes.
        configuration: Returns the text of the configuration file for a process, given its number. Called at each start
            of the process.
    """

    def __init__(self, command: str, count: int, configuration: Callable[[int], str]) -> None:
        self._command = command
        self._configuration = configuration
        self._directory = tempfile.TemporaryDirectory(prefix=f"gantry-{command}-")
        jobs = Jobs()
        self._jobs = [
            jobs.repeating(f"process {n} of the {command}", partial(self._run, n), after_error_s=AGAIN_S)
            for n in range(count)
        ]
        self._ready: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(count)]
        #: {number: pid} of the running processes.
        self.pids: dict[int, int] = {}

    async def start(self) -> None:
        """Starts the processes, and returns when all of them serve requests.

        Raises GantryError if one can't start. The process has printed the reason.
        """
        for job in self._jobs:
            job.start(0.0)
        try:
            await asyncio.gather(*self._ready)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops the processes. A second call has no effect."""
        await asyncio.gather(*(job.stop() for job in self._jobs))
        self._directory.cleanup()

    async def _run(self, n: int) -> None:
        """Runs a process, and raises GantryError when it ends. If the task is cancelled, it stops the process."""
        # The suffix selects the format.
        file = Path(self._directory.name) / f"{n}.{'json' if self._command == 'proxy' else 'conf'}"
        ready = self._ready[n]
        try:
            file.write_text(self._configuration(n))
        except (OSError, GantryError) as e:
            error = GantryError(f"process {n} of the {self._command} can't start: {e}")
            if not ready.done():
                ready.set_exception(error)
            raise error from e
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gantrymq.cli", self._command, "-c", str(file), "--stop-on-eof"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self.pids[n] = process.pid
        try:
            assert process.stdout is not None
            if b"ready at" in await process.stdout.readline() and not ready.done():
                ready.set_result(None)
            code = await process.wait()
        finally:
            del self.pids[n]
            if process.returncode is None:
                await _end(process)
        error = GantryError(f"process {n} of the {self._command} has ended with code {code}")
        if not ready.done():
            ready.set_exception(error)
        raise error


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
