"""Tests that a fault of native code raises an ordinary error, and that a repeating job continues after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from wait_until import until

from gantrymq.background.jobs import Jobs
from gantrymq.kernels import native
from gantrymq.protocol.record import encode_host

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

HOST = encode_host("10.1.2.3", 10911)
HEADER = b'{"code":310,"extFields":{"g":"1700000000123","i":"UNIQ_KEY\\u00011\\u0002"},"opaque":7}'
SEND = (4 + len(HEADER)).to_bytes(4, "big") + len(HEADER).to_bytes(4, "big") + HEADER


def fail() -> None:
    """Stores a message at an impossible position of the log, whose numbers overflow."""
    assert native is not None
    queue: Any = SimpleNamespace(mapping=bytearray(300), position=0, limit=300, max_offset=0)
    log = SimpleNamespace(position=(1 << 63) - 1, limit=(1 << 63) - 1)
    parts = b"0A", (b"", b""), (b"", b"", b"", b"", b""), (b"KEY\x01", [])
    sends: Any = native.PlainSends([], b"POP_CK\x01", b"", HOST, (100, 5, 1 << 20), *parts)
    assert sends.handle(SEND, log, 456, HOST)[4]
    assert sends.allow(7, 1_700_000_000_123, b"UNIQ_KEY\x011\x02", b"T", 3, 0, 0, False, 310, queue)
    sends.handle(SEND, log, 456, HOST)


def test_it_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="has a fault"):
        fail()


async def test_a_job_goes_on_after_it() -> None:
    job = Jobs().repeating("a job", fail, 0.001, after_error_s=0.001)
    job.start()
    await until(lambda: job.report.failures > 1)
    job.cancel()
