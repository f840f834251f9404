"""The access log: one line in a file for each completed call, for example for audits.

A thread writes the lines once a second, so that a hanging disk does not delay calls. It opens the file for each write,
so log rotation can rename the file at any time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from gantrymq.background.jobs import Jobs
from gantrymq.background.shared_task import result_of
from gantrymq.limits import PROXY_LOG_LINES
from gantrymq.logs import peer_log
from gantrymq.system import clock

log = peer_log(__name__)

#: Interval of writes, s, and limit of the buffered lines while writes fail.
_EVERY_S = 1.0
#: Largest length of a client id in a line. Longer ids, which clients can choose, are cut off.
LONGEST_ID = 200


class AccessLog:
    """The access log of one proxy. `stop` writes the buffered lines."""

    def __init__(self, path: Path, jobs: Jobs) -> None:
        self._path = path
        self._lines: list[str] = []
        self._lost = 0
        #: The task of the running write, if there is one.
        self._writing: asyncio.Task[None] | None = None
        self._job = jobs.repeating("write the access log", self._write, _EVERY_S)

    def start(self) -> None:
        """Opens the file once and starts the writes. Raises OSError if the file is not writable."""
        self._append("")
        self._job.start()

    async def stop(self) -> None:
        await self._job.stop()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        with suppress(OSError):
            await self._write()

    def ended(self, peer: str, client_id: str, method: str, result: str, seconds: float) -> None:
        """Adds a line for a completed call. `result` is the name of the response's code, or of gRPC's status."""
        if len(self._lines) >= PROXY_LOG_LINES:
            self._lost += 1
            return
        name = quote(client_id[:LONGEST_ID], safe="@#:._-") or "-"
        self._lines.append(f"{clock.now_ms()} {peer} {name} {method} {result} {1000 * seconds:.1f}\n")

    async def _write(self) -> None:
        if self._lines:
            # A separate task, because cancelling this method cannot stop the thread.
            self._writing = asyncio.get_running_loop().create_task(self._write_lines())
            try:
                await result_of(self._writing)
            finally:
                if self._writing.done():
                    self._writing = None

    async def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        lost, self._lost = self._lost, 0
        if lost:
            log.error("%d calls are missing in %s, which could not be written", lost, self._path)
        try:
            await asyncio.to_thread(self._append, "".join(lines))
        except OSError:
            # The next write includes these lines again.
            self._lines = (lines + self._lines)[:PROXY_LOG_LINES]
            raise

    def _append(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
