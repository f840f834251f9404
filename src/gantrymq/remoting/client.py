"""RemotingClient: one connection per address, made when first needed and again after it was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gantrymq.background.shared import result_of
from gantrymq.errors import ClientClosed, ConnectFailed, RequestTimeout
from gantrymq.kernels import native
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import MakeRoom
from gantrymq.protocol.refusals import broker_error
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S, Connection, RequestHandler, RpcHook, close_all
from gantrymq.remoting.in_place import InPlace
from gantrymq.remoting.tls_problems import tls_problem
from gantrymq.remoting.turns import Turns
from gantrymq.system import network, tls

CONNECT_TIMEOUT_S = 3.0
#: When a request times out, its connection is closed if nothing has arrived for so long while the server owed
#: responses, s. Else the kernel would retransmit for a quarter of an hour to a machine that is gone. Java closes it
#: after any timeout (NettyRemotingClient.invokeSync, clientCloseSocketIfTimeout).
SILENCE_S = 3.0
#: A request with a shorter timeout closes no connection: a slow response is no sign of a dead peer.
LEAST_TIMEOUT_MS = 1000
#: The clock and the timers differ by less than this share of the time.
_NEARLY = 0.95


class RemotingClient:
    """Requests to any number of servers; `handlers` answer the requests that servers make (see `connection`).

    `on_open` is called with host:port when a connection was made, `on_close` when one was lost. `in_place`: large
    answers are received where they stay, where native code is there; for those who read megabytes at a time.
    `silence_s`: see SILENCE_S.
    """

    def __init__(
        self,
        handlers: Mapping[int, RequestHandler] | None = None,
        *,
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        on_open: Callable[[str], None] | None = None,
        on_close: Callable[[str], None] | None = None,
        in_place: bool = False,
        silence_s: float = SILENCE_S,
    ) -> None:
        # Not `or`: its owner may fill it later.
        self._handlers: Mapping[int, RequestHandler] = handlers if handlers is not None else {}
        self._ssl_context = ssl_context
        self._hooks = hooks
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._on_open = on_open
        self._on_close = on_close
        self._make_room: MakeRoom | None = native.Room if in_place and native is not None else None
        self._turns = Turns()
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    async def connection(self, address: str) -> Connection:
        """The connection with host:port, made if there is none. Raises ConnectFailed or ClientClosed."""
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closed:
            return connection
        if self._closed:
            raise ClientClosed("this client is closed")
        # All who wait for one address share one attempt, which a caller that gives up doesn't end for the others.
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connected(address, done))
        try:
            return await result_of(task)
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise ClientClosed("this client was closed while it connected") from None
            raise

    async def invoke(self, address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """The response of host:port, whatever its code; `timeout_ms` is for connecting, too. Raises a RemotingError."""
        asked_ms = timeout_ms
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            began = asyncio.get_running_loop().time()
            connection = await self._connection_within(address, timeout_ms)
            timeout_ms = max(1, timeout_ms - int((asyncio.get_running_loop().time() - began) * 1000))
        try:
            # As `connection.invoke`, in one coroutine less.
            left_ms = timeout_ms if not connection.is_full else await connection.room_to_write(timeout_ms)
            future = connection.start_request(request, left_ms)
            try:
                response = await future
            except asyncio.CancelledError:
                connection.forget(request)
                raise
        except RequestTimeout as e:
            if timeout_ms < asked_ms:
                e.add_note(f"of {asked_ms} ms connecting took {asked_ms - timeout_ms}")
            if timeout_ms >= LEAST_TIMEOUT_MS and connection.silent_s > _NEARLY * self._silence_s:
                connection.abort()
            raise
        for hook in self._hooks:
            hook.after_response(address, request, response)
        return response

    def silent(self, silence_s: float) -> list[str]:
        """host:port of the servers that owe responses and have sent nothing for so long."""
        return [address for address, connection in self._connections.items() if connection.silent_s > silence_s]

    def abort(self, address: str) -> None:
        """Closes the connection with host:port. Requests that wait there end with ConnectionLost."""
        if (connection := self._connections.get(address)) is not None:
            connection.abort()

    def leave_silent(self, address: str, since: float) -> None:
        """Ends what waits for host:port with ConnectionLost if nothing came from there since then, loop time."""
        connection = self._connections.get(address)
        if connection is not None and connection.awaits_answers and connection.last_read <= since:
            connection.abort()

    async def _connection_within(self, address: str, timeout_ms: int) -> Connection:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.connection(address)
        except TimeoutError:
            raise ConnectFailed(f"can't connect to {address} in {timeout_ms} ms", address) from None

    async def call(self, address: str, request: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """The response of host:port if it is SUCCESS. Raises BrokerError otherwise, or a RemotingError."""
        response = await self.invoke(address, request, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response, address)
        return response

    async def invoke_oneway(self, address: str, request: RemotingCommand) -> None:
        """Sends without an answer. Raises a RemotingError."""
        await (await self.connection(address)).invoke_oneway(request)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Closes every connection. Requests under way end with ConnectionLost, connects with ClientClosed.

        What is still to be sent has `timeout_s`.
        """
        self._closed = True
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        await close_all(list(self._connections.values()), timeout_s)

    async def _connect(self, address: str) -> Connection:
        try:
            host, port = parse_address(address)
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._connect_to_one_of(await addresses_of(host, port), host, port)
        except (OSError, ValueError) as e:
            # TimeoutError and tls.SSLError are OSErrors.
            problem = tls_problem(e)
            reason = "; ".join(problem) if problem is not None else str(e) or self._reason(e)
            raise ConnectFailed(f"can't connect to {address}: {reason}", address) from e
        # Named by what was asked for: a host name stays a host name in errors.
        connection.address = address
        return connection

    async def _connect_to_one_of(self, ips: Sequence[str], host: str, port: int) -> Connection:
        """Raises what the last of them raises."""
        loop = asyncio.get_running_loop()
        for n, ip in enumerate(ips, 1):
            try:
                _, protocol = await loop.create_connection(
                    self._new_protocol,
                    ip,
                    port,
                    ssl=self._ssl_context,
                    server_hostname=host if self._ssl_context is not None else None,
                )
            except OSError as e:
                if n == len(ips) or isinstance(e, tls.SSLError):
                    raise
            else:
                return protocol.connection if isinstance(protocol, InPlace) else protocol
        raise OSError(f"{host} has no address")

    def _new_protocol(self) -> Connection | InPlace:
        connection = Connection(
            self._handlers,
            hooks=self._hooks,
            turns=self._turns,
            make_room=self._make_room,
            on_close=self._disconnected,
        )
        return connection if self._make_room is None else InPlace(connection)

    def _reason(self, error: Exception) -> str:
        """Of an error that has no words for it."""
        if isinstance(error, TimeoutError):
            return f"no answer in {self._connect_timeout_s} s"
        where = " in the TLS handshake: is it a server with TLS?" if self._ssl_context is not None else ""
        return f"the connection was closed ({type(error).__name__}){where}"

    def _connected(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._connecting.pop(address, None)
        if task.cancelled() or task.exception() is not None:
            return
        connection = task.result()
        if self._closed:
            connection.abort()
        elif not connection.is_closed:
            self._connections[address] = connection
            if self._on_open is not None:
                self._on_open(address)

    def _disconnected(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if self._on_close is not None and not self._closed:
                self._on_close(connection.address)


async def addresses_of(host: str, port: int) -> list[str]:
    """The IP addresses of a host. Raises OSError.

    Looked up here, not by create_connection: uvloop's leaves behind the error of a look-up that was given up meanwhile.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=network.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
