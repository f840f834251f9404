"""The broker's tables and their files: written off the loop, many changes at once.

What must not be lost is written soon, and who asked for it may wait until it is on the disk; the rest is written every
flushConsumerOffsetInterval, and all of it when the broker stops.

The alternative that lost: a file is written with each change, as in Java. A heartbeat with 4,000 new groups took 47 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.errors import StoreError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.store.json_config import JsonConfigFile

T = TypeVar("T")

#: What is to be written soon waits so long for what changes with it, s.
SOON_S = 0.05
#: After a failure it is tried again, s.
_AFTER_ERROR_S = 1.0


class TableFile:
    """One table's file; `encode` gives its content. Made by `Saving.file`."""

    __slots__ = ("_encode", "_file", "_saving", "_waiters", "is_changed", "is_urgent")

    def __init__(self, path: Path, encode: Callable[[], bytes], saving: Saving) -> None:
        self._file = JsonConfigFile(path)
        self._encode = encode
        self._saving = saving
        self._waiters: list[asyncio.Future[None]] = []
        #: The table sets it when something has changed: it is written with the next round.
        self.is_changed = False
        self.is_urgent = False

    def load(self, table: type[T], *, can_be_rebuilt: bool = False) -> T | None:
        """The content, None where there is no file.

        Raises StoreError for a damaged one without a good backup; one that `can_be_rebuilt` is put aside.
        """
        data = self._file.load(lambda content: decode_json(content, table), can_be_rebuilt=can_be_rebuilt)
        return None if data is None else decode_json(data, table)

    def write_soon(self) -> None:
        """The table has changed, and shouldn't lose it."""
        self.is_changed = self.is_urgent = True
        self._saving.wake(SOON_S)

    def written(self) -> asyncio.Future[None]:
        """Done when all that has changed so far is on the disk. Raises StoreError."""
        self.is_changed = self.is_urgent = True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        # Nobody may wait any more.
        waiter.add_done_callback(lambda waiter: waiter.cancelled() or waiter.exception())
        self._saving.wake(0.0)
        return waiter

    async def write(self) -> None:
        """Writes the content, in another thread. Raises StoreError; then it is still to be written."""
        self.is_changed = self.is_urgent = False
        waiters, self._waiters = self._waiters, []
        try:
            self._file.put(self._encode())
            await asyncio.get_running_loop().run_in_executor(None, self._file.write)
        except BaseException as e:
            self.is_changed = self.is_urgent = True
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(StoreError(str(e) or "the broker stops"))
            raise
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def write_now(self) -> None:
        """Writes it in this thread. Raises StoreError.

        A thread whose caller was cancelled may still be at it: it doesn't write what is older than this.
        """
        self._file.save(self._encode())
        self.is_changed = self.is_urgent = False


class Saving(Part):
    """All the files of one broker."""

    def __init__(self, config: BrokerConfig, jobs: Jobs) -> None:
        self._config = config
        self._files: list[TableFile] = []
        self._job = jobs.repeating("save tables", self._write, after_error_s=_AFTER_ERROR_S)
        self._next_round = 0.0

    def file(self, path: Path, encode: Callable[[], bytes]) -> TableFile:
        """The file of a table, which `encode` gives the content of."""
        file = TableFile(path, encode, self)
        self._files.append(file)
        return file

    async def start(self) -> None:
        self._next_round = asyncio.get_running_loop().time() + self._period_s
        self._job.start(self._period_s)

    async def stop(self) -> None:
        await self._job.stop()

    def save(self) -> None:
        """Writes what has changed, in this thread. Raises what the files raise that can't be written."""
        problems: list[Exception] = []
        for file in self._files:
            if file.is_changed:
                try:
                    file.write_now()
                except Exception as e:
                    problems.append(e)
        _raise_all(problems)

    def wake(self, after_s: float) -> None:
        self._job.wake(after_s)

    @property
    def _period_s(self) -> float:
        return self._config.flush_consumer_offset_interval / 1000

    async def _write(self) -> float:
        loop = asyncio.get_running_loop()
        is_round = loop.time() >= self._next_round
        if is_round:
            self._next_round = loop.time() + self._period_s
        problems: list[Exception] = []
        for file in self._files:
            if file.is_urgent or (is_round and file.is_changed):
                try:
                    await file.write()
                except Exception as e:
                    problems.append(e)
        _raise_all(problems)
        return max(self._next_round - loop.time(), 0.0)


def _raise_all(problems: list[Exception]) -> None:
    """One error that names every file; nothing when there is none."""
    if len(problems) > 1:
        raise StoreError("; ".join(str(problem) or type(problem).__name__ for problem in problems)) from problems[0]
    if problems:
        raise problems[0]


async def answer_after(written: Awaitable[None], answer: RemotingCommand | None = None) -> RemotingCommand:
    """An answer, SUCCESS if none is given, when something is on the disk. Raises StoreError."""
    await written
    return answer or RemotingCommand.response()
