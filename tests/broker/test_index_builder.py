"""The key index of a broker: built soon after messages came, and an idle broker isn't woken for it."""

from __future__ import annotations

import time
from pathlib import Path

from waiting import until

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
    # One look more finds that nothing comes.
    looks = report.runs
    await until(lambda: report.runs > looks)
    # Two more, since this may have heard of the one before a moment late.
    looks, began = report.runs, time.monotonic()
    await until(lambda: report.runs > looks + 1)
    assert time.monotonic() - began > 1.0
    put()
    await until(lambda: not store.keys.index_behind_bytes)
    await builder.stop()
    store.close()
