"""Writes the broker's tables to their files, in a thread. One write contains many changes.

Important changes are written soon, and a request can wait until its change is on disk. Other changes are written every
`flushConsumerOffsetInterval`. All changes are written when the broker stops.

Java writes the file for each change. With one write for each change, a heartbeat with 4,000 new groups would take 47 s.
A table is encoded in small pieces, because a single call blocks the event loop even from a thread: 28 ms for 50,000
topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.feature import Feature
from gantrymq.errors import StoreError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.json_config import JsonConfigFile
from gantrymq.system import clock, files, threads

T = TypeVar("T")

#: Delay of an important change, in seconds, so that further changes are written with it.
SOON_S = 0.05
#: Delay of the next attempt after a failure, in seconds.
_AFTER_ERROR_S = 1.0
#: Number of table entries that one call encodes. A call takes 0.5 ms.
_ENTRIES = 1000
#: After a piece of at least this size, in bytes, the encoding thread sleeps for _REST_S.
_PIECE_BYTES = 16 * 1024
#: Duration of the sleep, in seconds. Without the sleep, the thread would keep the GIL for 5 ms.
_REST_S = 0.0001

#: Mode of the directory of a secret file: only the owner has access.
_SECRET_DIRECTORY = 0o700

#: Returns the content of a file in pieces. The event loop calls it; a thread iterates over the result.
Encode = Callable[[], Iterable[bytes]]


class TableFile:
    """The file of one table. `TablePersistence.file` creates it."""

    __slots__ = (
        "_being_written",
        "_encode",
        "_file",
        "_follows_log",
        "_is_secret",
        "_newest",
        "_saved",
        "_saving",
        "_waiters",
        "_writing",
        "changes",
        "is_urgent",
        "written_changes",
    )

    def __init__(
        self, path: Path, encode: Encode, persistence: TablePersistence, *, is_secret: bool, follows_log: bool
    ) -> None:
        self._file = JsonConfigFile(path, is_secret=is_secret)
        self._follows_log = follows_log
        self._is_secret = is_secret
        self._encode = encode
        self._saving = persistence
        #: Pairs: number of changes that must be on disk, and the caller's future.
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        #: Number of all changes of the table, and number of changes that are on disk.
        self.changes = 0
        self.written_changes = 0
        #: Number of changes that the current write includes; 0 without a current write.
        self._being_written = 0
        self.is_urgent = False
        #: Number of the newest content, so that older content never replaces newer content on disk.
        self._newest = 0
        self._saved = 0
        self._writing = threads.Lock()

    def load(
        self, table: type[T], *, check: Callable[[T], object] = lambda _: None, can_be_rebuilt: bool = False
    ) -> T | None:
        """Returns the content of the file, or of its backup; None if there is no file.

        `check` raises ValueError for invalid content. If the file is damaged and has no valid backup, `load` raises
        StoreError. With `can_be_rebuilt`, it returns None instead and renames the file.
        """
        data = self._file.load(lambda content: check(decode_json(content, table)), can_be_rebuilt=can_be_rebuilt)
        return None if data is None else decode_json(data, table)

    @property
    def is_changed(self) -> bool:
        """True if some changes are not on disk."""
        return self.changes != self.written_changes

    def changed(self) -> None:
        """Records a change of the table, which is written in the next round."""
        self.changes += 1

    def write_soon(self) -> None:
        """Records an important change of the table, which is written after SOON_S."""
        self.changes += 1
        self.is_urgent = True
        self._saving.wake(SOON_S)

    def written(self) -> asyncio.Future[None]:
        """Completes when all changes so far are on disk. Raises StoreError."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.is_changed:
            waiter.set_result(None)
            return waiter
        self._waiters.append((self.changes, waiter))
        # Marks the exception as retrieved, because the caller may have stopped waiting.
        waiter.add_done_callback(lambda waiter: waiter.cancelled() or waiter.exception())
        if self._being_written < self.changes:
            self.is_urgent = True
            self._saving.wake(0.0)
        return waiter

    async def write(self) -> None:
        """Writes the content in another thread. Raises StoreError; the changes then remain to be written.

        Completes the futures of all `written` calls whose changes are in this write, even of calls during the write.
        """
        self.is_urgent = False
        changes = self._being_written = self.changes
        problem: StoreError | None = None
        try:
            content = self._content()
            if self._follows_log and self._saving.log_flushed is not None:
                await self._saving.log_flushed()
            await asyncio.get_running_loop().run_in_executor(None, self._save, *content)
        except BaseException as e:
            self.is_urgent = True
            problem = StoreError(str(e) or "the broker stops")
            raise
        else:
            self.written_changes = max(self.written_changes, changes)
        finally:
            self._being_written = 0
            told = [waiter for number, waiter in self._waiters if number <= changes]
            self._waiters = [(number, waiter) for number, waiter in self._waiters if number > changes]
            for waiter in told:
                if waiter.done():
                    continue
                if problem is not None:
                    waiter.set_exception(StoreError(str(problem)))
                else:
                    waiter.set_result(None)

    def write_now(self) -> None:
        """Writes the content in the calling thread. Raises StoreError.

        The thread of a cancelled `write` may still run, but does not replace this content with older content.
        """
        changes = self.changes
        self._save(*self._content())
        self.written_changes = changes
        self.is_urgent = False

    def _content(self) -> tuple[int, Iterable[bytes]]:
        self._newest += 1
        return self._newest, self._encode()

    def _save(self, number: int, pieces: Iterable[bytes]) -> None:
        data = b"".join(gently(pieces))
        with self._writing:
            if number > self._saved:
                if self._is_secret:
                    files.make_lasting_directory(self._file.path.parent, _SECRET_DIRECTORY)
                self._file.save(data)
                self._saved = number


