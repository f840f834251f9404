"""RemotingSide: the port of clients that speak the remoting protocol (`RemotingProtocolServer`).

Routes name this proxy in place of brokers; what clients ask of brokers then arrives here, and goes on to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from gantrymq.background.jobs import Jobs
from gantrymq.background.tasks import Tasks
from gantrymq.errors import GantryError, NoRouteInfo, RemotingError, RequestRefused
from gantrymq.logs import peer_log
from gantrymq.namesrv.answers import encode_body
from gantrymq.protocol.bodies.heartbeat import HeartbeatData
from gantrymq.protocol.bodies.route import BrokerData, TopicRouteData
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.protocol.properties import decode_properties
from gantrymq.protocol.topic_name import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from gantrymq.proxy import metadata as topic_types
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.for_each import for_each
from gantrymq.proxy.messages import message_type
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.passing.broker_of import broker_of, topic_of
from gantrymq.proxy.passing.first_bytes import FirstBytes
from gantrymq.proxy.passing.link import Link
from gantrymq.proxy.passing.requests_seen import RequestsSeen
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import MessageType
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.server import RemotingServer
from gantrymq.system import tls

if TYPE_CHECKING:
    from gantrymq.proxy.passing.access import RemotingAccess

log = peer_log(__name__)

_LINK = "link"
#: A broker's answer is waited for so long beyond what the request says that it may take, ms.
_TIMEOUT_MS = 3000
_AFTER_POLLING_MS = 10_000
#: A client waits so long at most for its brokers to be connected, when it asks for a route, s.
_PREPARE_S = 1.0
#: Timeout of requests to brokers that are under way when the server stops, s.
_STOP_S = 0.5
#: Topics that a client subscribes to.
MAX_TOPICS = 10_000

#: What goes to the broker that it is for, all that clients ask of brokers for themselves. Operators ask brokers.
_PASSED = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
)
#: In which field sends have the message's properties.
_PROPERTIES: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "properties",
    RequestCode.SEND_MESSAGE_V2: "i",
    RequestCode.SEND_BATCH_MESSAGE: "i",
}
#: A property of messages that come from another cluster, whose topics are of other types maybe.
_TRANSFERRED = "TRANSFER_FLAG"
#: What any broker answers that knows the group.
_OF_GROUP = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.CHECK_CLIENT_CONFIG,
)
#: What all of a client's brokers are told.
_FOR_ALL = (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)


class RemotingSide(RemotingServer):
    """With `http2`, which makes the protocol of a connection, the port is for gRPC, too. `seen` is told of requests."""

    def __init__(
        self,
        config: ProxyConfig,
        brokers: Brokers,
        metadata: Metadata,
        access: RemotingAccess | None,
        jobs: Jobs,
        *,
        ssl_context: tls.SSLContext | None,
        http2: Callable[[], asyncio.Protocol] | None,
        seen: RequestsSeen | None = None,
    ) -> None:
        handlers: dict[int, RequestHandler] = dict.fromkeys(_PASSED, self._to_its_broker)
        if config.enable_topic_message_type_check:
            handlers |= dict.fromkeys(_PROPERTIES, self._send)
        handlers |= dict.fromkeys(_OF_GROUP, self._to_broker_of_group)
        handlers |= dict.fromkeys(_FOR_ALL, self._to_all)
        handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = self._route
        if access is not None:
            handlers = {code: partial(_checked, access, handler) for code, handler in handlers.items()}
        self._brokers = brokers
        self._metadata = metadata
        self._checks_types = config.enable_topic_message_type_check
        self._ssl_context = ssl_context
        self._http2 = http2
        self._access_host = config.remoting_access_addr
        self._seen = seen
        self._work = Tasks("clients of the remoting protocol")
        super().__init__(
            handlers,
            host=config.bind_address,
            port=config.remoting_listen_port,
            tls=config,
            hooks=(seen,) if seen is not None else (),
            alpn=("h2",) if http2 is not None else (),
            shared_port=config.shared_ports,
            on_close=self._left,
            jobs=jobs,
        )

    async def stop(self) -> None:
        await super().stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._work.wait()
        await self._work.stop()

    def _connected(self) -> asyncio.Protocol:
        if self._http2 is None:
            return super()._connected()
        return FirstBytes(self._http2, super()._connected)

    def _link(self, connection: Connection) -> Link:
        link: Link | None = connection.attributes.get(_LINK)
        if link is None:
            link = connection.attributes[_LINK] = Link(connection, self._ssl_context)
        return link

    def _left(self, connection: Connection) -> None:
        if self._seen is not None:
            self._seen.lost(connection.address)
        link: Link | None = connection.attributes.get(_LINK)
        if link is not None:
            self._work.start(link.close())

    # -- routes -------------------------------------------------------------------------------------------------

    def _route(self, connection: Connection, request: RemotingCommand) -> Reply:
        topic = request.read_header(TopicRequestHeader).topic
        route = self._brokers.routes.cached(topic)
        if route is not None:
            link = self._link(connection)
            if all(broker.broker_name in link.brokers for broker in route.broker_datas) and self._is_known(topic):
                return self._routed(connection, route)
        connection.respond_with(request, self._prepare(connection, topic))
        return None

    def _is_known(self, topic: str) -> bool:
        """Nobody has to be asked when messages come for it."""
        is_plain = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        return not self._checks_types or is_plain or self._metadata.known_topic_type(topic) is not None

    async def _prepare(self, connection: Connection, topic: str) -> Reply:
        """The client is going to ask much of these brokers at once: then they are connected already."""
        try:
            route = await self._brokers.route(topic)
        except NoRouteInfo as e:
            raise _no_route(topic) from e
        link = self._link(connection)
        work: list[Awaitable[object]] = [
            self._connect(link, broker.broker_name, broker.master_address)
            for broker in route.broker_datas
            if broker.master_address is not None and broker.broker_name not in link.brokers
        ]
        if not self._is_known(topic):
            work.append(self._metadata.topic_type(topic))
        link.brokers.update((broker.broker_name, None) for broker in route.broker_datas)
        with suppress(TimeoutError, RemotingError):
            async with asyncio.timeout(_PREPARE_S):
                await asyncio.gather(*work)
        return self._routed(connection, route)

    @staticmethod
    async def _connect(link: Link, name: str, address: str) -> None:
        with suppress(RemotingError):
            await link.connect(name, address)

    def _routed(self, connection: Connection, route: TopicRouteData) -> RemotingCommand:
        """A route with this proxy as all its brokers."""
        here = format_address(self._access_host or connection.local_host, self.port)
        named = TopicRouteData(
            route.queue_datas,
            [
                BrokerData(broker.cluster, broker.broker_name, dict.fromkeys(broker.broker_addrs, here))
                for broker in route.broker_datas
            ],
            order_topic_conf=route.order_topic_conf,
        )
        return RemotingCommand.response(body=encode_body(named))

    # -- sending ------------------------------------------------------------------------------------------------

    def _send(self, connection: Connection, request: RemotingCommand) -> Reply:
        """A message of another kind than its topic takes is refused (`SendMessageActivity`)."""
        topic = topic_of(request)
        if topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)):
            return self._to_its_broker(connection, request)
        expected = self._metadata.known_topic_type(topic)
        if expected is None:
            connection.respond_with(request, self._send_to_unknown(connection, request, topic))
            return None
        _check_type(expected, request)
        return self._to_its_broker(connection, request)

    async def _send_to_unknown(self, connection: Connection, request: RemotingCommand, topic: str) -> Reply:
        _check_type(await self._metadata.topic_type(topic), request)
        return self._to_its_broker(connection, request)

    # -- requests to one broker ---------------------------------------------------------------------------------

    def _to_its_broker(self, connection: Connection, request: RemotingCommand) -> Reply:
        name = broker_of(request)
        address = self._brokers.routes.broker_address(name) if name else None
        if address is None or not self._link(connection).pass_now(address, request, _timeout_ms(request)):
            connection.respond_with(request, self._pass_on(self._link(connection), name, request))
        return None

    async def _pass_on(self, link: Link, name: str, request: RemotingCommand) -> Reply:
        name = name or await self._sole_broker(link, topic_of(request))
        address, timeout_ms = await self._address(name), _timeout_ms(request)
        await link.connect(name, address)
        # Answers to what is passed now are written before more is read of the broker, unlike those to `ask`.
        if link.pass_now(address, request, timeout_ms):
            return None
        return await link.ask(name, address, request, timeout_ms)

    async def _sole_broker(self, link: Link, topic: str) -> str:
        """For clients that don't name it: the one that has the topic, or the one that the client knows."""
        names = await self._brokers_of(topic) if topic else list(link.brokers)
        if len(names) != 1:
            raise RequestRefused(
                ResponseCode.VERSION_NOT_SUPPORTED,
                "Request doesn't have field bname: which of several brokers it is for can't be told. Clients name it "
                "from version 5.0 on",
            )
        return names[0]

    async def _address(self, name: str) -> str:
        try:
            return self._brokers.routes.broker_address(name) or await self._brokers.master(name)
        except ProxyError as e:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(e)) from e

    def _to_broker_of_group(self, connection: Connection, request: RemotingCommand) -> Reply:
        connection.respond_with(request, self._ask_one(self._link(connection), request))
        return None

    async def _ask_one(self, link: Link, request: RemotingCommand) -> Reply:
        """All brokers of a group's topics know its members: the first that answers."""
        fields = request.ext_fields
        topic = fields.get("topic")
        topics = [topic] if topic else link.groups.get(fields.get("consumerGroup", ""), [])
        names = await self._brokers_of(topics[0]) if topics else list(link.brokers)
        error: GantryError = RequestRefused(ResponseCode.SYSTEM_ERROR, "this client has asked for no topic's route yet")
        for name in names:
            try:
                return await link.ask(name, await self._address(name), request, _TIMEOUT_MS)
            except GantryError as e:
                error = e
        raise error

    # -- requests to all brokers --------------------------------------------------------------------------------

    def _to_all(self, connection: Connection, request: RemotingCommand) -> Reply:
        link = self._link(connection)
        if request.code == RequestCode.HEART_BEAT:
            data = decode_json(request.body, HeartbeatData)
            groups = {
                consumer.group_name: [subscription.topic for subscription in consumer.subscription_data_set]
                for consumer in data.consumer_data_set
            }
            if sum(map(len, groups.values())) > MAX_TOPICS:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"a client subscribes to {MAX_TOPICS} topics at most")
            link.groups = groups
            if self._seen is not None:
                self._seen.named(connection.address, data.client_id)
        connection.respond_with(request, self._tell_all(link, request))
        return None

    async def _tell_all(self, link: Link, request: RemotingCommand) -> Reply:
        """Answered as soon as one of them has taken it: one that hangs is told, and not waited for."""
        answered: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        names = link.names
        if request.code == RequestCode.HEART_BEAT:
            # Clients ask for the routes of their topics before: what isn't known isn't looked for here.
            routes = map(self._brokers.routes.cached, chain.from_iterable(link.groups.values()))
            brokers = (broker.broker_name for route in routes if route is not None for broker in route.broker_datas)
            names = list(dict.fromkeys(chain(link.brokers, brokers)))
        if not names:
            return RemotingCommand.response()
        self._work.start(self._tell(link, names, request, answered))
        return await answered

    async def _tell(
        self, link: Link, names: list[str], request: RemotingCommand, answered: asyncio.Future[RemotingCommand]
    ) -> None:
        errors: list[RemotingCommand] = []

        async def tell(name: str) -> None:
            try:
                response = await link.ask(name, await self._address(name), request, _TIMEOUT_MS)
            except GantryError as e:
                log.info("broker %s isn't told of client %s: %s", name, link.connection.address, e)
                response = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(e))
            response = response or RemotingCommand.response()
            if response.code != ResponseCode.SUCCESS:
                errors.append(response)
            elif not answered.done():
                answered.set_result(response)

        await for_each(names, tell)
        if not answered.done():
            answered.set_result(errors[0])

    async def _brokers_of(self, topic: str) -> list[str]:
        """The names of brokers that have the topic."""
        try:
            return [broker.broker_name for broker in (await self._brokers.route(topic)).broker_datas]
        except NoRouteInfo as e:
            raise _no_route(topic) from e


