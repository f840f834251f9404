"""Tests of properties, message ids and names: round trips, and errors for invalid values."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantrymq.errors import ClientError, IllegalMessage, ProtocolError
from gantrymq.protocol import topic_name
from gantrymq.protocol.bodies.heartbeat import SubscriptionData
from gantrymq.protocol.java import string_hash_code
from gantrymq.protocol.message_id import UniqueKeys, decode_offset_message_id, encode_offset_message_id
from gantrymq.protocol.properties import decode_properties, encode_fitting, encode_properties, find_property

NAMES = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)
TEXTS = st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1)
SEPARATED = st.text(st.sampled_from("ab\x01\x02"), max_size=12)


@given(st.dictionaries(NAMES, TEXTS))
def test_properties_come_back(properties: dict[str, str]) -> None:
    raw = encode_properties(properties)

    assert decode_properties(raw) == properties
    for name, value in properties.items():
        assert find_property(raw, name.encode()) == value.encode()
    assert find_property(raw, b"absent") == (properties["absent"].encode() if "absent" in properties else None)


@given(st.dictionaries(SEPARATED, SEPARATED, max_size=4))
def test_separators_never_make_other_properties(properties: dict[str, str]) -> None:
    try:
        raw = encode_properties(properties)
    except IllegalMessage:
        assert any("\x02" in name + value or "\x01" in name for name, value in properties.items())
        return
    assert decode_properties(raw) == {name: value for name, value in properties.items() if name and value}


@given(SEPARATED)
def test_one_property_is_found_as_in_all_of_them(text: str) -> None:
    properties = decode_properties(text.encode())
    for name in ["a", "b", "ab"]:
        found = find_property(text.encode(), name.encode())
        if text.count(name + "\x01") <= 1:
            assert found == (properties[name].encode() if name in properties else None)


def test_what_is_dispensable_makes_room() -> None:
    fields = {"a": "1" * 10, "b": "2" * 10, "c": "3" * 10, "__CRC32#": "0" * 10}
    size = len(encode_properties({"a": "1" * 10}))
    whole = encode_properties(fields)
    assert encode_fitting(fields, len(whole), ["b"], b"") == whole
    for limit, left in ((len(whole) - 1, "abc"), (3 * size - 1, "ac"), (2 * size - 1, "a")):
        assert decode_properties(encode_fitting(fields, limit, ["b", "c"], b"")).keys() == set(left)
    assert encode_fitting(fields, size - 1, ["b", "c"], b"as it was") == b"as it was"


@given(st.binary())
def test_any_bytes_are_properties(raw: bytes) -> None:
    decode_properties(raw)
    find_property(raw, b"TAGS")


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(IllegalMessage):
        encode_properties({"a": "\ud800"})


# -- ids ------------------------------------------------------------------------------------------------------------


@given(st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20)), st.integers(0, 2**63 - 1))
def test_offset_message_ids_come_back(host: bytes, offset: int) -> None:
    message_id = encode_offset_message_id(host, offset)

    assert len(message_id) == 2 * (len(host) + 8)
    assert decode_offset_message_id(message_id)[1] == offset
    assert decode_offset_message_id(message_id.lower()) == decode_offset_message_id(message_id)


@pytest.mark.parametrize("text", ["", "0A", "xyz", "0" * 31, "0" * 33, "0" * 34, " " + "0" * 32, "00 " * 16, "é" * 32])
def test_what_is_no_offset_message_id(text: str) -> None:
    with pytest.raises(ProtocolError, match="no offset message id"):
        decode_offset_message_id(text)


def test_unique_keys_are_unique() -> None:
    keys = UniqueKeys()
    made = [keys.next() for _ in range(60_000)]
    other = UniqueKeys()

    assert len(set(made)) == len(made)
    assert {len(key) for key in made} == {32}
    assert all(re.fullmatch("[0-9A-F]{32}", key) for key in made[:100])
    assert other.next()[:20] != made[0][:20]
    assert len(UniqueKeys(bytes(16)).next()) == 56


@pytest.mark.parametrize("now_s", [1700000000, 1703980799, 1704067199, 1709251199])
def test_the_time_in_a_unique_key_begins_with_the_month(now_s: int) -> None:
    with patch("gantrymq.system.clock.time_ns", lambda: now_s * 1_000_000_000):
        since_ms = int(UniqueKeys().next()[20:28], 16)
    assert 0 <= since_ms < 31 * 86_400_000
    assert since_ms % 1000 == 0


def test_a_new_month_begins_at_zero() -> None:
    now_ns = 1704066000_000_000_000
    with patch("gantrymq.system.clock.time_ns", lambda: now_ns):
        keys = UniqueKeys()
        before = int(keys.next()[20:28], 16)
        now_ns += 32 * 86_400_000_000_000
        after = int(keys.next()[20:28], 16)
    assert before > 28 * 86_400_000 or before < 86_400_000  # The end or the beginning of a month, by time zone.
    assert 0 <= after < 3 * 86_400_000


DAY_NS = 86_400_000_000_000


@pytest.mark.parametrize(
    "steps",
    [(0,) * 4, (0, -DAY_NS // 24), (40 * DAY_NS, -40 * DAY_NS), (-40 * DAY_NS, 40 * DAY_NS), (31 * DAY_NS,) * 12],
    ids=["it stands still", "an hour back", "a month forward and back", "a month back and forward", "month by month"],
)
def test_unique_keys_do_not_repeat_whatever_the_clock_does(steps: tuple[int, ...]) -> None:
    """Keys are unique whatever the clock does.

    If the time in the key stayed 0 after a start in a later month, 134,464 of 200,000 keys would repeat.
    """
    now_ns = 1704067200_000_000_000 + 15 * DAY_NS
    keys = UniqueKeys()
    made: list[str] = []
    with patch("gantrymq.system.clock.time_ns", lambda: now_ns):
        for step_ns in (0, *steps):
            now_ns += step_ns
            made += [keys.next() for _ in range(40_000)]
            head, first = keys.some(40_000)
            made += [f"{head}{first + number & 0xFFFF:04X}" for number in range(40_000)]
            now_ns -= 1_000_000
            made.append(keys.next())
            since_ms = int(made[-1][20:28], 16)
            # The time in the key is that of the clock, about the 15th of a month.
            assert 0 < since_ms < 31 * 86_400_000
    assert len(set(made)) == len(made)


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "Topic_1-x", "%RETRY%group", "a|b", "x" * 120])
def test_allowed_names(name: str) -> None:
    assert topic_name.topic_problem(name) is None
    assert topic_name.group_problem(name) is None


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "ü", "a/b", "a.b", "a\x00", "a$"])
def test_names_that_are_not_allowed(name: str) -> None:
    assert topic_name.topic_problem(name)
    assert topic_name.group_problem(name)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("x" * 127, True),
        ("x" * 128, False),
        ("%RETRY%" + "x" * 248, True),
        ("%RETRY%" + "x" * 249, False),
        ("%DLQ%" + "x" * 250, True),
    ],
)
def test_topic_lengths(name: str, allowed: bool) -> None:
    assert (topic_name.topic_problem(name) is None) == allowed


def test_group_lengths() -> None:
    assert topic_name.group_problem("x" * 121)


def test_system_topics() -> None:
    assert topic_name.is_system_topic("TBW102")
    assert topic_name.is_system_topic("rmq_sys_anything")
    assert not topic_name.is_system_topic("RMQ_SYS_anything")
    assert topic_name.SEND_FORBIDDEN_TOPICS < topic_name.SYSTEM_TOPICS
    assert topic_name.retry_topic("g") == "%RETRY%g"


@pytest.mark.parametrize(
    ("topic", "sent", "delivered"),
    [
        ("orders", True, True),
        ("%RETRY%group", True, True),
        ("%DLQ%group", True, True),
        ("RMQ_SYS_TRACE_TOPIC", True, True),
        ("rmq_sys_TRACE_DATA_hangzhou", True, True),
        ("DefaultCluster_REPLY_TOPIC", True, True),
        ("BenchmarkTest", True, True),
        ("SCHEDULE_TOPIC_XXXX", False, False),
        ("RMQ_SYS_TRANS_HALF_TOPIC", False, False),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", False, False),
        ("TRANS_CHECK_MAX_TIME_TOPIC", False, False),
        ("SELF_TEST_TOPIC", False, False),
        ("OFFSET_MOVED_EVENT", False, False),
        ("rmq_sys_wheel_timer", False, False),
        ("rmq_sys_SYNC_BROKER_MEMBER_broker-a", False, False),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", False, True),
    ],
)
def test_who_writes_to_a_topic(topic: str, sent: bool, delivered: bool) -> None:
    assert topic_name.may_be_sent_to(topic) == sent
    assert topic_name.may_be_delivered_to(topic) == delivered


# -- subscriptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["*", "", " * "])
def test_a_subscription_to_everything(expression: str) -> None:
    subscription = SubscriptionData.parse("topic", expression)
    assert (subscription.sub_string, subscription.tags_set, subscription.code_set) == ("*", [], [])


def test_a_subscription_to_tags() -> None:
    subscription = SubscriptionData.parse("topic", "b|| a ||b||")
    assert subscription.sub_string == "b|| a ||b||"
    assert subscription.tags_set == ["a", "b"]
    assert subscription.code_set == [string_hash_code("a"), string_hash_code("b")]


def test_a_subscription_in_sql() -> None:
    subscription = SubscriptionData.parse("topic", "a > 1 || b", "SQL92")
    assert (subscription.expression_type, subscription.sub_string) == ("SQL92", "a > 1 || b")
    assert subscription.tags_set == []


@pytest.mark.parametrize(("expression", "kind"), [("||", "TAG"), (" || ", "TAG"), ("", "SQL92")])
def test_subscriptions_to_nothing(expression: str, kind: str) -> None:
    with pytest.raises(ClientError):
        SubscriptionData.parse("topic", expression, kind)
