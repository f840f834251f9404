"""The key index of a broker.

It is updated soon after messages arrive. It does not wake up an idle broker.
"""

from __future__ import annotations

import time
from pathlib import Path

from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.broker.index_builder import IndexBuilder
from gantrymq.protocol.record import encode_host
from gantrymq.store.config import StoreConfig
from gantrymq.store.message_store import MessageStore

HOST = encode_host("127.0.0.1", 10911)


async def test_an_idle_broker_looks_once_a_second(tmp_path: Path) -> None:
    store = MessageStore(StoreConfig(tmp_path, mapped_file_size_commit_log=64 * 1024), HOST)
    store.open()
    jobs = Jobs()
    builder = IndexBuilder(store, jobs)
    await builder.start()
    (report,) = jobs

    def put() -> None:
        store.append(store.queue("T", 0), 7, 0, 1_700_000_000_000, HOST, 0, b"one", b"KEYS\x01a\x02", 0)

    put()
    await until(lambda: report.runs and not store.keys.index_behind_bytes)
    # One more run finds that there are no new messages.
    looks = report.runs
    await until(lambda: report.runs > looks)
    # Wait for two more runs, because this loop can detect the previous run late.
    looks, began = report.runs, time.monotonic()
    await until(lambda: report.runs > looks + 1)
    assert time.monotonic() - began > 1.0
    put()
    await until(lambda: not store.keys.index_behind_bytes)
    await builder.stop()
    store.close()
