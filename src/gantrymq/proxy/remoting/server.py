"""The proxy's port for clients of the remoting protocol (`RemotingProtocolServer`).

Routes that clients receive contain the proxy's address in place of the brokers' addresses. The clients therefore send
their requests to the proxy, which forwards them to the brokers.
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
from gantrymq.namesrv.responses import encode_body
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
from gantrymq.proxy.concurrency import for_each
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.messages import message_type
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.remoting.first_bytes import FirstBytes
from gantrymq.proxy.remoting.link import Link
from gantrymq.proxy.remoting.request_observer import RequestObserver
from gantrymq.proxy.remoting.request_target import broker_of, topic_of
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import MessageType
from gantrymq.remoting.address import format_address
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.listener import ListenOptions
from gantrymq.remoting.server import RemotingServer
from gantrymq.system import tls

if TYPE_CHECKING:
    from gantrymq.proxy.remoting.access import RemotingAccess

log = peer_log(__name__)

_LINK = "link"
#: Timeout of a request to a broker, ms.
_TIMEOUT_MS = 3000
#: Timeout of a long poll after the end of its polling time, ms.
_AFTER_POLLING_MS = 10_000
#: Longest time for which a route request waits for connections to the brokers, s.
_PREPARE_S = 1.0
#: Timeout of pending requests to brokers when the server stops, s.
_STOP_S = 0.5
#: Largest number of subscribed topics of one client.
MAX_TOPICS = 10_000

#: Requests that are forwarded to one broker. Operators send admin requests to the broker itself.
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
#: Name of the field with the message properties, by request code.
_PROPERTIES: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "properties",
    RequestCode.SEND_MESSAGE_V2: "i",
    RequestCode.SEND_BATCH_MESSAGE: "i",
}
#: Property of a message that was copied from another cluster, where the types of topics may differ.
_TRANSFERRED = "TRANSFER_FLAG"
#: Requests that any broker of the group's topics can answer.
_OF_GROUP = (
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.CHECK_CLIENT_CONFIG,
)
#: Requests that go to all brokers of a client.
_FOR_ALL = (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)


class RemotingProtocolServer(RemotingServer):
    """Serves the remoting port and forwards each request to one or all of the client's brokers.

    If `http2` is given, the port also serves gRPC: `http2` creates the connection's protocol. `seen` records requests.
    """

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
        seen: RequestObserver | None = None,
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
            ListenOptions(config.bind_address, config.remoting_listen_port, shared=config.shared_ports),
            tls=config,
            hooks=(seen,) if seen is not None else (),
            alpn=("h2",) if http2 is not None else (),
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
        """Returns the route at once if it is cached and its brokers are connected; otherwise prepares it."""
        topic = request.read_header(TopicRequestHeader).topic
        route = self._brokers.routes.cached(topic)
        if route is not None:
            link = self._link(connection)
            if all(broker.broker_name in link.brokers for broker in route.broker_datas) and self._is_known(topic):
                return self._routed(connection, route)
        connection.respond_with(request, self._prepare(connection, topic))
        return None

    def _is_known(self, topic: str) -> bool:
        """Returns True if a send to the topic needs no request for the topic's message type."""
        is_plain = topic.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        return not self._checks_types or is_plain or self._metadata.known_topic_type(topic) is not None

    async def _prepare(self, connection: Connection, topic: str) -> Reply:
        """Connects to the topic's brokers and caches its message type, then returns the route.

        The client sends requests to these brokers immediately after it has the route.
        """
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
        """Returns the response with a route in which all brokers have this proxy's address."""
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
        """Forwards a message, unless its type differs from the type of its topic (`SendMessageActivity`)."""
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
        """Forwards a request to the broker that it names, at once if possible."""
        name = broker_of(request)
        address = self._brokers.routes.broker_address(name) if name else None
        if address is None or not self._link(connection).pass_now(address, request, _timeout_ms(request)):
            connection.respond_with(request, self._pass_on(self._link(connection), name, request))
        return None

    async def _pass_on(self, link: Link, name: str, request: RemotingCommand) -> Reply:
        """Connects to the broker of a request, then forwards the request."""
        name = name or await self._sole_broker(link, topic_of(request))
        address, timeout_ms = await self._address(name), _timeout_ms(request)
        await link.connect(name, address)
        # Prefer `pass_now`: unlike `ask`, it writes the response before more is read from the broker.
        if link.pass_now(address, request, timeout_ms):
            return None
        return await link.ask(name, address, request, timeout_ms)

    async def _sole_broker(self, link: Link, topic: str) -> str:
        """Returns the topic's only broker; for a request without a topic, the client's only broker.

        Needed for clients that do not name the broker. Raises RequestRefused if there are several brokers.
        """
        names = await self._brokers_of(topic) if topic else list(link.brokers)
        if len(names) != 1:
            raise RequestRefused(
                ResponseCode.VERSION_NOT_SUPPORTED,
                "the request has no field bname, and several brokers can be its target: use a client of version 5.0 or "
                "later",
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
        """Returns the first successful response of the topic's brokers. Each broker has all members of a group."""
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
        """Forwards a heartbeat or UNREGISTER_CLIENT to all brokers of the client."""
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
        connection.respond_with(request, self._send_to_all(link, request))
        return None

    async def _send_to_all(self, link: Link, request: RemotingCommand) -> Reply:
        """Sends a request to all brokers and returns the first response with SUCCESS.

        The other brokers receive the request in the background, so that one hanging broker does not delay the client.
        """
        answered: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        names = link.names
        if request.code == RequestCode.HEART_BEAT:
            # A client requests the routes of its topics before its heartbeats, so the cached routes are enough.
            routes = map(self._brokers.routes.cached, chain.from_iterable(link.groups.values()))
            brokers = (broker.broker_name for route in routes if route is not None for broker in route.broker_datas)
            names = list(dict.fromkeys(chain(link.brokers, brokers)))
        if not names:
            return RemotingCommand.response()
        self._work.start(self._send_to_each(link, names, request, answered))
        return await answered

    async def _send_to_each(
        self, link: Link, names: list[str], request: RemotingCommand, answered: asyncio.Future[RemotingCommand]
    ) -> None:
        """Sends a request to brokers. If no broker returns SUCCESS, `answered` gets the first error."""
        errors: list[RemotingCommand] = []

        async def send(name: str) -> None:
            try:
                response = await link.ask(name, await self._address(name), request, _TIMEOUT_MS)
            except GantryError as e:
                log.info("can't notify broker %s of client %s: %s", name, link.connection.address, e)
                response = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(e))
            response = response or RemotingCommand.response()
            if response.code != ResponseCode.SUCCESS:
                errors.append(response)
            elif not answered.done():
                # Version 2 of heartbeats needs the response of each broker. The proxy's response lacks the brokers'
                # fields, as in Apache's proxy, so clients send version 1.
                is_heartbeat = request.code == RequestCode.HEART_BEAT
                answered.set_result(RemotingCommand.response() if is_heartbeat else response)

        await for_each(names, send)
        if not answered.done():
            answered.set_result(errors[0])

    async def _brokers_of(self, topic: str) -> list[str]:
        """Returns the names of the topic's brokers. Raises RequestRefused if the topic has no route."""
        try:
            return [broker.broker_name for broker in (await self._brokers.route(topic)).broker_datas]
        except NoRouteInfo as e:
            raise _no_route(topic) from e


def _checked(
    access: RemotingAccess, handler: RequestHandler, connection: Connection, request: RemotingCommand
) -> Reply:
    """Calls the handler if the request is allowed. The check may have to request the user from a broker."""

    async def check() -> Reply:
        await access.check(connection, request)
        return handler(connection, request)

    connection.respond_with(request, check())
    return None


def _check_type(expected: str, request: RemotingCommand) -> None:
    """Raises RequestRefused if the message has another type than its topic.

    A topic that does not exist yet is UNSPECIFIED and accepts any type, because its first message creates it.
    """
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
    """Returns the timeout of a request, ms. Pulls and pops add their polling time."""
    fields = request.ext_fields
    text = fields.get("suspendTimeoutMillis") or fields.get("pollTime")
    if text is None or not text.isdecimal() or len(text) > 9:
        return _TIMEOUT_MS
    return int(text) + _AFTER_POLLING_MS
