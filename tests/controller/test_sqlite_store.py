"""The controller's state in a SQLite file.

The tests cover terms, writes of a deposed leader, SIGKILL, and damaged files with their backup.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.controller.sqlite_store import BACKUP_NAME, FILE_NAME, SqliteStore
from gantrymq.controller.state_store import Leader, Term
from gantrymq.errors import GantryError
from gantrymq.protocol.fastjson import decode_json, encode_json

ME = Leader("n0", "127.0.0.1:9878")


def check_value(name: str, value: bytes) -> None:
    if value.startswith(b"bad"):
        raise GantryError(f"{value.decode()} was found")


def new_store(directory: Path) -> SqliteStore:
    return SqliteStore(directory, Jobs(), check_value)


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[SqliteStore]:
    store = new_store(directory)
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
            await new_store(tmp_path).open()
    async with opened(tmp_path):
        pass


def in_place_of(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def executed(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    try:
        with db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute(statement)
    finally:
        db.close()


def with_another_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2048:] = bytes(2048)
    path.write_bytes(data)


async def test_another_version_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    executed(tmp_path / FILE_NAME, "PRAGMA user_version = 99")
    with pytest.raises(GantryError, match="can't be used: it is of version 99, this is 1"):
        await new_store(tmp_path).open()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (partial(in_place_of, data=b""), "the file is empty"),
        (partial(in_place_of, data=b"x" * 4096), "file is not a database"),
        (partial(in_place_of, data=bytes(8192)), "file is not a database"),
        (partial(executed, statement="PRAGMA user_version = 0"), "no tables of a controller"),
        (partial(executed, statement="DROP TABLE leader"), "no table leader"),
        (partial(executed, statement="DROP TABLE broker_sets"), "no table broker_sets"),
        (partial(executed, statement="DELETE FROM leader"), "0 leaders"),
        (partial(executed, statement="UPDATE leader SET term = 'later'"), "its leader is"),
        (partial(executed, statement="UPDATE leader SET address = x'07'"), "its leader is"),
        (partial(executed, statement="UPDATE broker_sets SET value = 'text' WHERE name = 'b3'"), "'b3' is no bytes"),
        (partial(executed, statement="UPDATE broker_sets SET value = x'626164' WHERE name = 'b3'"), "bad was found"),
        (with_another_page, "is damaged: "),
        (Path.unlink, f"the file is missing, while {BACKUP_NAME} exists"),
    ],
)
async def test_a_damaged_file_is_refused_and_the_backup_restores_it(
    tmp_path: Path, damage: Callable[[Path], None], problem: str
) -> None:
    path, backup = tmp_path / FILE_NAME, tmp_path / BACKUP_NAME
    async with opened(tmp_path) as store:
        term = await begin(store)
        await asyncio.gather(*(store.commit(term, f"b{number}", b"%d" % number) for number in range(100)))
    kept = backup.read_bytes()
    damage(path)
    for _ in range(2):
        with pytest.raises(GantryError, match="is damaged: ") as error:
            await new_store(tmp_path).open()
        assert problem in str(error.value)
        assert f"copy {BACKUP_NAME} to {FILE_NAME}" in str(error.value)
        assert backup.read_bytes() == kept
    # The error message suggests this.
    path.unlink(missing_ok=True)
    path.with_name(f"{FILE_NAME}-wal").unlink(missing_ok=True)
    shutil.copy(backup, path)
    async with opened(tmp_path) as store:
        assert await store.load() == {f"b{number}": b"%d" % number for number in range(100)}
        assert (await begin(store)).number > term.number


async def test_a_log_without_its_file_is_damage(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}-wal").write_bytes(b"x")
    with pytest.raises(GantryError, match="there is no backup: restore a copy of your own"):
        await new_store(tmp_path).open()


async def test_a_first_start_that_was_interrupted_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.new").write_bytes(b"")
    for content in (None, b""):
        if content is not None:
            in_place_of(tmp_path / FILE_NAME, content)
        async with opened(tmp_path) as store:
            assert await store.load() == {}
        assert set(os.listdir(tmp_path)) == {FILE_NAME, BACKUP_NAME}
        (tmp_path / f"{FILE_NAME}.new").write_bytes(b"")


async def test_the_backup_follows_while_the_controller_runs(tmp_path: Path) -> None:
    """The backup is written while the controller runs, so a killed controller also leaves one."""
    async with opened(tmp_path) as store:
        await until(lambda: (tmp_path / BACKUP_NAME).exists())
        term = await begin(store)
        assert await store.commit(term, "b", b"1")
        await until(lambda: backed_up(tmp_path) == [("b", b"1")], timeout_s=30.0)


def backed_up(directory: Path) -> list[tuple[str, bytes]]:
    db = sqlite3.connect(f"file:{directory / BACKUP_NAME}?mode=ro&immutable=1", uri=True)
    try:
        return db.execute("SELECT name, value FROM broker_sets").fetchall()
    finally:
        db.close()


async def test_a_backup_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / BACKUP_NAME).unlink()
    (tmp_path / BACKUP_NAME).mkdir()
    async with opened(tmp_path) as store:
        assert await store.commit(await begin(store), "b", b"1")
    async with opened(tmp_path) as store:
        assert await store.load() == {"b": b"1"}


def test_broker_sets_have_a_checksum_that_earlier_versions_skip() -> None:
    kept = BrokerSet(cluster_name="c", broker_name="b", next_broker_id=7)
    data = kept.encode()
    assert BrokerSet.decode(data) == decode_json(data, BrokerSet) == kept
    assert BrokerSet.decode(encode_json(kept)) == kept
    BrokerSet.check_kept("b", data)
    for name, other, problem in [
        ("a", data, "it is that of 'b'"),
        ("b", data.replace(b"7", b"8", 1), "checksum"),
        ("b", b"[]", "is no BrokerSet"),
        ("b", encode_json(msgspec.structs.replace(kept, master=1, master_epoch=1)), "master 1"),
    ]:
        with pytest.raises(GantryError, match=problem):
            BrokerSet.check_kept(name, other)


async def test_who_waits_learns_that_it_failed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        term = await begin(store)
        db = store._db
        assert db is not None
        db.execute("DROP TABLE broker_sets")
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
    store = SqliteStore(Path(sys.argv[1]), Jobs(), lambda name, value: None)
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
            # The last line can be incomplete.
            assert int((await store.load())["b"]) >= int(answered[-2])
