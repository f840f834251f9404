"""The acknowledged offsets of slaves, the in-sync count, and flow control."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.flow_control import FlowControl
from gantrymq.replication.slaves import Slave, Slaves

CONFIG = ReplicationConfig(ha_max_gap_not_in_sync=1000)


def slave(acknowledged: int, broker_id: int = -1) -> Slave:
    return Slave("127.0.0.1:1", broker_id, acknowledged, acknowledged)


def test_watermark() -> None:
    slaves = Slaves(CONFIG)
    assert slaves.replicated(1) > 1 << 62
    assert slaves.replicated(2) == 0
    first, second = slave(100), slave(50)
    slaves.joined(first)
    assert (slaves.replicated(2), slaves.replicated(3)) == (100, 0)
    slaves.joined(second)
    assert (slaves.replicated(2), slaves.replicated(3), slaves.replicated(4)) == (100, 50, 0)
    assert slaves.acknowledged(second, 120, 120, 1.0)
    assert not slaves.acknowledged(second, 120, 150, 2.0)
    assert (second.caught_up_at, slaves.replicated(2), slaves.replicated(3)) == (1.0, 120, 100)
    slaves.gone(second)
    slaves.gone(second)
    assert (slaves.replicated(2), slaves.replicated(3)) == (100, 0)
    assert not slaves.acknowledged(second, 200, 200, 3.0)


@given(st.lists(st.integers(0, 100), max_size=6), st.integers(2, 8))
def test_watermark_is_what_so_many_have(acknowledged: list[int], count: int) -> None:
    slaves = Slaves(CONFIG)
    for offset in acknowledged:
        slaves.joined(slave(offset))
    mark = slaves.replicated(count)
    if count - 1 > len(acknowledged):
        assert mark == 0
    else:
        assert sum(offset >= mark for offset in acknowledged) >= count - 1
        assert sum(offset > mark for offset in acknowledged) < count - 1


def test_in_sync() -> None:
    slaves = Slaves(CONFIG)
    assert slaves.in_sync_count(10_000) == 1
    for offset in (9_000, 9_001, 10_000):
        slaves.joined(slave(offset))
    # A gap of exactly `haMaxGapNotInSync` is too large.
    assert slaves.in_sync_count(10_000) == 3


def test_same_slave_counts_once() -> None:
    slaves = Slaves(CONFIG)
    former, other, java = slave(10, 1), slave(10, 2), slave(10)
    assert [slaves.joined(each) for each in (former, other, java, slave(10))] == [None] * 4
    now = slave(5, 1)
    assert slaves.joined(now) is former
    assert now in slaves.all()
    assert former not in slaves.all()
    assert slaves.replicated(5) == 5


def test_flow_is_spread() -> None:
    flow = FlowControl(0.0)
    sent = 0
    for tick in range(1, 301):
        now = tick / 100
        count = flow.allowed(now, 1000)
        assert count <= 100
        flow.sent(count, now)
        sent += count
    assert 2900 <= sent <= 3000
    assert 900 <= flow.bytes_per_second(3.0) <= 1100
    # Nothing was sent for a second. The unused rate is not carried over.
    assert flow.bytes_per_second(5.5) == 0
    assert flow.allowed(100.0, 1000) == 100


def test_slow_flow_sends_at_all() -> None:
    flow = FlowControl(0.0)
    assert flow.allowed(0.5, 1) == 0
    assert flow.allowed(1.0, 1) == 1
