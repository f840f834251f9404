"""Lists connected clients: GET_CONSUMER_CONNECTION_LIST, GET_PRODUCER_CONNECTION_LIST, GET_ALL_PRODUCER_INFO."""

from __future__ import annotations

import asyncio

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.broker.tables import Client
from gantrymq.errors import RequestRefused
from gantrymq.protocol.bodies.connection import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from gantrymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.group import GetProducerConnectionListRequestHeader, GroupRequestHeader
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system.clock import now_ms

_LANGUAGES = {language.value: language.name for language in LanguageCode}


class Connections(Feature):
    """Lists the members of producer groups and consumer groups."""

    def __init__(self, context: BrokerContext) -> None:
        self._members = context.members
        self._clock = asyncio.get_running_loop().time

    def handlers(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def consumers(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the members and subscriptions of a consumer group."""
        name = request.read_header(GroupRequestHeader).consumer_group
        group = self._members.consumers.get(name)
        if group is None:
            raise RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        body = ConsumerConnection(
            [_connection(client) for client in group.clients.values()],
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return RemotingCommand.response(body=encode_json(body))

    def producers(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the members of a producer group."""
        name = request.read_header(GetProducerConnectionListRequestHeader).producer_group
        clients = self._members.producers.get(name)
        if clients is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnection([_connection(client) for client in clients.values()])
        return RemotingCommand.response(body=encode_json(body))

    def all_producers(self, connection: Connection, request: RemotingCommand) -> Reply:
        """Returns the members of all producer groups."""
        # Heartbeats have timestamps of the event loop's clock.
        loop_time_ms = now_ms() - int(self._clock() * 1000)
        body = ProducerTableInfo(
            {
                group: [
                    ProducerInfo(
                        client.client_id,
                        client.member.address,
                        _LANGUAGES.get(client.language, LanguageCode.OTHER.name),
                        client.version,
                        loop_time_ms + int(client.last_heartbeat * 1000),
                    )
                    for client in clients.values()
                ]
                for group, clients in self._members.producers.items()
            }
        )
        return RemotingCommand.response(body=encode_json(body))


def _connection(client: Client[Connection]) -> ClientConnection:
    language = _LANGUAGES.get(client.language, LanguageCode.OTHER.name)
    return ClientConnection(client.client_id, client.member.address, language, client.version)
