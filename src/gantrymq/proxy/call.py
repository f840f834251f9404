"""The interface between an rpc's handler and the transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gantrymq.proxy.v2 import service_pb2
from gantrymq.proxy.v2.definition_pb2 import Code
from gantrymq.system.clock import monotonic

T = TypeVar("T")

#: The timeout of a call if the client sent no timeout, ms.
DEFAULT_TIMEOUT_MS = 60_000
#: Time slice of a handler, s. At its end, other calls continue.
SLICE_S = 0.002

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_VERSION = "x-mq-client-version"


class Call(Protocol):
    """One rpc, as its handler sees it."""

    @property
    def method(self) -> str:
        """The name of the method without its service."""

    @property
    def peer(self) -> str:
        """The client's host:port."""

    @property
    def local_address(self) -> str:
        """The proxy's host:port of the connection."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the call, by lower-case names."""

    @property
    def client_id(self) -> str:
        """The id of the client. It is never empty in a handler."""

    @property
    def user(self) -> str:
        """The name of the user who signed the call; empty without access control."""

    @property
    def connection(self) -> object:
        """An object that identifies the connection: all calls of a connection have the same object."""

    @property
    def silent_s(self) -> float:
        """The time since bytes arrived on the connection, s."""

    def remaining_ms(self) -> int:
        """The time until the client's timeout, at least 0 ms; DEFAULT_TIMEOUT_MS if the client sent no timeout."""

    @property
    def is_over(self) -> bool:
        """True if the client has cancelled the call or disconnected. Responses are then discarded."""

    def when_over(self, callback: Callable[[], None]) -> None:
        """Calls `callback` when the call ends for any reason, or at once if the call has ended."""

    async def next_slice(self) -> None:
        """Waits for the next time slice. Connections get their slices in turn."""


class ServerStream(Call, Protocol):
    """An rpc with any number of responses."""

    async def write(self, response: Message) -> None:
        """Sends a response, then waits until the client's window accepts it.

        If the client cancels the call or disconnects, the waiting task is cancelled.
        """

    def keep(self, size: int) -> None:
        """Counts `size` bytes as memory for the client until the call ends.

        If the memory for all clients exceeds its limit, the server closes the connection that has read nothing for the
        longest time.
        """

    def write_soon(self, response: Message) -> None:
        """Sends a response without waiting; buffers what the window does not accept. No effect after the end."""


class Stream(ServerStream, Protocol):
    """An rpc with any number of requests and responses."""

    def requests(self) -> AsyncIterator[Any]:
        """The client's requests until the client ends the stream."""


class Slices(AsyncIterator[T]):
    """Iterates over items. When SLICE_S has passed, other calls run before the next item.

    This is a class: after an exception in the loop, an async generator would need a task to close it.
    """

    def __init__(self, call: Call, items: Iterable[T]) -> None:
        self._call = call
        self._items = iter(items)
        self._slice_end = monotonic() + SLICE_S

    async def __anext__(self) -> T:
        if monotonic() > self._slice_end:
            await self._call.next_slice()
            self._slice_end = monotonic() + SLICE_S
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None


class EncodedResponse(NamedTuple):
    """A response that the handler has encoded, and the code of its status."""

    code: Code
    data: bytes


UnaryHandler = Callable[[Call, Any], Awaitable[Message | EncodedResponse]]
ServerStreamHandler = Callable[[ServerStream, Any], Awaitable[None]]
StreamHandler = Callable[[Stream], Awaitable[None]]
#: Handlers by the name of the method in proto/. The method defines the kind of handler.
Handlers = Mapping[str, UnaryHandler | ServerStreamHandler | StreamHandler]


class Method(NamedTuple):
    """A method of the gRPC service."""

    name: str
    request: type[Message]
    response: type[Message]
    client_streams: bool
    server_streams: bool


#: All methods, by path.
METHODS: dict[str, Method] = {
    f"/{service.full_name}/{method.name}": Method(
        method.name,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
    for service in service_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
