"""Link: one client that speaks the remoting protocol, with connections of its own to brokers.

Brokers know a group's members, and whom to ask of a transaction, by their connections. With a connection to each broker
for each client they see clients as if these had come by themselves, and all that they ask arrives. Apache's proxy has
one for all clients, and keeps tables of members that proxies send one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.answers import error_response
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import Connection, Reply, RequestHandler
from gantrymq.system import tls

#: Unsent bytes with which a broker's connection is full: each client has one, and brokers may hang.
_MOST_UNSENT = 1024 * 1024
#: What a broker asks a client waits so long for an answer, ms.
ASKED_MS = 10_000
#: What brokers ask clients.
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
    """`connection` is the client's."""

    def __init__(self, connection: Connection, ssl_context: tls.SSLContext | None) -> None:
        self.connection = connection
        handlers: Mapping[int, RequestHandler] = dict.fromkeys(ASKED, self._ask)
        self._remoting = RemotingClient(handlers, ssl_context=ssl_context)
        self._open: dict[str, Connection] = {}
        #: The client doesn't take its answers, and brokers aren't read.
        self._is_held_up = False
        #: Of brokers' addresses, their names.
        self._names: dict[str, str] = {}
        #: The brokers of the topics that the client has asked for.
        self.brokers: dict[str, None] = {}
        #: Of the client's groups, the topics that they subscribe to.
        self.groups: dict[str, list[str]] = {}

    @property
    def names(self) -> list[str]:
        """Of the brokers that it is connected with."""
        return [self._names[address] for address, upstream in self._open.items() if not upstream.is_closed]

    async def connect(self, name: str, address: str) -> None:
        """Raises ConnectFailed or ClientClosed."""
        upstream = await self._remoting.connection(address)
        if self._open.get(address) is not upstream:
            upstream.limit_writes(_MOST_UNSENT)
            if self._is_held_up:
                upstream.stop_reading()
            self._open[address] = upstream
            self._names[address] = name

    def pass_now(self, address: str, request: RemotingCommand, timeout_ms: int) -> bool:
        """Passes a request on if that can be done at once: the broker is connected, and takes what is sent to it.

        Its answer goes to the client. Raises a RemotingError.
        """
        upstream = self._open.get(address)
        if upstream is None or upstream.is_closed or upstream.is_full:
            return False
        copy = _copy(request)
        if request.is_oneway:
            upstream.send_oneway(copy)
            return True
        upstream.pass_request(copy, timeout_ms, _Passed(self, request.without_content()))
        return True

    async def ask(self, name: str, address: str, request: RemotingCommand, timeout_ms: int) -> RemotingCommand | None:
        """A broker's answer; None to what wants none. Raises a RemotingError."""
        await self.connect(name, address)
        if request.is_oneway:
            await self._open[address].invoke_oneway(_copy(request), timeout_ms)
            return None
        response = await self._open[address].invoke(_copy(request), timeout_ms)
        self._hold_up()
        return response

    async def close(self) -> None:
        """The client is gone: brokers learn of it by the loss of its connections."""
        await self._remoting.close()

    def answer(self, request: RemotingCommand, answer: RemotingCommand) -> None:
        """To the client."""
        self.connection.reply(request, answer)
        self._hold_up()

    def _hold_up(self) -> None:
        """Of a client that doesn't take its answers brokers keep what follows, as if it had come to them."""
        if self.connection.is_full and not self._is_held_up:
            self._is_held_up = True
            for upstream in self._open.values():
                upstream.stop_reading()
            self.connection.when_writable(self._go_on)

    def _go_on(self) -> None:
        self._is_held_up = False
        for upstream in self._open.values():
            upstream.go_on_reading()

    def _ask(self, upstream: Connection, request: RemotingCommand) -> Reply:
        """What a broker asks."""
        copy = _copy(request)
        if request.code == RequestCode.CHECK_TRANSACTION_STATE and not request.ext_fields.get("bname"):
            # Its answer is to name the broker.
            copy.ext_fields["bname"] = self._names.get(upstream.address, "")
        if request.is_oneway:
            self.connection.send_oneway(copy)
            return None
        future = self.connection.start_request(copy, ASKED_MS)
        future.add_done_callback(partial(_answer, upstream, request.without_content()))
        return None


class _Passed:
    """A request that a broker is to answer.

    The client is sent its answer before more is read of the broker: with futures, whose callbacks come in the loop's
    next turn, 16 MB were read of one that were for a client which took nothing.
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
    """To be sent on another connection, which gives it a number of its own; signed as it was."""
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
