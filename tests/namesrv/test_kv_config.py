"""KVConfigManager and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantrymq.errors import ConfigError
from gantrymq.namesrv import kv_config
from gantrymq.namesrv.kv_config import KVConfigManager


def test_a_file_of_java_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"t":"a:4;b:4"}}\n}')
    manager = KVConfigManager(path)
    manager.load()
    assert manager.namespace("ORDER_TOPIC_CONFIG") == {"t": "a:4;b:4"}
    assert manager.get("ORDER_TOPIC_CONFIG", "u") is None
    assert manager.namespace("other") is None


def test_what_can_t_be_written_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    manager = KVConfigManager(path)
    manager.put("n", "k", "v")
    path.unlink()
    path.mkdir()
    for change in (lambda: manager.put("n", "k", "w"), lambda: manager.delete("n", "k")):
        with pytest.raises(ConfigError, match=r"kvConfig\.json"):
            change()
    assert manager.namespace("n") == {"k": "v"}


def test_the_file_has_a_bound(tmp_path: Path) -> None:
    manager = KVConfigManager(tmp_path / "kvConfig.json")
    value = "v" * (kv_config.MAX_FILE_BYTES // 4)
    for key in ("1", "2", "3"):
        manager.put("n", key, value)
    with pytest.raises(ConfigError, match="would grow over"):
        manager.put("n", "4", value)
    assert manager.get("n", "4") is None
    manager.put("n", "1", "")
    manager.put("n", "4", value)
