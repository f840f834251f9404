"""Which messages a subscription takes (`ExpressionMessageFilter`, `ExpressionForRetryMessageFilter`).

Tags are compared by their hash codes, which stand in the queue's units; the client compares the tags themselves. SQL92
needs the properties, so each record is looked at; Java can spare itself some of these looks by Bloom filters beside the
queue (enableCalcFilterBitMap, off by default), which aren't written here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import lru_cache, partial
from typing import NamedTuple

from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.consumer_filter import ConsumerFilters
from gantrymq.broker.consumer_groups import GroupMembers
from gantrymq.errors import ClientError, RecordError, RequestRefused
from gantrymq.filter.held import HeldFilters
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
#: Characters of a tag expression that is kept for the next pull; of longer ones none is kept but what is held.
_LONGEST_REMEMBERED = 128


class MessageFilter(NamedTuple):
    """As `MessageStore.get` takes it: tags codes, and a test of a whole record; None: all pass."""

    tags_codes: frozenset[int] | None = None
    matches: Callable[[memoryview], bool] | None = None


class MessageFilters:
    """Makes the filter of a pull. Raises RequestRefused with the code that tells the client what to do."""

    def __init__(self, config: BrokerConfig, members: GroupMembers[Connection], filters: ConsumerFilters) -> None:
        self._config = config
        self._members = members
        self._filters = filters

    def of_expression(self, group: str, topic: str, expression: str, expression_type: str | None) -> MessageFilter:
        """Of a subscription that a request carries itself. Java gives all messages where such an SQL92 is wrong."""
        if is_tag_type(expression_type):
            return tag_filter(expression)
        return self._sql_filter(group, topic, self._compile(expression, expression_type))

    def of_group(self, group: SubscriptionGroupConfig, topic: str, version: int) -> MessageFilter:
        """Of what the group's members have subscribed to, if that isn't older than `version`."""
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
        """The expression of a group that filters a topic by SQL92, as far as one is known; None for tags."""
        online = self._members.consumers.get(group)
        subscription = None if online is None else online.subscriptions.get(topic)
        if subscription is None or is_tag_type(subscription.expression_type):
            return None
        found = self._filters.find(topic, group)
        return "" if found is None else found.expression

    def check_in_steps(self, subscription: SubscriptionData) -> Steps:
        """Whether this broker can filter by a subscription (`ClientManageProcessor.checkClientConfig`)."""
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
        """A message that comes again is filtered by what the group says of the topic that it came from."""
        properties = _properties(record)
        topic = find_property(properties, _RETRY_TOPIC) or b""
        found = self._filters.find(topic.decode(errors="replace"), group)
        try:
            return found is None or self._filters.compiled(found)(properties)
        except ClientError:
            return True


def compiling(expression: str) -> Generator[None, None, None]:
    """Compiles an expression in steps. What is wrong with it is kept, and told where it is used."""
    with suppress(ClientError):
        yield from compile_in_steps(expression)


def is_tag_type(expression_type: str | None) -> bool:
    """Tags are what is meant without a type, too (`ExpressionType.isTagType`)."""
    return expression_type == EXPRESSION_TAG or not expression_type


def tag_filter(expression: str) -> MessageFilter:
    """The filter for `*` or `a || b`. Raises RequestRefused for one that is too long; see `HeldFilters`, too."""
    if len(expression) > MAX_LENGTH:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"tags of {len(expression)} characters: at most {MAX_LENGTH} are taken",
        )
    return _remembered(expression) if len(expression) <= _LONGEST_REMEMBERED else _tag_filter(expression)


def _tag_filter(expression: str) -> MessageFilter:
    held = _held_tags.get(expression)
    if held is None:
        codes = SubscriptionData.parse("", expression).code_set
        if not codes:
            return MessageFilter()
        _held_tags.take(expression)
        held = _held_tags.add(expression, frozenset(codes))
    return MessageFilter(held)


_held_tags: HeldFilters[frozenset[int]] = HeldFilters()
_remembered = lru_cache(maxsize=1000)(_tag_filter)


def _matches(sql: SqlFilter, record: memoryview) -> bool:
    return sql(_properties(record))


def _properties(record: memoryview) -> bytes:
    try:
        return record_properties(record)
    except RecordError as e:
        log.warning("a record is filtered as if it had no properties: %s", e)
        return b""
