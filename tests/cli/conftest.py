"""The contexts of whoever runs the tests are none of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_contexts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration directory, empty; nothing in the environment names a cluster."""
    directory = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory))
    for name in ("NAMESRV_ADDR", "GANTRY_CONTEXT", "ROCKETMQ_HOME"):
        monkeypatch.delenv(name, raising=False)
    return directory
