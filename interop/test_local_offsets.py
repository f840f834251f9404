"""Local offsets of a broadcasting consumer: Apache's client and ours read each other's file."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from programs import PROGRAM_TIMEOUT_S, command_line

from gantrymq.client.consuming.offset_store import LocalOffsetStore
from gantrymq.protocol.message import MessageQueue

pytestmark = pytest.mark.interop(feature="consumer offsets", clients="java gantry")

CLIENT, GROUP = "10.0.0.1@DEFAULT", "group"
QUEUE = MessageQueue("topic", "broker-a", 1)
OTHER = MessageQueue('%RETRY%a"b', "broker b", 2)


def test_both_clients_read_what_the_other_wrote(tmp_path: Path) -> None:
    store = LocalOffsetStore(tmp_path, CLIENT, GROUP)
    asyncio.run(store.commit({QUEUE: 7, OTHER: 1 << 40}))

    command = command_line(
        "org.gantrymq.interop.LocalOffsets",
        *(CLIENT, GROUP, *map(str, QUEUE), "9"),
        home=tmp_path,
        options=[f"-Drocketmq.client.localOffsetStoreDir={tmp_path}"],
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S)

    assert '{"offset":7}' in done.stdout, done.stderr[-4000:]
    again = LocalOffsetStore(tmp_path, CLIENT, GROUP)
    assert [asyncio.run(again.read(queue)) for queue in (QUEUE, OTHER)] == [9, 1 << 40]
