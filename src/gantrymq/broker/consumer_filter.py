"""What consumer groups filter by, and consumerFilter.json (`ConsumerFilterManager`, `ConsumerFilterData`).

A group's heartbeat brings an expression for each topic, a pull that carries none of its own is filtered by it. The
expression is compiled when the first pull asks for it. Java keeps the places of a Bloom filter beside each expression;
here they are kept as they came, and a new expression has none.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gantrymq import clock
from gantrymq.broker.part import Part
from gantrymq.filter.sql import MAX_LENGTH, SqlFilter, compile_sql
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_SQL92, SubscriptionData
from gantrymq.protocol.fastjson import decode_json, encode_json
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.store.json_config import JsonConfigFile

log = logging.getLogger(__name__)

#: Expressions of groups that are gone so long are forgotten (filterDataCleanTimeSpan), ms.
KEPT_MS = 24 * 3600 * 1000
#: So many expressions are kept of all groups together.
MAX_FILTERS = 10_000
#: What was in use when the broker stopped counts as unused since so long before the start, ms.
_DEAD_BEFORE_START_MS = 30_000


class ConsumerFilter(msgspec.Struct, rename="camel"):
    """One group's expression for one topic; `client_version` is the subscription's version. Times in ms."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str = EXPRESSION_SQL92
    born_time: int = 0
    dead_time: int = 0
    bloom_filter_data: dict[str, Any] | None = None
    client_version: int = 0

    @property
    def is_dead(self) -> bool:
        """No member of the group subscribes by it any more."""
        return self.dead_time >= self.born_time


class _FiltersOfTopic(msgspec.Struct, rename="camel"):
    topic: str = ""
    group_filter_data: dict[str, ConsumerFilter] = {}


class _FilterFile(msgspec.Struct, rename="camel"):
    filter_data_by_topic: dict[str, _FiltersOfTopic] = {}


class ConsumerFilters(Part):
    """Group -> topic -> ConsumerFilter; `save` writes them when they changed. Times in ms, now where none is given."""

    def __init__(self, path: Path) -> None:
        self._file = JsonConfigFile(path)
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        self._count = 0
        self._compiled: dict[tuple[str, str], SqlFilter] = {}
        self._changed = False

    def load(self, now_ms: int | None = None) -> None:
        """Takes in the file; all are dead until a heartbeat says otherwise."""
        now_ms = clock.now_ms() if now_ms is None else now_ms
        data = self._file.load(lambda content: decode_json(content, _FilterFile))
        if data is None:
            return
        for topic, filters in decode_json(data, _FilterFile).filter_data_by_topic.items():
            for group, each in filters.group_filter_data.items():
                if each.dead_time == 0:
                    each.dead_time = max(each.born_time, now_ms - _DEAD_BEFORE_START_MS)
                self._put(group, topic, each)

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        return self._filters.get(group, {}).get(topic)

    def compiled(self, found: ConsumerFilter) -> SqlFilter:
        """What `find` found as a function of a message's properties. Raises ClientError."""
        key = found.topic, found.consumer_group
        sql = self._compiled.get(key)
        if sql is None:
            sql = self._compiled[key] = compile_sql(found.expression)
        return sql

    def register(self, group: str, subscriptions: Sequence[SubscriptionData], now_ms: int) -> None:
        """Takes in what a heartbeat says of a group; the expressions for topics that it doesn't name any more die."""
        for subscription in subscriptions:
            if (
                subscription.expression_type == EXPRESSION_SQL92
                and subscription.sub_string
                and _is_possible(subscription)
            ):
                self._register(group, subscription, now_ms)
        topics = {subscription.topic for subscription in subscriptions}
        for topic, each in self._filters.get(group, {}).items():
            if topic not in topics and not each.is_dead:
                each.dead_time = now_ms
                self._changed = True

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        topic = subscription.topic
        old = self.find(topic, group)
        version = subscription.sub_version
        if old is None and self._count >= MAX_FILTERS:
            log.warning("there are %d filters: that of group %s for topic %s isn't taken", self._count, group, topic)
        elif old is None or (version > old.client_version and old.expression != subscription.sub_string):
            self._compiled.pop((topic, group), None)
            each = ConsumerFilter(
                consumer_group=group,
                topic=topic,
                expression=subscription.sub_string,
                born_time=now_ms,
                # It depends on group and topic only.
                bloom_filter_data=None if old is None else old.bloom_filter_data,
                client_version=version,
            )
            self._put(group, topic, each)
            self._changed = True
        elif version > old.client_version or (version == old.client_version and old.is_dead):
            old.client_version = version
            old.dead_time = 0
            self._changed = True

    def _put(self, group: str, topic: str, each: ConsumerFilter) -> None:
        filters = self._filters.setdefault(group, {})
        self._count += topic not in filters
        filters[topic] = each

    def unregister(self, group: str, now_ms: int) -> None:
        """The last member of a group is gone."""
        self.register(group, (), now_ms)

    def save(self, now_ms: int | None = None) -> None:
        """Forgets what is dead for too long, and writes the file if anything changed. Raises StoreError."""
        now_ms = clock.now_ms() if now_ms is None else now_ms
        for group, filters in list(self._filters.items()):
            for topic, each in list(filters.items()):
                if each.is_dead and now_ms - each.dead_time >= KEPT_MS:
                    del filters[topic]
                    self._count -= 1
                    self._compiled.pop((topic, group), None)
                    self._changed = True
            if not filters:
                del self._filters[group]
        if self._changed:
            self._file.save(self.encode())
            self._changed = False

    def encode(self) -> bytes:
        """All of it as in consumerFilter.json."""
        by_topic: dict[str, _FiltersOfTopic] = {}
        for group, filters in self._filters.items():
            for topic, each in filters.items():
                by_topic.setdefault(topic, _FiltersOfTopic(topic, {})).group_filter_data[group] = each
        return encode_json(_FilterFile(by_topic))


def _is_possible(subscription: SubscriptionData) -> bool:
    """Whether a pull could ask for it: others aren't worth keeping."""
    return len(subscription.sub_string) <= MAX_LENGTH and topic_problem(subscription.topic) is None
