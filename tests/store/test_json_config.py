"""Configuration files: the backup takes over from a damaged file."""

from __future__ import annotations

import json

import pytest

from gantrymq.errors import StoreError
from gantrymq.store.json_config import JsonConfigFile


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
    # The damaged file mustn't become the backup.
    file.save(b'{"n":3}')
    assert (file.load(), file.backup.read_bytes()) == (b'{"n":3}', b'{"n":1}')


def test_missing_file(file):
    """As a crash between the two renames of `save` leaves it."""
    file.save(b'{"n":1}')
    file.save(b'{"n":2}')
    file.path.unlink()
    assert file.load() == b'{"n":1}'
    file.save(b'{"n":3}')
    assert file.load() == b'{"n":3}'


def test_no_good_version(file):
    file.save(b'{"n":1}')
    file.path.write_bytes(b"")
    with pytest.raises(StoreError, match=r"topics\.json"):
        file.load()
    assert file.path.exists()


def test_callers_check(file):
    file.save(b'{"n":1}')
    file.save(b"{not json}")
    assert file.load() == b"{not json}"
    assert file.load(json.loads) == b'{"n":1}'


def test_unwritable(tmp_path):
    (tmp_path / "config").write_bytes(b"a file")
    with pytest.raises(StoreError, match="can't write"):
        JsonConfigFile(tmp_path / "config" / "topics.json").save(b"{}")
