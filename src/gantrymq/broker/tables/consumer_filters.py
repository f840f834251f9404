"""The SQL92 filters of consumer groups, and consumerFilter.json (`ConsumerFilterManager`, `ConsumerFilterData`).

A heartbeat contains the group's filter expression for each topic. The expression applies to pulls that contain no
expression. The first such pull compiles it.

If members have different expressions, `group_subscriptions` selects the active one. Java selects it by version.

Java stores Bloom filter data with each expression. Here, loaded data stays unchanged, and new expressions have no such
data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gantrymq.broker.feature import Feature
from gantrymq.broker.tables.persistence import TablePersistence, in_pieces
from gantrymq.filter.sql import MAX_LENGTH, SqlFilter, compile_sql
from gantrymq.limits import CONSUMER_FILTER_CHARACTERS
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import EXPRESSION_SQL92, SubscriptionData
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.topic_name import topic_problem
from gantrymq.system import clock

log = peer_log(__name__)

#: Retention time of unused expressions, in ms (filterDataCleanTimeSpan).
KEPT_MS = 24 * 3600 * 1000
#: Largest number of expressions of all groups. At the limit, unused expressions are removed.
MAX_FILTERS = 10_000
#: At the limit, at least 1/_REMOVED_DIVISOR of the unused expressions are removed.
_REMOVED_DIVISOR = 4
#: If an expression was in use when the broker stopped, it counts as unused since this time before the start, in ms.
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
        """True if no member of the group uses the expression."""
        return self.dead_time >= self.born_time


class _FiltersOfTopic(msgspec.Struct, rename="camel"):
    topic: str = ""
    group_filter_data: dict[str, ConsumerFilter] = {}


class _FilterFile(msgspec.Struct, rename="camel"):
    filter_data_by_topic: dict[str, _FiltersOfTopic] = {}


class ConsumerFilters(Feature):
    """Stores the filter expression of each group and topic. Times are in ms.

    The file is written every `flushConsumerOffsetInterval`. There are at most `max_filters` expressions, with
    `max_characters` in total.
    """

    def __init__(
        self,
        path: Path,
        *,
        persistence: TablePersistence,
        max_filters: int = MAX_FILTERS,
        max_characters: int = CONSUMER_FILTER_CHARACTERS,
    ) -> None:
        self._max_filters = max_filters
        self._max_characters = max_characters
        self._file = persistence.file(path, self._encode_file)
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        self._count = 0
        self._characters = 0

    def load(self, now_ms: int | None = None) -> None:
        """Loads the file. All expressions count as unused until the next heartbeat of their group.

        A damaged file is not an error, because heartbeats contain the expressions.
        """
        now_ms = clock.now_ms() if now_ms is None else now_ms
        content = self._file.load(_FilterFile, can_be_rebuilt=True)
        for topic, filters in (content or _FilterFile()).filter_data_by_topic.items():
            for group, each in filters.group_filter_data.items():
                if each.dead_time == 0:
                    each.dead_time = max(each.born_time, now_ms - _DEAD_BEFORE_START_MS)
                each.topic, each.consumer_group = topic, group
                self._put(group, topic, each)

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        """Returns the filter of a group for a topic, used or unused; None if there is none."""
        return self._filters.get(group, {}).get(topic)

    def compiled(self, found: ConsumerFilter) -> SqlFilter:
        """Compiles a filter to a function of a message's properties. Raises ClientError for an invalid expression."""
        return compile_sql(found.expression)

    def register(self, group: str, subscriptions: Collection[SubscriptionData], now_ms: int) -> None:
        """Stores the expressions of a group's active subscriptions. Its other expressions are marked as unused."""
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
                self._file.changed()

    def _register(self, group: str, subscription: SubscriptionData, now_ms: int) -> None:
        topic = subscription.topic
        old = self.find(topic, group)
        version = subscription.sub_version
        if old is None or old.expression != subscription.sub_string:
            if not self._has_capacity(len(subscription.sub_string) - (len(old.expression) if old else 0), old is None):
                log.warning(
                    "there are %d filters: that of group %s for topic %s isn't taken", self._count, group, topic
                )
                return
            each = ConsumerFilter(
                consumer_group=group,
                topic=topic,
                expression=subscription.sub_string,
                born_time=now_ms,
                # Equal for all expressions of one group and topic.
                bloom_filter_data=None if old is None else old.bloom_filter_data,
                client_version=version,
            )
            self._put(group, topic, each)
            self._file.changed()
        elif version != old.client_version or old.is_dead:
            old.client_version = version
            old.dead_time = 0
            self._file.changed()

    def _has_capacity(self, characters: int, is_new: bool) -> bool:
        """Returns True if a new or longer expression fits. If necessary, removes unused ones, oldest first."""
        if not self._is_full(characters, is_new):
            return True
        dead = [each for filters in self._filters.values() for each in filters.values() if each.is_dead]
        dead.sort(key=lambda each: each.dead_time)
        # Removes several expressions at once, so that the next new expressions need no search.
        for n, each in enumerate(dead):
            if n > len(dead) // _REMOVED_DIVISOR and not self._is_full(characters, is_new):
                break
            self._remove(each)
        return not self._is_full(characters, is_new)

    def _is_full(self, characters: int, is_new: bool) -> bool:
        return self._count + is_new > self._max_filters or self._characters + characters > self._max_characters

    def _put(self, group: str, topic: str, each: ConsumerFilter) -> None:
        filters = self._filters.setdefault(group, {})
        old = filters.get(topic)
        self._count += old is None
        self._characters += len(each.expression) - (len(old.expression) if old else 0)
        filters[topic] = each

    def _remove(self, each: ConsumerFilter) -> None:
        filters = self._filters[each.consumer_group]
        del filters[each.topic]
        if not filters:
            del self._filters[each.consumer_group]
        self._count -= 1
        self._characters -= len(each.expression)
        self._file.changed()

    def forget_dead(self, now_ms: int) -> None:
        """Removes expressions that have been unused for KEPT_MS."""
        for each in [each for filters in self._filters.values() for each in filters.values()]:
            if each.is_dead and now_ms - each.dead_time >= KEPT_MS:
                self._remove(each)

    def _encode_file(self) -> Iterator[bytes]:
        self.forget_dead(clock.now_ms())
        return in_pieces(self._content())

    def encode(self) -> bytes:
        """Returns the whole table in the format of consumerFilter.json."""
        return encode_json(self._content())

    def _content(self) -> _FilterFile:
        by_topic: dict[str, _FiltersOfTopic] = {}
        for group, filters in self._filters.items():
            for topic, each in filters.items():
                by_topic.setdefault(topic, _FiltersOfTopic(topic, {})).group_filter_data[group] = each
        return _FilterFile(by_topic)


def _is_possible(subscription: SubscriptionData) -> bool:
    """Returns True if a pull can use the subscription: its length and topic are valid."""
    return len(subscription.sub_string) <= MAX_LENGTH and topic_problem(subscription.topic) is None
