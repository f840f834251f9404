"""Bodies with the clients of a broker (body/ConsumerConnection, ProducerConnection, ProducerTableInfo)."""

from __future__ import annotations

import msgspec

from gantrymq.protocol.bodies.heartbeat import CLUSTERING, CONSUME_FROM_LAST_OFFSET, CONSUME_PASSIVELY, SubscriptionData
from gantrymq.protocol.codes import LanguageCode


class ClientConnection(msgspec.Struct, rename="camel"):
    """One client (`Connection`). `version` is a number of MQVersion."""

    client_id: str
    client_addr: str
    language: str = LanguageCode.OTHER.name
    version: int = 0


class ConsumerConnection(msgspec.Struct, rename="camel"):
    """The response to GET_CONSUMER_CONNECTION_LIST (203)."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET


class ProducerConnection(msgspec.Struct, rename="camel"):
    """The response to GET_PRODUCER_CONNECTION_LIST (204)."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(msgspec.Struct, rename="camel"):
    """One producer. `last_update_timestamp` is the time of its last heartbeat, in ms."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str = LanguageCode.OTHER.name
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(msgspec.Struct):
    """The response to GET_ALL_PRODUCER_INFO (328): producers by group."""

    data: dict[str, list[ProducerInfo]] = {}


class CheckClientRequestBody(msgspec.Struct, rename="camel"):
    """The body of CHECK_CLIENT_CONFIG (46)."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None
