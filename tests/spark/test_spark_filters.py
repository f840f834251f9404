from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gantrymq.arrow.filters import PushedFilters, with_tags
from gantrymq.protocol.message import MessageQueue
from gantrymq.spark.conditions import push_condition
from gantrymq.spark.options import ReadOptions
from gantrymq.spark.versions import HAS_FILTERS

if not HAS_FILTERS:
    pytest.skip("Python data sources receive filters from Spark 4.1", allow_module_level=True)

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

QUEUES = [MessageQueue("t", broker, n) for broker in ("a", "b") for n in range(3)]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ([EqualTo(("queueId",), 1)], ["a1", "b1"]),
        ([In(("queueId",), (0, 2)), EqualTo(("brokerName",), "b")], ["b0", "b2"]),
        ([In(("queueId",), (0, 1)), In(("queueId",), (1, 2))], ["a1", "b1"]),
        ([EqualTo(("topic",), "other")], []),
        ([IsNotNull(("topic",))], ["a0", "a1", "a2", "b0", "b1", "b2"]),
    ],
)
def test_queues(conditions: list[Filter], kept: list[str]) -> None:
    filters = PushedFilters()
    assert all(push_condition(filters, condition) for condition in conditions)
    assert [f"{q.broker_name}{q.queue_id}" for q in QUEUES if filters.keep(q)] == kept


@pytest.mark.parametrize(
    ("conditions", "clipped"),
    [
        ([EqualTo(("queueOffset",), 7)], (7, 8)),
        ([GreaterThan(("queueOffset",), 7)], (8, 100)),
        ([GreaterThanOrEqual(("queueOffset",), 7), LessThan(("queueOffset",), 9)], (7, 9)),
        ([LessThanOrEqual(("queueOffset",), 9), LessThan(("queueOffset",), 30)], (0, 10)),
        ([LessThan(("queueOffset",), 500)], (0, 100)),
    ],
)
def test_offsets(conditions: list[Filter], clipped: tuple[int, int]) -> None:
    filters = PushedFilters()
    assert all(push_condition(filters, condition) for condition in conditions)
    assert filters.clip(0, 100) == clipped


def test_times_are_left_to_spark_as_well() -> None:
    filters = PushedFilters()
    assert not push_condition(filters, GreaterThan(("storeTimestamp",), NOON))
    assert not push_condition(filters, LessThanOrEqual(("storeTimestamp",), NOON.replace(microsecond=5500)))
    assert (filters.from_ms, filters.before_ms) == (NOON_MS, NOON_MS + 6)


@pytest.mark.parametrize(
    "condition",
    [
        IsNotNull(("tags",)),
        Not(EqualTo(("queueId",), 1)),
        EqualTo(("queueId",), None),
        In(("queueId",), (1, None)),
        GreaterThan(("bornTimestamp",), NOON),
    ],
)
def test_other_conditions_stay_with_spark(condition: Filter) -> None:
    filters = PushedFilters()
    assert not push_condition(filters, condition)
    assert all(map(filters.keep, QUEUES))
    assert filters.clip(0, 100) == (0, 100)
    assert filters.from_ms is None


@pytest.mark.parametrize(
    ("conditions", "option", "asked_for"),
    [
        ([EqualTo(("tags",), "A")], None, "A"),
        ([In(("tags",), ("B", "A"))], None, "A || B"),
        ([In(("tags",), ("B", "A")), EqualTo(("tags",), "B")], None, "B"),
        ([In(("tags",), ("B", "A"))], "B || C", "B"),
        # Conditions that cannot be sent to a broker: no tag at all, lists, wildcards, blanks, null.
        ([EqualTo(("tags",), "A")], "B", "B"),
        ([EqualTo(("tags",), "A || B")], None, None),
        ([EqualTo(("tags",), "*")], None, None),
        ([EqualTo(("tags",), " A")], None, None),
        ([In(("tags",), ("A", None))], None, None),
    ],
)
def test_tags_go_to_the_broker(conditions: list[Filter], option: str | None, asked_for: str | None) -> None:
    filters = PushedFilters()
    # Spark checks the conditions as well.
    assert [push_condition(filters, condition) for condition in conditions] == [False] * len(conditions)
    options = ReadOptions(["a:1"], ["t"], tags=option)
    assert with_tags(options, filters.tags).tags == asked_for


def test_a_broker_has_one_filter_only() -> None:
    options = ReadOptions(["a:1"], ["t"], sql92="a > 1")
    assert with_tags(options, {"A"}) == options


def test_what_is_too_long_for_a_broker_stays_with_spark() -> None:
    tags = {f"tag-{n:05}" for n in range(2_000)}
    options = ReadOptions(["a:1"], ["t"])
    assert with_tags(options, tags) == options
    narrowed = ReadOptions(["a:1"], ["t"], tags="tag-00001 || B")
    assert with_tags(narrowed, tags).tags == "tag-00001"


def test_tags_of_delayed_messages_stay_with_spark() -> None:
    for topics in (["SCHEDULE_TOPIC_XXXX"], ["t", "SCHEDULE_TOPIC_XXXX"]):
        options = ReadOptions(["a:1"], topics)
        assert with_tags(options, {"A"}) == options
