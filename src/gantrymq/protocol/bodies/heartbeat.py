"""The heartbeat of a client to each broker, every 30 s: groups and subscriptions (remoting/protocol/heartbeat/*)."""

from __future__ import annotations

from typing import Final

import msgspec

from gantrymq.errors import ClientError
from gantrymq.protocol.java import string_hash_code
from gantrymq.system.clock import now_ms

CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
CONSUME_POP = "CONSUME_POP"

BROADCASTING = "BROADCASTING"
CLUSTERING = "CLUSTERING"

CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET: Final = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"

EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"
SUBSCRIBE_ALL = "*"


class SubscriptionData(msgspec.Struct, rename="camel"):
    """A group's subscription to one topic. `code_set` has Java's hash codes of `tags_set`."""

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = msgspec.field(default_factory=now_ms)
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    @classmethod
    def parse(
        cls, topic: str, expression: str = SUBSCRIBE_ALL, expression_type: str = EXPRESSION_TAG
    ) -> SubscriptionData:
        """Creates a subscription. `expression` is `*`, tags separated by `||`, or SQL92 (`FilterAPI.build`).

        Raises ClientError if a tag expression contains only separators, because it would match nothing.
        """
        if expression_type != EXPRESSION_TAG:
            if not expression:
                raise ClientError(f"a subscription of type {expression_type} needs an expression")
            return cls(topic, expression, expression_type=expression_type)
        if expression.strip() in ("", SUBSCRIBE_ALL):
            return cls(topic)
        tags = sorted({tag.strip() for tag in expression.split("||")} - {""})
        if not tags:
            raise ClientError(f"{expression!r} names no tag: 'TagA || TagB' and '*' are examples")
        return cls(topic, expression, tags, [string_hash_code(tag) for tag in tags])

    @property
    def filter(self) -> tuple[str, str]:
        """The expression and its type."""
        return self.sub_string, self.expression_type


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer group of a client."""

    group_name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel"):
    """One producer group of a client."""

    group_name: str


class HeartbeatData(msgspec.Struct, rename="camel"):
    """The body of HEART_BEAT (34)."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    is_without_sub: bool = msgspec.field(name="withoutSub", default=False)


class ConsumerList(msgspec.Struct, rename="camel"):
    """The response to GET_CONSUMER_LIST_BY_GROUP: client ids."""

    consumer_id_list: list[str] = []
