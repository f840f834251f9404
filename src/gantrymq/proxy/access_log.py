"""AccessLog: a line in a file for each call that has ended; for who must tell later who asked for what.

Lines are written once a second, by a thread: a disk that hangs holds up no call. The file is opened for each of these
times, so that it may be moved away and another one begins.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from gantrymq.background.jobs import Jobs
from gantrymq.background.shared import result_of
from gantrymq.logs import peer_log
from gantrymq.system import clock

log = peer_log(__name__)

#: How often lines are written, s; how many may wait for a disk that takes none.
_EVERY_S = 1.0
MAX_WAITING = 100_000
#: Of a client's id, which it makes up.
LONGEST_ID = 200


class AccessLog:
    """Of one proxy. `start` and `stop` are for its job; what is there by the end is written."""

    def __init__(self, path: Path, jobs: Jobs) -> None:
        self._path = path
        self._lines: list[str] = []
        self._lost = 0
        #: What a thread writes now.
        self._writing: asyncio.Task[None] | None = None
        self._job = jobs.repeating("write the access log", self._write, _EVERY_S)

    def start(self) -> None:
        """Raises OSError for a file that can't be written."""
        self._append("")
        self._job.start()

    async def stop(self) -> None:
        await self._job.stop()
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        with suppress(OSError):
            await self._write()

    def ended(self, peer: str, client_id: str, method: str, result: str, seconds: float) -> None:
        """A call has ended, with the name of the response's code, or of gRPC's status."""
        if len(self._lines) >= MAX_WAITING:
            self._lost += 1
            return
        name = quote(client_id[:LONGEST_ID], safe="@#:._-") or "-"
        self._lines.append(f"{clock.now_ms()} {peer} {name} {method} {result} {1000 * seconds:.1f}\n")

    async def _write(self) -> None:
        if self._lines:
            # A task of its own: the thread goes on, whoever gives up waiting.
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
            # They are tried again with the next.
            self._lines = (lines + self._lines)[:MAX_WAITING]
            raise

    def _append(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
