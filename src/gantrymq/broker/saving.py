"""The broker's tables and their files: written off the loop, many changes at once.

What must not be lost is written soon, and who asked for it may wait until it is on the disk; the rest is written every
flushConsumerOffsetInterval, and all of it when the broker stops.

The alternatives that lost: a file is written with each change, as in Java; a heartbeat with 4,000 new groups took 47 s.
A table is encoded on the loop, or in the thread with one call, which keeps the interpreter: 28 ms for 50,000 topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from gantrymq.background.jobs import Jobs
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.part import Part
from gantrymq.errors import StoreError
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.remoting.long_requests import Steps
from gantrymq.store.json_config import JsonConfigFile
from gantrymq.system import clock, files, threads

T = TypeVar("T")

#: What is to be written soon waits so long for what changes with it, s.
SOON_S = 0.05
#: After a failure it is tried again, s.
_AFTER_ERROR_S = 1.0
#: Entries of a table that are encoded with one call: 0.5 ms.
_ENTRIES = 1000
#: After a piece of so many bytes the thread that encodes lets the others have the interpreter for so long, s. Without
#: that it keeps it for 5 ms.
_PIECE_BYTES = 16 * 1024
_REST_S = 0.0001

#: The directory of a secret file is the owner's alone.
_SECRET_DIRECTORY = 0o700

#: The content of a file. It is asked for on the loop, and gone through in a thread.
Encode = Callable[[], Iterable[bytes]]


class TableFile:
    """One table's file; `encode` gives its content. Made by `Saving.file`."""

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

    def __init__(self, path: Path, encode: Encode, saving: Saving, *, is_secret: bool, follows_log: bool) -> None:
        self._file = JsonConfigFile(path, is_secret=is_secret)
        self._follows_log = follows_log
        self._is_secret = is_secret
        self._encode = encode
        self._saving = saving
        #: Who waits, each for a number of changes.
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        #: How often the table has changed, and how many of the changes are on the disk.
        self.changes = 0
        self.written_changes = 0
        #: What the write that is under way will have; 0: none is.
        self._being_written = 0
        self.is_urgent = False
        #: Contents are numbered as they are asked for; what is on the disk is never replaced by an older one.
        self._newest = 0
        self._saved = 0
        self._writing = threads.Lock()

    def load(
        self, table: type[T], *, check: Callable[[T], object] = lambda _: None, can_be_rebuilt: bool = False
    ) -> T | None:
        """The content, None where there is no file. `check` raises ValueError for content that can't be.

        Raises StoreError for a damaged one without a good backup; one that `can_be_rebuilt` is put aside.
        """
        data = self._file.load(lambda content: check(decode_json(content, table)), can_be_rebuilt=can_be_rebuilt)
        return None if data is None else decode_json(data, table)

    @property
    def is_changed(self) -> bool:
        return self.changes != self.written_changes

    def changed(self) -> None:
        """The table has changed: it is written with the next round."""
        self.changes += 1

    def write_soon(self) -> None:
        """The table has changed, and shouldn't lose it."""
        self.changes += 1
        self.is_urgent = True
        self._saving.wake(SOON_S)

    def written(self) -> asyncio.Future[None]:
        """Done when all that has changed so far is on the disk. Raises StoreError."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.is_changed:
            waiter.set_result(None)
            return waiter
        self._waiters.append((self.changes, waiter))
        # Nobody may wait any more.
        waiter.add_done_callback(lambda waiter: waiter.cancelled() or waiter.exception())
        if self._being_written < self.changes:
            self.is_urgent = True
            self._saving.wake(0.0)
        return waiter

    async def write(self) -> None:
        """Writes the content, in another thread. Raises StoreError; then it is still to be written.

        Who begins to wait meanwhile for what is being written is told, too.
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
        """Writes it in this thread. Raises StoreError.

        A thread whose caller was cancelled may still be at it: it doesn't write what is older than this.
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
    """The pieces that a thread encodes, with rests in which the loop gets the interpreter."""
    for piece in pieces:
        yield piece
        if len(piece) >= _PIECE_BYTES:
            clock.sleep(_REST_S)


def in_pieces(table: msgspec.Struct) -> Iterator[bytes]:
    """Encodes a table as JSON in pieces. The call reads the keys of its dicts, each piece reads the values.

    If an entry changes before its piece, the new value is encoded, as a whole. A removed entry is left out, and a new
    one is not included.
    """
    fields: list[_Field] = []
    omits_empty = table.__struct_config__.omit_defaults
    # Not msgspec.structs.fields, which compiles the annotations of the class each time.
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
    """A dict, and its keys when the encoding began. A copy of the dict would take seven times the memory."""

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


class Saving(Part):
    """All the files of one broker."""

    def __init__(
        self, config: BrokerConfig, jobs: Jobs, *, log_flushed: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._config = config
        #: Brings the log to the disk, for files that follow it.
        self.log_flushed = log_flushed
        self._files: list[TableFile] = []
        self._job = jobs.repeating("save tables", self._write, after_error_s=_AFTER_ERROR_S)
        self._next_round = 0.0

    def file(self, path: Path, encode: Encode, *, is_secret: bool = False, follows_log: bool = False) -> TableFile:
        """The file of a table, which `encode` gives the content of; nobody else may read a secret one.

        One that `follows_log` says of messages that they were consumed or delivered. After a power failure it mustn't
        say so of what the log has lost, so the log comes to the disk first.
        """
        file = TableFile(path, encode, self, is_secret=is_secret, follows_log=follows_log)
        self._files.append(file)
        return file

    async def start(self) -> None:
        self._next_round = asyncio.get_running_loop().time() + self._period_s
        self._job.start(SOON_S if any(file.is_urgent for file in self._files) else self._period_s)

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


def answer_in_pieces(pieces: Iterator[bytes], fields: dict[str, str] | None = None) -> Steps:
    """An answer whose body is a table, encoded step by step."""
    done = []
    for piece in pieces:
        done.append(piece)
        if len(piece) >= _PIECE_BYTES:
            yield
    return RemotingCommand.response(body=b"".join(done), fields=fields)


async def answer_after(written: Awaitable[None], answer: RemotingCommand | None = None) -> RemotingCommand:
    """An answer, SUCCESS if none is given, when something is on the disk. Raises StoreError."""
    await written
    return answer or RemotingCommand.response()
