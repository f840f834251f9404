"""The KV configuration and its file (`KVConfigManager`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantrymq.background.jobs import Jobs
from gantrymq.errors import ConfigError, RequestRefused
from gantrymq.namesrv import kv_config
from gantrymq.namesrv.kv_config import KVConfigManager
from gantrymq.remoting.file_changes import FileChanges


@pytest.fixture
async def changes() -> AsyncIterator[FileChanges]:
    changes = FileChanges(Jobs())
    changes.start()
    yield changes
    await changes.stop()


async def test_a_file_of_java_is_read(tmp_path: Path, changes: FileChanges) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"t":"a:4;b:4"}}\n}')
    manager = KVConfigManager(path, changes)
    manager.load()
    assert manager.namespace("ORDER_TOPIC_CONFIG") == {"t": "a:4;b:4"}
    assert manager.get("ORDER_TOPIC_CONFIG", "u") is None
    assert manager.namespace("other") is None


async def test_what_can_t_be_written_changes_nothing(tmp_path: Path, changes: FileChanges) -> None:
    path = tmp_path / "kvConfig.json"
    manager = KVConfigManager(path, changes)
    await manager.put("n", "k", "v")
    path.unlink()
    path.mkdir()
    for change in (manager.put("n", "k", "w"), manager.delete("n", "k")):
        with pytest.raises(ConfigError, match=r"kvConfig\.json"):
            await change
    assert manager.namespace("n") == {"k": "v"}
    path.rmdir()
    await manager.put("n", "k", "w")
    assert manager.namespace("n") == {"k": "w"}


async def test_the_file_has_a_bound(tmp_path: Path, changes: FileChanges) -> None:
    manager = KVConfigManager(tmp_path / "kvConfig.json", changes)
    value = "v" * (kv_config.MAX_FILE_BYTES // 4)
    for key in ("1", "2", "3"):
        await manager.put("n", key, value)
    with pytest.raises(ConfigError, match="would grow over"):
        await manager.put("n", "4", value)
    assert manager.get("n", "4") is None
    await manager.put("n", "1", "")
    await manager.put("n", "4", value)


async def test_changes_at_the_same_time_are_all_made(tmp_path: Path, changes: FileChanges) -> None:
    path = tmp_path / "kvConfig.json"
    manager = KVConfigManager(path, changes)
    await asyncio.gather(*(manager.put("n", str(n), "v") for n in range(50)))
    await asyncio.gather(*(manager.delete("n", str(n)) for n in range(0, 50, 2)))
    again = KVConfigManager(path, changes)
    again.load()
    assert again.namespace("n") == manager.namespace("n") == {str(n): "v" for n in range(1, 50, 2)}


async def test_a_caller_that_goes_away_leaves_file_and_table_alike(tmp_path: Path, changes: FileChanges) -> None:
    path = tmp_path / "kvConfig.json"
    manager = KVConfigManager(path, changes)
    leaving = asyncio.ensure_future(manager.put("n", "left", "v"))
    await asyncio.sleep(0)
    leaving.cancel()
    await manager.put("n", "stayed", "v")
    again = KVConfigManager(path, changes)
    again.load()
    assert again.namespace("n") == manager.namespace("n") == {"left": "v", "stayed": "v"}


async def test_what_was_asked_for_is_written_before_it_stops(tmp_path: Path, changes: FileChanges) -> None:
    manager = KVConfigManager(tmp_path / "kvConfig.json", changes)
    putting = [asyncio.ensure_future(manager.put("n", str(n), "v")) for n in range(5)]
    await asyncio.sleep(0)
    await changes.stop()
    assert all(put.done() for put in putting)
    assert len(manager.namespace("n") or {}) == 5
    with pytest.raises(RequestRefused, match="the server stops"):
        await manager.put("n", "late", "v")
