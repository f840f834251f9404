"""Configuration files: if a file is damaged, its backup is used."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

from gantrymq.errors import StoreError
from gantrymq.store.json_config import JsonConfigFile
from gantrymq.system import files


@pytest.fixture
def file(tmp_path):
    return JsonConfigFile(tmp_path / "config" / "topics.json")


def test_save_keeps_the_version_before(file):
    assert file.load() is None
    for n in range(3):
        file.save(b'{"n":%d}' % n)
        assert file.load() == b'{"n":%d}' % n
    assert file.backup.name == "topics.json.bak"
    assert file.backup.read_bytes() == b'{"n":1}'
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


@pytest.mark.parametrize("damage", [b"", b"\0" * 20, b'{"n":', b'"n":2}', b"[]"])
def test_backup_takes_over(file, caplog, damage):
    file.save(b'{"n":1}')
    file.save(b'{"n":2}')
    file.path.write_bytes(damage)
    assert file.load() == b'{"n":1}'
    assert "topics.json.bak" in caplog.text
    # The damaged file must not become the backup.
    file.save(b'{"n":3}')
    assert (file.load(), file.backup.read_bytes()) == (b'{"n":3}', b'{"n":1}')


def test_missing_file(file):
    """The state after a crash between the two renames of `save`."""
    file.save(b'{"n":1}')
    file.save(b'{"n":2}')
    file.path.unlink()
    assert file.load() == b'{"n":1}'
    file.save(b'{"n":3}')
    assert file.load() == b'{"n":3}'


def test_one_that_can_be_rebuilt_is_put_aside(file, caplog):
    file.save(b'{"n":1}')
    file.save(b'{"n":2}')
    file.path.write_bytes(b"no")
    file.backup.write_bytes(b"nor this")
    assert file.load(can_be_rebuilt=True) is None
    assert "it is made anew" in caplog.text
    assert {path.name: path.read_bytes() for path in file.path.parent.iterdir()} == {
        "topics.json.damaged": b"no",
        "topics.json.bak.damaged": b"nor this",
    }
    file.save(b'{"n":3}')
    assert file.load(can_be_rebuilt=True) == b'{"n":3}'


def test_no_good_version(file):
    file.save(b'{"n":1}')
    file.path.write_bytes(b"")
    with pytest.raises(StoreError, match=r"topics\.json"):
        file.load()
    assert file.path.exists()


def test_both_versions_are_damaged(file):
    file.save(b'{"n":1}')
    file.save(b'{"n":2}')
    file.path.write_bytes(b"no")
    file.backup.write_bytes(b"nor this")
    with pytest.raises(StoreError, match=r"topics\.json can't .*; .*topics\.json\.bak can't .* repair one of them"):
        file.load()


def test_callers_check(file):
    file.save(b'{"n":1}')
    file.save(b"{not json}")
    assert file.load() == b"{not json}"
    assert file.load(json.loads) == b'{"n":1}'


def test_unwritable(tmp_path):
    (tmp_path / "config").write_bytes(b"a file")
    with pytest.raises(StoreError, match="can't write"):
        JsonConfigFile(tmp_path / "config" / "topics.json").save(b"{}")


# -- writing in another thread ---------------------------------------------------------------------------------------


def test_what_was_put_last_is_written(file):
    """One write stores the newest content, however often `put` was called before."""
    file.write()
    assert file.load() is None
    for n in range(5):
        file.put(b'{"n":%d}' % n)
    file.write()
    file.write()
    assert file.load() == b'{"n":4}'
    assert not file.backup.exists()


def test_writers_do_not_mix(file, monkeypatch):
    """A slow writer does not restore older content.

    When `write` returns, the newest content is on disk.
    """
    held, go_on = threading.Event(), threading.Event()
    write_beside = files.write_beside

    def slow(path: Path, data: bytes, mode: int | None) -> Path:
        if data == b'{"n":0}':
            held.set()
            assert go_on.wait(10)
        return write_beside(path, data, mode)

    monkeypatch.setattr(files, "write_beside", slow)
    file.put(b'{"n":0}')
    threads = [threading.Thread(target=file.write) for _ in range(5)]
    threads[0].start()
    assert held.wait(10)
    for thread in threads[1:]:
        thread.start()
    file.put(b'{"n":1}')
    go_on.set()
    file.write()
    assert file.load() == b'{"n":1}'
    for thread in threads:
        thread.join()
    assert file.load() == b'{"n":1}'
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["topics.json", "topics.json.bak"]


def test_what_cannot_be_written_is_written_later(file, monkeypatch):
    def full(path: Path, data: bytes, mode: int | None) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_beside", full)
        with pytest.raises(StoreError, match="No space left"):
            file.save(b'{"n":1}')
    file.write()
    assert file.load() == b'{"n":1}'


# -- permissions -----------------------------------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_permissions_are_kept(file, umask):
    file.save(b'{"n":1}')
    assert mode(file.path) == 0o644
    file.path.chmod(0o640)
    for n in range(2):
        file.save(b'{"n":%d}' % n)
        assert mode(file.path) == 0o640
    assert mode(file.backup) == 0o640


def test_a_secret_is_read_by_nobody_else(tmp_path, umask, monkeypatch):
    """Only the owner can read a secret file and its backup, also while they are written.

    The permissions of an existing file are corrected when it is loaded.
    """
    file = JsonConfigFile(tmp_path / "users.json", is_secret=True)
    leftover = tmp_path / "users.json.tmp"
    leftover.write_bytes(b"")
    leftover.chmod(0o666)
    modes = []
    fsync = files.fsync
    monkeypatch.setattr(files, "fsync", lambda fd: (modes.append(stat.S_IMODE(os.fstat(fd).st_mode)), fsync(fd)))
    file.save(b'{"n":1}')
    file.save(b'{"n":2}')
    assert mode(file.path) == mode(file.backup) == 0o600
    assert set(modes[:1] + modes[2:3]) == {0o600}
    file.path.chmod(0o644)
    file.backup.chmod(0o644)
    assert file.load() == b'{"n":2}'
    assert mode(file.path) == mode(file.backup) == 0o600
    file.path.chmod(0o644)
    file.save(b'{"n":3}')
    assert mode(file.path) == mode(file.backup) == 0o600


def test_a_secret_that_belongs_to_somebody_else(tmp_path, monkeypatch, caplog):
    file = JsonConfigFile(tmp_path / "users.json", is_secret=True)
    file.path.write_bytes(b"{}")

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    assert file.load() == b"{}"
    assert "others may read it" in caplog.text
