"""Converts a delayed, timer or half message for a broker of another name."""

from __future__ import annotations

import pytest

from gantrymq.broker.acting.escaped_message import escaped_message
from gantrymq.errors import IllegalMessage
from gantrymq.protocol.properties import decode_properties, encode_properties
from gantrymq.protocol.record import Record
from gantrymq.protocol.sys_flag import COMPRESSED, STORE_HOST_V6, TRANSACTION_PREPARED


def record(**changed: object) -> Record:
    fields = dict.fromkeys(Record._fields, 0) | {"topic": b"x", "body": b"", "properties": b""} | changed
    return Record(**fields)  # type: ignore[arg-type]


def test_one_that_is_due_is_no_delayed_one_any_more() -> None:
    properties = encode_properties({"DELAY": "3", "KEYS": "k", "REAL_TOPIC": "orders", "GANTRY_DEDUPLICATE_ID": "a"})
    message = escaped_message(record(sys_flag=COMPRESSED | STORE_HOST_V6), "orders", properties)
    assert (message.topic, message.group, message.sys_flag) == ("orders", None, COMPRESSED)
    assert decode_properties(message.properties) == {"KEYS": "k", "REAL_TOPIC": "orders"}


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_one_that_had_a_time_does_not_wait_again(name: str) -> None:
    # Its properties had no space for the marks of a delivered timer message.
    message = escaped_message(record(), "orders", encode_properties({name: "60"}))
    assert decode_properties(message.properties) == {name: "60", "TIMER_OUT_MS": "0"}


def test_one_that_goes_on_waiting_waits_for_the_rest_of_its_time() -> None:
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "3", "TIMER_OUT_MS": "1999", "TIMER_DELAY_SEC": "9", "KEYS": "k"}
    message = escaped_message(record(), "rmq_sys_wheel_timer", encode_properties(properties))
    assert message.topic == "orders"
    assert decode_properties(message.properties) == {"TIMER_DELIVER_MS": "2000", "KEYS": "k"}


def test_a_half_message_is_one_there_too() -> None:
    properties = {"REAL_TOPIC": "orders", "REAL_QID": "3", "PGROUP": "producers", "TRAN_PREPARED_QUEUE_OFFSET": "7"}
    message = escaped_message(record(), "RMQ_SYS_TRANS_HALF_TOPIC", encode_properties(properties))
    assert (message.topic, message.group, message.sys_flag) == ("orders", "producers", TRANSACTION_PREPARED)
    assert decode_properties(message.properties) == {"REAL_TOPIC": "orders", "PGROUP": "producers", "TRAN_MSG": "true"}


@pytest.mark.parametrize("topic", [{}, {"REAL_TOPIC": "rmq_sys_wheel_timer", "REAL_QID": "0"}])
def test_a_half_message_that_may_go_nowhere(topic: dict[str, str]) -> None:
    with pytest.raises(IllegalMessage):
        escaped_message(record(), "RMQ_SYS_TRANS_HALF_TOPIC", encode_properties(topic))


@pytest.mark.parametrize("out_ms", ["", "soon"])
def test_a_timer_message_without_a_time(out_ms: str) -> None:
    properties = encode_properties({"REAL_TOPIC": "orders", "TIMER_OUT_MS": out_ms})
    with pytest.raises(IllegalMessage):
        escaped_message(record(), "rmq_sys_wheel_timer", properties)
