"""Tests that a broker does not import the modules of features that are off. They take time and memory at its start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: A broker with the default configuration imports none of these.
NOT_IMPORTED = (
    "gantrymq.broker.controller",
    "gantrymq.broker.lite",
    "gantrymq.broker.metrics",
    "gantrymq.broker.tiered_storage",
    "gantrymq.store.light",
    "gantrymq.tier",
    "json",
    "sqlite3",
)
#: Maximum number of modules of this project that it imports.
MOST_MODULES = 355
PROGRAM = """
import asyncio, sys
from pathlib import Path
from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.store.config import StoreConfig

async def main():
    root = Path(sys.argv[1])
    broker = Broker(BrokerConfig(broker_ip1="127.0.0.1", listen_port=0, store=StoreConfig(store_path_root_dir=root)))
    await broker.start()
    await broker.stop()

asyncio.run(main())
print(*sys.modules)
"""


def test_a_broker_imports_no_feature_that_is_off(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert not set(NOT_IMPORTED) & set(modules)
    assert len([module for module in modules if module.startswith("gantrymq")]) <= MOST_MODULES