def gently(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the pieces that a thread encodes, and sleeps after large ones, so that the event loop can run."""
    for piece in pieces:
        yield piece
        if len(piece) >= _PIECE_BYTES:
            clock.sleep(_REST_S)


def in_pieces(table: msgspec.Struct) -> Iterator[bytes]:
    """Encodes a table as JSON in pieces. The call itself reads the keys of the dicts; each piece reads its values.

    If an entry changes before its piece is encoded, the piece contains the new value. If the entry is removed, the
    piece omits it. Entries that are added after the call are not included.
    """
    fields: list[_Field] = []
    omits_empty = table.__struct_config__.omit_defaults
    # msgspec.structs.fields would compile the annotations of the class each time.
    for name, encode_name in zip(table.__struct_fields__, table.__struct_encode_fields__, strict=True):
        value = getattr(table, name)
        if isinstance(value, dict):
            if value or not omits_empty:
                fields.append((encode_name, _Entries(value, list(value))))
        elif isinstance(value, msgspec.Struct):
            fields.append((encode_name, in_pieces(value)))
        else:
            fields.append((encode_name, encode_json(value)))
    return _encoded(fields)


class _Entries(NamedTuple):
    """A dict and its keys at the start of the encoding. A copy of the dict would use seven times the memory."""

    table: dict[Any, Any]
    keys: list[Any]


_Field = tuple[str, _Entries | bytes | Iterator[bytes]]


def _encoded(fields: Sequence[_Field]) -> Iterator[bytes]:
    if not fields:
        yield b"{}"
        return
    before = b"{"
    for name, content in fields:
        yield before + encode_json(name) + b":"
        before = b","
        if isinstance(content, bytes):
            yield content
            continue
        if not isinstance(content, _Entries):
            yield from content
            continue
        table, keys = content
        between = b"{"
        for start in range(0, len(keys), _ENTRIES):
            if some := {key: value for key in keys[start : start + _ENTRIES] if (value := table.get(key)) is not None}:
                yield between + encode_json(some)[1:-1]
                between = b","
        yield b"}" if between == b"," else b"{}"
    yield b"}"


class TablePersistence(Feature):
    """Writes the table files of one broker in a background job."""

    def __init__(
        self, config: BrokerConfig, jobs: Jobs, *, log_flushed: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._config = config
        #: Completes when the log is flushed. Awaited before a file with `follows_log` is written.
        self.log_flushed = log_flushed
        self._files: list[TableFile] = []
        self._job = jobs.repeating("save tables", self._write, after_error_s=_AFTER_ERROR_S)
        self._next_round = 0.0

    def file(self, path: Path, encode: Encode, *, is_secret: bool = False, follows_log: bool = False) -> TableFile:
        """Creates the file of a table.

        Args:
            path: Path of the file.
            encode: Returns the content.
            is_secret: Only the owner may read the file.
            follows_log: The file records that messages were consumed or delivered. After a power failure, it must not
                contain messages that the log has lost. The log is therefore flushed before each write.
        """
        file = TableFile(path, encode, self, is_secret=is_secret, follows_log=follows_log)
        self._files.append(file)
        return file

    async def start(self) -> None:
        self._next_round = asyncio.get_running_loop().time() + self.period_s
        self._job.start(SOON_S if any(file.is_urgent for file in self._files) else self.period_s)

    async def stop(self) -> None:
        await self._job.stop()

    def save(self) -> None:
        """Writes all changed tables in the calling thread. Raises the errors of the files that cannot be written."""
        problems: list[Exception] = []
        for file in self._files:
            if file.is_changed:
                try:
                    file.write_now()
                except Exception as e:
                    problems.append(e)
        _raise_all(problems)

    def wake(self, after_s: float) -> None:
        """Runs the background job after a delay, in seconds."""
        self._job.wake(after_s)

    @property
    def period_s(self) -> float:
        return self._config.flush_consumer_offset_interval / 1000

    async def _write(self) -> float:
        loop = asyncio.get_running_loop()
        is_round = loop.time() >= self._next_round
        if is_round:
            self._next_round = loop.time() + self.period_s
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
    """Raises one error with the texts of all problems. Does nothing if there are none."""
    if len(problems) > 1:
        raise StoreError("; ".join(str(problem) or type(problem).__name__ for problem in problems)) from problems[0]
    if problems:
        raise problems[0]


def answer_in_pieces(pieces: Iterator[bytes], fields: dict[str, str] | None = None) -> Steps:
    """Returns a response with a table as its body, encoded in steps."""
    done = []
    for piece in pieces:
        done.append(piece)
        if len(piece) >= _PIECE_BYTES:
            yield
    return RemotingCommand.response(body=b"".join(done), fields=fields)


async def answer_after(written: Awaitable[None], answer: RemotingCommand | None = None) -> RemotingCommand:
    """Returns `answer` (default: SUCCESS) after `written` completes. Raises StoreError."""
    await written
    return answer or RemotingCommand.response()