def _checked(
    access: RemotingAccess, handler: RequestHandler, connection: Connection, request: RemotingCommand
) -> Reply:
    """The handler, called when the request is allowed: users are asked of a broker now and then."""

    async def check() -> Reply:
        await access.check(connection, request)
        return handler(connection, request)

    connection.respond_with(request, check())
    return None


def _check_type(expected: str, request: RemotingCommand) -> None:
    """One that isn't there yet takes any: its first message makes it."""
    if expected in (topic_types.MIXED, topic_types.UNSPECIFIED):
        return
    properties = decode_properties(request.ext_fields.get(_PROPERTIES[request.code], "").encode())
    actual = MessageType.Name(message_type(properties))
    if actual != expected and _TRANSFERRED not in properties:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"TopicMessageType validate failed, the expected type is {expected}, but actual type is {actual}",
        )


def _no_route(topic: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic[:200]}"
    )


def _timeout_ms(request: RemotingCommand) -> int:
    """How long a broker may take: pulls and pops say how long they wait."""
    fields = request.ext_fields
    text = fields.get("suspendTimeoutMillis") or fields.get("pollTime")
    if text is None or not text.isdecimal() or len(text) > 9:
        return _TIMEOUT_MS
    return int(text) + _AFTER_POLLING_MS
