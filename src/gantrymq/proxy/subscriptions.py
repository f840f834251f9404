"""Subscriptions of clients, as brokers have them (`ClientActivity`, `FilterAPI`)."""

from __future__ import annotations

from gantrymq.errors import ClientError
from gantrymq.protocol.bodies.heartbeat import (
    CONSUME_ACTIVELY,
    CONSUME_PASSIVELY,
    EXPRESSION_SQL92,
    EXPRESSION_TAG,
    SubscriptionData,
)
from gantrymq.proxy.clients import Client
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import PUSH_CONSUMER, SQL, Code, FilterExpression


def subscription_of(topic: str, expression: FilterExpression) -> SubscriptionData:
    """Raises ProxyError for an expression that means nothing. SQL92 is for the broker to read."""
    kind = EXPRESSION_SQL92 if expression.type == SQL else EXPRESSION_TAG
    try:
        return SubscriptionData.parse(topic, expression.expression, kind)
    except ClientError as e:
        raise ProxyError(Code.ILLEGAL_FILTER_EXPRESSION, str(e)) from e


def subscriptions_of(client: Client) -> list[SubscriptionData]:
    """A consumer's, from its settings."""
    entries = client.settings.subscription.subscriptions
    return [subscription_of(entry.topic.name, entry.expression) for entry in entries]


def consume_type(client: Client) -> str:
    """How a consumer gets its messages."""
    return CONSUME_PASSIVELY if client.client_type == PUSH_CONSUMER else CONSUME_ACTIVELY
