"""RocketMQ client connections (`NettyRemotingClient`): one per address, opened on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gantrymq.background.shared_task import result_of
from gantrymq.errors import ClientClosed, ConnectFailed, RequestTimeout
from gantrymq.kernels import native
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.frame_reader import NewReceiveBuffer
from gantrymq.protocol.refusals import broker_error
from gantrymq.remoting.address import parse_address
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S, Connection, FirstLook, RequestHandler, RpcHook, close_all
from gantrymq.remoting.connection_limits import ConnectionLimits
from gantrymq.remoting.time_slices import TimeSlices
from gantrymq.remoting.tls_problems import tls_problem
from gantrymq.remoting.zero_copy import ZeroCopyBody
from gantrymq.system import network, tls

CONNECT_TIMEOUT_S = 3.0
#: If nothing has arrived for this time while responses are pending, a request timeout also closes the connection, in
#: seconds. Otherwise the kernel would retransmit for 15 minutes to a machine that is down. Java closes the connection
#: after every timeout (NettyRemotingClient.invokeSync, clientCloseSocketIfTimeout).
SILENCE_S = 3.0
#: A request with a shorter timeout never closes the connection: the peer may only be slow.
LEAST_TIMEOUT_MS = 1000
#: Tolerance for the difference between the clock and the loop's timers, as a factor.
_NEARLY = 0.95


class RemotingClient:
    """Sends requests to any number of servers and keeps one connection to each.

    Args:
        handlers: Handlers of requests from the servers, by request code. See `connection`.
        ssl_context: TLS settings. None connects without TLS.
        hooks: Called before each request and after each response.
        connect_timeout_s: Timeout to open a connection, in seconds.
        on_open: Called with HOST:PORT after a connection is opened.
        on_close: Called with HOST:PORT after a connection is lost.
        in_place: Receive large responses without a copy, if the native extension is installed. Useful for bulk reads.
        silence_s: See SILENCE_S.
        first_look: Handles responses before they are decoded. See `Connection`.
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
        first_look: FirstLook | None = None,
    ) -> None:
        # `or` would replace an empty mapping, which its owner may fill later.
        self._handlers: Mapping[int, RequestHandler] = handlers if handlers is not None else {}
        self._ssl_context = ssl_context
        self._hooks = hooks
        self._connect_timeout_s = connect_timeout_s
        self._silence_s = silence_s
        self._first_look = first_look
        self._on_open = on_open
        self._on_close = on_close
        self._new_buffer: NewReceiveBuffer | None = native.ReceiveBuffer if in_place and native is not None else None
        self._connection_limits = ConnectionLimits(TimeSlices())
        self._connections: dict[str, Connection] = {}
        self._connecting: dict[str, asyncio.Task[Connection]] = {}
        self._closed = False

    async def connection(self, address: str) -> Connection:
        """Returns the connection to HOST:PORT, opened if necessary. Raises ConnectFailed or ClientClosed."""
        connection = self._connections.get(address)
        if connection is not None and not connection.is_closed:
            return connection
        if self._closed:
            raise ClientClosed("this client is closed")
        # All callers for one address share one attempt. If one is cancelled, the attempt continues for the others.
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
        """Returns the response with any code. `timeout_ms` includes the connect time. Raises a RemotingError."""
        asked_ms = timeout_ms
        connection = self._connections.get(address)
        if connection is None or connection.is_closed:
            began = asyncio.get_running_loop().time()
            connection = await self._connection_within(address, timeout_ms)
            timeout_ms = max(1, timeout_ms - int((asyncio.get_running_loop().time() - began) * 1000))
        try:
            # The same code as in `connection.invoke`, inlined to save a coroutine.
            left_ms = timeout_ms if not connection.is_full else await connection.wait_until_writable(timeout_ms)
            future = connection.start_request(request, left_ms)
            try:
                response = await future
            except asyncio.CancelledError:
                connection.forget(request)
                raise
        except RequestTimeout as e:
            if timeout_ms < asked_ms:
                e.add_note(f"of {asked_ms} ms connecting took {asked_ms - timeout_ms}")
            self.timed_out(connection, timeout_ms)
            raise
        for hook in self._hooks:
            hook.after_response(address, request, response)
        return response

    def timed_out(self, connection: Connection, timeout_ms: int) -> None:
        """Closes the connection of a request that has timed out, if the server has sent nothing for long enough."""
        if timeout_ms >= LEAST_TIMEOUT_MS and connection.silent_s > _NEARLY * self._silence_s:
            connection.abort()

    def open_connection(self, address: str) -> Connection | None:
        """Returns the connection to HOST:PORT if it is open."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    def is_connected(self, address: str) -> bool:
        """Returns true if the connection to HOST:PORT is open."""
        return self.open_connection(address) is not None

    def silent(self, silence_s: float) -> list[str]:
        """Returns HOST:PORT of each server with pending responses that has sent nothing for `silence_s` seconds."""
        return [address for address, connection in self._connections.items() if connection.silent_s > silence_s]

    def abort(self, address: str) -> None:
        """Closes the connection to HOST:PORT at once. Its pending requests fail with ConnectionLost."""
        if (connection := self._connections.get(address)) is not None:
            connection.abort()

    def leave_silent(self, address: str, since: float) -> None:
        """Closes the connection to HOST:PORT if requests are pending and nothing has arrived after `since`.

        Its pending requests fail with ConnectionLost. `since` is a time of the event loop, in seconds.
        """
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
        """Sends `request` and returns the response. Raises BrokerError if it reports an error, or a RemotingError."""
        response = await self.invoke(address, request, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response, address)
        return response

    async def invoke_oneway(self, address: str, request: RemotingCommand) -> None:
        """Sends a request that has no response. Raises a RemotingError."""
        await (await self.connection(address)).invoke_oneway(request)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Closes all connections. Pending requests fail with ConnectionLost, and connection attempts with ClientClosed.

        Sending unsent data takes at most `timeout_s` seconds.
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
            # TimeoutError and tls.SSLError are subclasses of OSError.
            problem = tls_problem(e)
            reason = "; ".join(problem) if problem is not None else str(e) or self._reason(e)
            raise ConnectFailed(f"can't connect to {address}: {reason}", address) from e
        # Error messages then contain the host name instead of the IP address.
        connection.address = address
        return connection

    async def _connect_to_one_of(self, ips: Sequence[str], host: str, port: int) -> Connection:
        """Connects to the first reachable address. If none is reachable, raises the error of the last address."""
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
                return protocol.connection if isinstance(protocol, ZeroCopyBody) else protocol
        raise OSError(f"{host} has no address")

    def _new_protocol(self) -> Connection | ZeroCopyBody:
        connection = Connection(
            self._handlers,
            hooks=self._hooks,
            limits=self._connection_limits,
            new_buffer=self._new_buffer,
            first_look=self._first_look,
            on_close=self._disconnected,
        )
        return connection if self._new_buffer is None else ZeroCopyBody(connection)

    def _reason(self, error: Exception) -> str:
        """Returns a text for an error that has none."""
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
    """Returns the IP addresses of a host. Raises OSError.

    `create_connection` could also resolve the host, but in uvloop the later error of a cancelled lookup is never
    retrieved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=network.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
