"""Live brokers, according to heartbeats and connections, with a simulated clock."""

from __future__ import annotations

from gantrymq.controller.live_brokers import MAX_BROKERS, BrokerIdentity, LiveBrokers

A1, A2 = BrokerIdentity("c", "a", 1), BrokerIdentity("c", "a", 2)


def active(table: LiveBrokers, now_ms: int) -> list[BrokerIdentity]:
    found = table.all_active(now_ms)
    assert [identity for identity in (A1, A2) if table.active(identity, now_ms) is not None] == found
    return found


def test_a_broker_lives_as_long_as_it_says() -> None:
    table = LiveBrokers()
    table.heartbeat(A1, "h:1", "c1", 1000, timeout_ms=500)
    table.heartbeat(A2, "h:2", "c2", 1000)
    assert table.next_expiry_ms() == 1501
    assert active(table, 1500) == [A1, A2]
    assert active(table, 1501) == [A2]
    assert table.expire(1500) == []
    assert table.expire(1501) == [A1]
    assert active(table, 11_000) == [A2]
    assert table.expire(11_001) == [A2]
    assert (len(table), table.next_expiry_ms()) == (0, None)
    assert not table.has("c1")


def test_it_is_gone_with_the_connection_of_its_last_heartbeat() -> None:
    table = LiveBrokers()
    table.heartbeat(A1, "h:1", "old", 0)
    table.heartbeat(A1, "h:1", "new", 1)
    assert table.connection_closed("old") == []
    assert active(table, 1) == [A1]
    table.heartbeat(A2, "h:2", "new", 1)
    assert table.connection_closed("new") == [A1, A2]
    assert active(table, 1) == []
    assert table.connection_closed("new") == []


def test_its_log_only_grows() -> None:
    table = LiveBrokers()
    for epoch, offset in [(1, 100), (1, 50), (2, 10), (1, 900)]:
        table.heartbeat(A1, "h:1", "c", 0, epoch=epoch, max_offset=offset, confirm_offset=offset - 1)
    found = table.active(A1, 0)
    assert found is not None
    assert (found.epoch, found.max_offset, found.confirm_offset) == (2, 10, 9)


def test_there_is_a_bound() -> None:
    table = LiveBrokers()
    for n in range(MAX_BROKERS - 1):
        assert table.heartbeat(BrokerIdentity("c", "b", n), "h:3", f"b{n}", 0)
    assert table.heartbeat(A1, "h:1", "c1", 0)
    assert not table.heartbeat(A2, "h:2", "c2", 0)
    assert table.heartbeat(A1, "h:1", "c1", 1)
    assert not table.has("c2")
