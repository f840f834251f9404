"""Tests that the time to tell topics apart grows with the number of records, not with the number of topics."""

from __future__ import annotations

import time

import numpy as np
import pytest

from gantrymq.kernels import native
from gantrymq.protocol.record import encode_host, encode_record

pytestmark = pytest.mark.skipif(native is None, reason="gantrymq-native isn't there")

#: Comparing each topic with all earlier ones would take seconds for this number.
COUNT = 40_000


def test_a_topic_for_each_record() -> None:
    assert native is not None
    host = encode_host("10.1.2.3", 10911)
    topics = [f"team-{number:05d}" for number in range(COUNT)]
    buffer = b"".join(
        encode_record(0, 0, 0, 0, 0, 1, host, 2, host, 0, 0, b"x", topic.encode(), b"") for topic in topics
    )
    records = native.Records(buffer, False, False, [])
    began = time.thread_time()
    found, numbers = records.numbered_topics()
    took_s = time.thread_time() - began
    assert found == topics
    assert np.frombuffer(memoryview(numbers), np.int32).tolist() == list(range(COUNT))
    assert took_s < 0.5
