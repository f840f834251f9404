"""The state in a SQLite file: terms, what a deposed leader may not write, and kill -9."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantrymq.background.jobs import Jobs
from gantrymq.controller.sqlite_store import FILE_NAME, SqliteStore
from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError

ME = Leader("n0", "127.0.0.1:9878")


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(directory, Jobs())
    await store.open()
    try:
        yield store
    finally:
        await store.close()
        await store.close()


async def begin(store: SqliteStore) -> Term:
    term = await store.campaign(ME)
    assert term is not None
    return term


async def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "new" / "state") as store:
        assert await store.leader() is None
        first = await begin(store)
        assert await store.keep(first) == first
        assert await store.load() == {}
        kept = await asyncio.gather(*(store.commit(first, f"b{i}", b"%d" % i) for i in range(100)))
        assert set(kept) == {True}
        assert await store.commit(first, "b1", b"again")
    async with opened(tmp_path / "new" / "state") as store:
        assert await store.leader() == ME
        assert await store.load() == {f"b{i}": b"%d" % i for i in range(100)} | {"b1": b"again"}
        assert (await begin(store)).number > first.number


async def test_an_earlier_term_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        old = await begin(store)
        assert await store.commit(old, "b", b"1")
        new = await begin(store)
        results = await asyncio.gather(store.commit(old, "b", b"old"), store.commit(new, "c", b"new"))
        assert results == [False, True]
        assert await store.load() == {"b": b"1", "c": b"new"}


async def test_two_controllers_do_not_share_a_file(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(GantryError, match="another controller uses it"):
            await SqliteStore(tmp_path, Jobs()).open()
    async with opened(tmp_path):
        pass


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x" * 4096), lambda path: other_version(path)])
async def test_another_file_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    async with opened(tmp_path):
        pass
    damage(tmp_path / FILE_NAME)
    with pytest.raises(GantryError, match="can't be used"):
        await SqliteStore(tmp_path, Jobs()).open()


def other_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")


async def test_who_waits_learns_that_it_failed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        term = await begin(store)
        assert store._db is not None
        store._db.execute("DROP TABLE broker_sets")
        results = await asyncio.gather(*(store.commit(term, name, b"") for name in "ab"), return_exceptions=True)
        assert [type(result) for result in results] == [GantryError, GantryError]
        assert "can't be read or written" in str(results[0])


_WRITER = """
import asyncio, sys
from pathlib import Path
from gantrymq.background.jobs import Jobs
from gantrymq.controller.sqlite_store import SqliteStore
from gantrymq.controller.state_store import Leader

async def main():
    store = SqliteStore(Path(sys.argv[1]), Jobs())
    await store.open()
    term = await store.campaign(Leader("n0", "a:1"))
    for number in range(1_000_000):
        assert await store.commit(term, "b", b"%d" % number)
        print(number, flush=True)

asyncio.run(main())
"""


async def test_nothing_that_was_answered_is_lost_by_a_kill(tmp_path: Path) -> None:
    for _ in range(3):
        writer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _WRITER, str(tmp_path)), stdout=asyncio.subprocess.PIPE
        )
        assert writer.stdout is not None
        answered = [await writer.stdout.readline() for _ in range(20)]
        writer.kill()
        answered += (await writer.stdout.read()).splitlines()
        await writer.wait()
        async with opened(tmp_path) as store:
            # The last line may have been cut.
            assert int((await store.load())["b"]) >= int(answered[-2])
