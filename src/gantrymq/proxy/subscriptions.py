"""Conversion of gRPC subscriptions to the format of brokers (`ClientActivity`, `FilterAPI`)."""

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
    """Converts a filter expression. Raises ProxyError for an invalid tag expression. The broker checks SQL92."""
    kind = EXPRESSION_SQL92 if expression.type == SQL else EXPRESSION_TAG
    try:
        return SubscriptionData.parse(topic, expression.expression, kind)
    except ClientError as e:
        raise ProxyError(Code.ILLEGAL_FILTER_EXPRESSION, str(e)) from e


def subscriptions_of(client: Client) -> list[SubscriptionData]:
    """Returns the subscriptions in a consumer's settings."""
    entries = client.settings.subscription.subscriptions
    return [subscription_of(entry.topic.name, entry.expression) for entry in entries]


def consume_type(client: Client) -> str:
    """Returns the consume type for brokers: passive for push consumers, active for all others."""
    return CONSUME_PASSIVELY if client.client_type == PUSH_CONSUMER else CONSUME_ACTIVELY
