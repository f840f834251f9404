"""The proxy's connections to brokers and NameServers. They use GantryMQ's own client for the remoting protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.popping.pop_api import PopApi
from gantrymq.client.routes import Routes
from gantrymq.errors import NoRouteInfo
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import RequestHandler, RpcHook
from gantrymq.system import tls

#: Timeout to send pending data to brokers when the proxy stops, s.
_CLOSE_S = 0.5


class Brokers:
    """One connection to each broker, shared by all clients of the proxy.

    `handlers` process the requests of brokers to the proxy, by request code. Other modules add handlers before `start`.
    """

    def __init__(
        self, name_servers: str, *, ssl_context: tls.SSLContext | None = None, hooks: Sequence[RpcHook] = ()
    ) -> None:
        self.handlers: dict[int, RequestHandler] = {}
        self._ssl_context = ssl_context
        self._hooks = hooks
        self.client = ClientInstance(name_servers, handlers=self.handlers, ssl_context=ssl_context, hooks=hooks)

    @property
    def api(self) -> BrokerApi:
        return self.client.api

    @property
    def remoting(self) -> RemotingClient:
        return self.client.remoting

    @property
    def routes(self) -> Routes:
        return self.client.routes

    def start(self) -> None:
        self.client.start()

    async def stop(self) -> None:
        await self.client.close(_CLOSE_S)

    def pops(self, group: str) -> PopApi:
        """Returns the API for POP requests of a group."""
        return PopApi(self.client, group)

    def another_connection(self, on_close: Callable[[str], None]) -> RemotingClient:
        """Returns separate connections, for another client of the same brokers. The caller closes them."""
        return RemotingClient(self.handlers, ssl_context=self._ssl_context, hooks=self._hooks, on_close=on_close)

    async def route(self, topic: str) -> TopicRouteData:
        """Returns the route of a topic, from the cache if possible. Raises NoRouteInfo or a RemotingError."""
        return await self.routes.get(topic)

    async def master(self, broker_name: str) -> str:
        """Returns host:port of a broker's master. Raises ProxyError if no NameServer has this broker."""
        address = self.routes.master_address(broker_name)
        if address is None:
            # A handle can name a broker that is in no cached route. Each broker has a topic with its own name, whose
            # route is requested here.
            with suppress(NoRouteInfo):
                await self.routes.get(broker_name)
            address = self.routes.master_address(broker_name)
        if address is None:
            raise ProxyError(Code.BAD_REQUEST, f"the master of broker {broker_name} isn't known")
        return address
