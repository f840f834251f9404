"""Isolates the tests from the `gantry` contexts of the user who runs them."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_contexts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets an empty configuration directory and removes all environment variables that name a cluster."""
    directory = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(directory))
    for name in ("NAMESRV_ADDR", "GANTRY_CONTEXT", "ROCKETMQ_HOME"):
        monkeypatch.delenv(name, raising=False)
    return directory
