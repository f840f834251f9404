from __future__ import annotations

from ctypes import c_int64

import pytest

from gantrymq.client.producing.queue_selector import select_by_hash, select_randomly
from gantrymq.errors import ClientError
from gantrymq.protocol.message import Message, MessageQueue

QUEUES = [MessageQueue("t", "a", n) for n in range(7)]
MESSAGE = Message("t", b"x")


@pytest.mark.parametrize(
    ("arg", "java_hash"),
    [
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
        (42, 42),
        (-42, -42),
        (5_000_000_000, 705032705),
        (-5_000_000_000, 705032702),
        (-(2**63), -(2**31)),
        (c_int64(-5), 4),
        (c_int64(42), 42),
        (True, 1231),
        (False, 1237),
        (0.1, -1507852285),
        (-1.5e300, -1740524776),
        (-0.0, -(2**31)),
        (float("nan"), 2146959360),
        (float("-nan"), 2146959360),
        (float("inf"), 2146435072),
    ],
)
def test_picks_the_queue_that_java_picks(arg: object, java_hash: int) -> None:
    assert select_by_hash(arg)(QUEUES, MESSAGE) == QUEUES[abs(java_hash) % 7]


def test_nothing_has_no_hash() -> None:
    with pytest.raises(ClientError, match="None has no hash code"):
        select_by_hash(None)


def test_random_selection_reaches_every_queue() -> None:
    assert {select_randomly(QUEUES, MESSAGE) for _ in range(1000)} == set(QUEUES)
