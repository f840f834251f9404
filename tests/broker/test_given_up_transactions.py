"""The half messages in `TRANS_CHECK_MAX_TIME_TOPIC`: a broker limits how many of them it keeps in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bare_store import nobody_waits, open_store
from broker_support import config

from gantrymq.broker.append.appender import Appender
from gantrymq.broker.transaction.given_up import MAX_OPEN, GivenUp
from gantrymq.protocol.topic_name import TRANSACTION_CHECK_MAX_TIME_TOPIC


@pytest.fixture
async def appender(tmp_path: Path) -> AsyncIterator[Appender]:
    appender = open_store(tmp_path / "store", nobody_waits())
    yield appender
    appender.store.close()


async def test_their_number_is_limited(appender: Appender, tmp_path: Path) -> None:
    given_up = GivenUp(config(tmp_path), appender)
    for number in range(MAX_OPEN):
        given_up.add(number, number)
    # A transaction that has ended does not count as forgotten.
    given_up.end(5)
    for number in range(MAX_OPEN, MAX_OPEN + 3):
        given_up.add(number, number)
    assert [number in given_up for number in (0, 1, 2, MAX_OPEN + 2)] == [False, False, True, True]
    assert [given_up.is_forgotten(number) for number in (0, 1, 2, 5)] == [True, True, False, False]


async def test_they_go_with_their_records(appender: Appender, tmp_path: Path) -> None:
    given_up = GivenUp(config(tmp_path), appender)
    for number in range(3):
        given_up.add(number + 100, number)
    appender.store.queue(TRANSACTION_CHECK_MAX_TIME_TOPIC, 0).min_offset = 2
    given_up.add(103, 3)
    assert [first in given_up for first in (100, 101, 102, 103)] == [False, False, True, True]
    assert not given_up.is_forgotten(100)
