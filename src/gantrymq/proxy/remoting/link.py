"""One client of the remoting protocol, with its own connections to brokers.

A broker identifies the members of a group, and the producers for transaction checks, by their connections. Each client
therefore has its own connection to each broker. For a broker, this is the same as without a proxy, and its requests
reach the right client. Apache's proxies use one connection for all clients, and exchange tables of members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.remoting.responses import error_response
from gantrymq.system import tls

#: Limit of the write buffer of a connection to a broker, bytes. A broker may hang, and each client has such
#: connections.
_MOST_UNSENT = 1024 * 1024
#: Timeout of a broker's request to a client, ms.
ASKED_MS = 10_000
#: Requests that brokers send to clients.
ASKED = (
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
)


class Link:
    """Forwards requests and responses between one client and its brokers. `connection` leads to the client."""

    def __init__(self, connection: Connection, ssl_context: tls.SSLContext | None) -> None:
        self.connection = connection
        handlers: Mapping[int, RequestHandler] = dict.fromkeys(ASKED, self._ask)
        self._remoting = RemotingClient(handlers, ssl_context=ssl_context)
        #: The connections to brokers, by address.
        self.upstreams: dict[str, Connection] = {}
        #: True while the client does not read its responses, so that the connections to brokers are not read either.
        self._is_held_up = False
        #: Broker names by address.
        self._names: dict[str, str] = {}
        #: Names of the brokers in the routes that the client requested.
        self.brokers: dict[str, None] = {}
        #: Subscribed topics by consumer group of the client.
        self.groups: dict[str, list[str]] = {}

    @property
    def names(self) -> list[str]:
        """Names of the connected brokers."""
        return [self._names[address] for address, upstream in self.upstreams.items() if not upstream.is_closed]

    async def connect(self, name: str, address: str) -> None:
        """Connects to a broker, unless a connection is open. Raises ConnectFailed or ClientClosed."""
        upstream = await self._remoting.connection(address)
        if self.upstreams.get(address) is not upstream:
            upstream.limit_writes(_MOST_UNSENT)
            if self._is_held_up:
                upstream.stop_reading()
            self.upstreams[address] = upstream
            self._names[address] = name

    def pass_now(self, address: str, request: RemotingCommand, timeout_ms: int) -> bool:
        """Forwards a request if its broker is connected and the write buffer is not full.

        Returns False if the request was not sent. The response goes to the client. Raises a RemotingError.
        """
        upstream = self.upstreams.get(address)
        if upstream is None or upstream.is_closed or upstream.is_full:
            return False
        copy = _copy(request)
        if request.is_oneway:
            upstream.send_oneway(copy)
            return True
        upstream.pass_request(copy, timeout_ms, _Passed(self, request.without_content()))
        return True

    async def ask(self, name: str, address: str, request: RemotingCommand, timeout_ms: int) -> RemotingCommand | None:
        """Connects to a broker, sends a request and returns the response, None if one-way. Raises a RemotingError."""
        await self.connect(name, address)
        if request.is_oneway:
            await self.upstreams[address].invoke_oneway(_copy(request), timeout_ms)
            return None
        response = await self.upstreams[address].invoke(_copy(request), timeout_ms)
        self._hold_up()
        return response

    async def close(self) -> None:
        """Closes the connections to brokers. The brokers then remove the client from its groups."""
        await self._remoting.close()

    def answer(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """Sends a response to the client."""
        self.connection.reply(request, answer)
        self._hold_up()

    def _hold_up(self) -> None:
        """Stops reading from brokers while the client reads nothing, so that responses stay in the brokers."""
        if self.connection.is_full and not self._is_held_up:
            self._is_held_up = True
            for upstream in self.upstreams.values():
                upstream.stop_reading()
            self.connection.when_writable(self._go_on)

    def _go_on(self) -> None:
        self._is_held_up = False
        for upstream in self.upstreams.values():
            upstream.go_on_reading()

    def _ask(self, upstream: Connection, request: RemotingCommand) -> Reply:
        """Forwards a broker's request to the client, and the client's response to the broker."""
        copy = _copy(request)
        if request.code == RequestCode.CHECK_TRANSACTION_STATE and not request.ext_fields.get("bname"):
            # The client copies the name into END_TRANSACTION, which `broker_of` reads.
            copy.ext_fields["bname"] = self._names.get(upstream.address, "")
        if request.is_oneway:
            self.connection.send_oneway(copy)
            return None
        future = self.connection.start_request(copy, ASKED_MS)
        future.add_done_callback(partial(_answer, upstream, request.without_content()))
        return None


class _Passed:
    """A pending request of the client. It forwards the broker's response to the client.

    The response is written to the client before more is read from the broker. Callbacks of a future would run one
    event-loop iteration later, and let the proxy read 16 MB for a client that does not read its responses.
    """

    __slots__ = ("_link", "_request")

    def __init__(self, link: Link, request: RemotingCommand) -> None:
        self._link = link
        self._request = request

    def done(self) -> bool:
        return False

    def set_result(self, result: RemotingCommand) -> None:
        self._link.answer(self._request, result)

    def set_exception(self, exception: Exception) -> None:
        self._link.answer(self._request, error_response(exception, self._request, self._link.connection.address))


def _copy(request: RemotingCommand) -> RemotingCommand:
    """Returns a copy to send on another connection, which sets its own request id. The signature stays valid."""
    return RemotingCommand(
        request.code,
        request.language,
        request.version,
        0,
        request.flag,
        request.remark,
        request.raw_ext,
        request.body,
        request.serialize_type,
    )


def _answer(to: Connection, request: RemotingCommand, future: asyncio.Future[RemotingCommand]) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is None:
        to.reply(request, future.result())
    elif isinstance(error, Exception):
        to.reply(request, error_response(error, request, to.address))
