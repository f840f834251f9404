"""In-flight messages that the proxy keeps invisible for its clients; without brokers and without real time."""

from __future__ import annotations

import pytest
from constants import change_constant

from gantrymq.protocol.receipt_handle import ReceiptHandle
from gantrymq.proxy.consumer.handle import Handle
from gantrymq.proxy.consumer.in_flight_messages import InFlightMessage, InFlightMessages, MessageKey
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code

NOW = 1_700_000_000_000


def handle(offset: int = 42, *, popped_ms: int = NOW, invisible_ms: int = 60_000) -> Handle:
    return Handle(ReceiptHandle(offset, popped_ms, invisible_ms, 1, "0", "broker-a", 3, offset), 4096)


def in_flight(client_id: str = "c1", group: str = "g", offset: int = 42, **times: int) -> InFlightMessage:
    its_handle = handle(offset, **times)
    return InFlightMessage(client_id, group, "orders", MessageKey.of(f"id-{offset}", its_handle), its_handle, 0, NOW)


def test_a_handle_is_nine_words() -> None:
    text = "42 1700000000000 60000 1 0 broker-a 3 42 4096"
    assert Handle.parse(text) == handle()
    assert str(handle()) == text
    assert Handle.parse(text.rpartition(" ")[0]) == handle()._replace(commit_log_offset=-1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1 2 3 4 0 b",
        "1 2 3 4 0 b 5",
        "1 2 3 4 0 b -1 7",
        "1 2 3 4 0 b 5 -7",
        "1 2 3 4 0 b 5 7 x",
        f"1 2 3 4 0 b 5 7 {2**63}",
        f"1 2 3 4 0 b 5 {2**63}",
    ],
)
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(ProxyError) as error:
        Handle.parse(text)
    assert error.value.code == Code.INVALID_RECEIPT_HANDLE


def test_a_handle_has_its_time() -> None:
    handle().check_time(NOW + 59_999)
    with pytest.raises(ProxyError, match="receipt handle is expired"):
        handle().check_time(NOW + 60_000)


def test_is_due_before_its_time_is_over() -> None:
    table = InFlightMessages(10_000)
    one, later = in_flight(offset=1), in_flight(offset=2, invisible_ms=90_000)
    assert table.add(later)
    assert table.add(one)
    assert table.due(NOW + 49_999) == []
    assert table.due(NOW + 50_000) == [one]
    # The message is being renewed.
    assert table.due(NOW + 60_000) == []
    table.renewed(one, handle(1, popped_ms=NOW + 50_000))
    assert table.due(NOW + 60_000) == []
    assert table.due(NOW + 110_000) == [later, one]
    assert (one.renew_times, len(table)) == (1, 2)


def test_each_time_longer() -> None:
    table = InFlightMessages(10_000)
    one = in_flight()
    table.add(one)
    given = []
    for _ in range(8):
        given.append(one.renew_ms // 60_000)
        table.renewed(one, handle())
    assert given == [1, 3, 5, 10, 30, 60, 60, 60]


def test_what_failed_is_due_at_once() -> None:
    table = InFlightMessages(10_000)
    one = in_flight()
    table.add(one)
    assert table.due(NOW + 50_000) == [one]
    table.failed(one, NOW + 50_000)
    assert table.due(NOW + 50_000) == [one]
    table.failed(one, NOW + 50_000)
    assert one.failures == 2
    table.renewed(one, handle())
    assert one.failures == 0


def test_is_not_due_once_its_client_has_spoken() -> None:
    table = InFlightMessages(10_000)
    one = in_flight()
    table.add(one)
    assert table.take("c1", "other", one.key) is None
    assert table.take("c2", "g", one.key) is None
    assert table.take("c1", "g", one.key) is one
    assert table.take("c1", "g", one.key) is None
    assert table.due(NOW + 999_999) == []
    assert len(table) == 0


@pytest.mark.parametrize("ends", ["renewed", "failed"])
def test_a_client_may_speak_while_it_is_renewed(ends: str) -> None:
    table = InFlightMessages(10_000)
    one = in_flight()
    table.add(one)
    table.due(NOW + 50_000)
    assert table.take("c1", "g", one.key) is one
    if ends == "renewed":
        table.renewed(one, handle(popped_ms=NOW + 50_000))
        assert one.handle.receipt.pop_time == NOW + 50_000
    else:
        table.failed(one, NOW + 50_000)
    assert table.due(NOW + 999_999) == []
    assert len(table) == 0


def test_received_once_more() -> None:
    table = InFlightMessages(10_000)
    before, after = in_flight(), in_flight(popped_ms=NOW + 70_000)
    table.add(before)
    table.add(after)
    assert len(table) == 1
    table.remove(before)
    assert table.due(NOW + 999_999) == [after]
    assert table.take("c1", "g", before.key) is after


def test_a_client_goes() -> None:
    table = InFlightMessages(10_000)
    mine = [in_flight("c1", "g", 1), in_flight("c1", "h", 1)]
    other = in_flight("c2", "g", 1)
    for one in (*mine, other):
        table.add(one)
    assert table.remove_all("c1") == mine
    assert table.remove_all("c1") == []
    assert table.due(NOW + 999_999) == [other]
    assert table.remove_all() == [other]
    assert not table._slots
    assert not table._of_owner


def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    change_constant(monkeypatch, "in_flight_messages.PROXY_IN_FLIGHT_MESSAGES", 2)
    table = InFlightMessages(10_000)
    assert table.add(in_flight(offset=1))
    assert table.add(in_flight(offset=2))
    assert not table.add(in_flight("c2", offset=3))
    assert table.add(in_flight(offset=2))
    assert len(table) == 2
    table.take("c1", "g", in_flight(offset=1).key)
    assert table.add(in_flight("c2", offset=3))
