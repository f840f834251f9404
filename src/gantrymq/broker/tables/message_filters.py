"""Filters of subscriptions, by tag or SQL92 (`ExpressionMessageFilter`, `ExpressionForRetryMessageFilter`).

The broker compares the hash codes of tags, which the consume queue contains. The client then compares the tags.

SQL92 needs the properties, so each record is read. Java can avoid some of these reads with Bloom filters beside the
queue (enableCalcFilterBitMap, off by default), which this broker does not write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables.consumer_filters import ConsumerFilters
from gantrymq.broker.tables.group_members import GroupMembers
from gantrymq.errors import ClientError, RecordError, RequestRefused
from gantrymq.filter.filter_cache import FilterCache
from gantrymq.filter.sql import MAX_LENGTH, SqlFilter, compile_in_steps, compile_sql
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import BROADCASTING, EXPRESSION_SQL92, EXPRESSION_TAG, SubscriptionData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.properties import RETRY_TOPIC, find_property
from gantrymq.protocol.record import record_properties
from gantrymq.protocol.topic_name import RETRY_TOPIC_PREFIX
from gantrymq.remoting.connection import Connection
from gantrymq.remoting.long_requests import Steps

log = peer_log(__name__)

_RETRY_TOPIC = RETRY_TOPIC.encode()
#: Longest tag expression in the cache, in characters. The filter of a longer expression exists only while requests use
#: it.
_LONGEST_REMEMBERED = 128


class MessageFilter(NamedTuple):
    """A filter for `MessageStore.get`: accepted tags codes, and a test of a whole record. None accepts all."""

    tags_codes: frozenset[int] | None = None
    matches: Callable[[memoryview], bool] | None = None


class MessageFilters:
    """Creates the filters of requests. Raises RequestRefused with the response code that the client expects."""

    def __init__(self, config: BrokerConfig, members: GroupMembers[Connection], filters: ConsumerFilters) -> None:
        self._config = config
        self._members = members
        self._filters = filters

    def of_expression(self, group: str, topic: str, expression: str, expression_type: str | None) -> MessageFilter:
        """Returns the filter of an expression. Raises RequestRefused if it is invalid; Java returns all messages."""
        if is_tag_type(expression_type):
            return tag_filter(expression)
        return self._sql_filter(group, topic, self._compile(expression, expression_type))

    def of_group(self, group: SubscriptionGroupConfig, topic: str, version: int) -> MessageFilter:
        """Returns the filter of a group's active subscription.

        Raises RequestRefused if the group has no subscription, if it is older than `version`, or if the group may not
        broadcast.
        """
        name = group.group_name
        online = self._members.consumers.get(name)
        if online is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if online.message_model == BROADCASTING and not group.consume_broadcast_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the consumer group[{name}] can not consume by broadcast way"
            )
        subscription = online.subscriptions.get(topic)
        if subscription is None:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < version:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if is_tag_type(subscription.expression_type):
            return tag_filter(subscription.sub_string)
        return self._sql_filter(name, topic, self._compiled(name, subscription, version))

    def sql_of_group(self, group: str, topic: str) -> str | None:
        """Returns the SQL92 expression of a group for a topic, "" if it is unknown. Returns None for tags.

        Also returns None if the group has no active subscription.
        """
        online = self._members.consumers.get(group)
        subscription = None if online is None else online.subscriptions.get(topic)
        if subscription is None or is_tag_type(subscription.expression_type):
            return None
        found = self._filters.find(topic, group)
        return "" if found is None else found.expression

    def check_in_steps(self, subscription: SubscriptionData) -> Steps:
        """Checks a filter in steps (ClientManageProcessor.checkClientConfig). Raises RequestRefused if unsupported."""
        if not is_tag_type(subscription.expression_type):
            yield from compiling(subscription.sub_string)
            self._compile(subscription.sub_string, subscription.expression_type)
        return RemotingCommand.response()

    def _compile(self, expression: str, expression_type: str | None) -> SqlFilter:
        self._check_type(expression_type)
        try:
            return compile_sql(expression)
        except ClientError as e:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(e)) from e

    def _compiled(self, group: str, subscription: SubscriptionData, version: int) -> SqlFilter:
        self._check_type(subscription.expression_type)
        found = self._filters.find(subscription.topic, group)
        if found is None:
            raise RequestRefused(ResponseCode.FILTER_DATA_NOT_EXIST, "The broker's consumer filter data is not exist!")
        if found.client_version < version:
            raise RequestRefused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
        try:
            return self._filters.compiled(found)
        except ClientError as e:
            raise RequestRefused(ResponseCode.FILTER_DATA_NOT_EXIST, str(e)) from e

    def _check_type(self, expression_type: str | None) -> None:
        if not self._config.enable_property_filter:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {expression_type}",
            )
        if expression_type != EXPRESSION_SQL92:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"there are no filters of type {expression_type}, only {EXPRESSION_TAG} and {EXPRESSION_SQL92}",
            )

    def _sql_filter(self, group: str, topic: str, sql: SqlFilter) -> MessageFilter:
        if self._config.filter_support_retry and topic.startswith(RETRY_TOPIC_PREFIX):
            return MessageFilter(matches=partial(self._retry_matches, group))
        return MessageFilter(matches=partial(_matches, sql))

    def _retry_matches(self, group: str, record: memoryview) -> bool:
        """Returns True if a message of a retry topic matches the group's filter for its original topic."""
        properties = _properties(record)
        topic = find_property(properties, _RETRY_TOPIC) or b""
        found = self._filters.find(topic.decode(errors="replace"), group)
        try:
            return found is None or self._filters.compiled(found)(properties)
        except ClientError:
            return True


def compiling(expression: str) -> Generator[None, None, None]:
    """Compiles an expression in steps, for the cache. If the expression is invalid, its first use raises the error."""
    with suppress(ClientError):
        yield from compile_in_steps(expression)


def is_tag_type(expression_type: str | None) -> bool:
    """Returns True for the type of tags, which is the default (`ExpressionType.isTagType`)."""
    return expression_type == EXPRESSION_TAG or not expression_type


def tag_filter(expression: str) -> MessageFilter:
    """Returns the filter for `*` or `a || b`. Raises RequestRefused if it is too long or `FilterCache` is full."""
    if len(expression) > MAX_LENGTH:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"tags of {len(expression)} characters: at most {MAX_LENGTH} are taken",
        )
    return _remembered(expression) if len(expression) <= _LONGEST_REMEMBERED else _tag_filter(expression)


def _tag_filter(expression: str) -> MessageFilter:
    known = _tag_filters.get(expression)
    if known is None:
        codes = SubscriptionData.parse("", expression).code_set
        if not codes:
            return MessageFilter()
        _tag_filters.take(expression)
        known = _tag_filters.add(expression, frozenset(codes))
    return MessageFilter(known)


_tag_filters: FilterCache[frozenset[int]] = FilterCache()
_remembered = lru_cache(maxsize=1000)(_tag_filter)


def _matches(sql: SqlFilter, record: memoryview) -> bool:
    return sql(_properties(record))


def _properties(record: memoryview) -> bytes:
    try:
        return record_properties(record)
    except RecordError as e:
        log.warning("a record is filtered as if it had no properties: %s", e)
        return b""
