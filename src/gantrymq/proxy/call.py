"""Call: one rpc as its handler sees it, whatever carries it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gantrymq.proxy.v2 import service_pb2
from gantrymq.proxy.v2.definition_pb2 import Code

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

#: How long a client's call may take that didn't say so itself, ms.
DEFAULT_TIMEOUT_MS = 60_000

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_VERSION = "x-mq-client-version"
NAMESPACE = "x-mq-namespace"


class Call(Protocol):
    """One rpc."""

    @property
    def method(self) -> str:
        """Its bare name."""

    @property
    def peer(self) -> str:
        """The client's host:port."""

    @property
    def local_address(self) -> str:
        """By which it came, host:port."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """What came with it, by lower case names."""

    @property
    def client_id(self) -> str:
        """Who calls; never empty where a handler sees it."""

    @property
    def user(self) -> str:
        """The name of the user who signed it; empty without access control."""

    @property
    def connection(self) -> object:
        """By which it came: calls of one connection have the same."""

    @property
    def silent_s(self) -> float:
        """For how long nothing has come by its connection, s."""

    def remaining_ms(self) -> int:
        """How long the client still waits for the end of this call, at least 0; DEFAULT_TIMEOUT_MS if it didn't say."""

    @property
    def is_over(self) -> bool:
        """The client has given up, or is gone: nothing that is written reaches it."""

    def when_over(self, callback: Callable[[], None]) -> None:
        """Has `callback` called when the call ends, however it does; at once if it has."""


class ServerStream(Call, Protocol):
    """An rpc with any number of responses."""

    async def write(self, response: Message) -> None:
        """Sends one, after what was written before has gone as far as the client's window lets it.

        Raises CallOver when the client is gone.
        """

    def keep(self, size: int) -> None:
        """So many bytes are in memory for the client until this call is over; too many for all, and it is cut off."""

    def write_soon(self, response: Message) -> None:
        """Sends one without waiting; what doesn't fit is kept. Nothing happens when the client is gone."""


class Stream(ServerStream, Protocol):
    """An rpc with any number of requests, too."""

    def requests(self) -> AsyncIterator[Any]:
        """The client's messages until it sends no more."""


class EncodedResponse(NamedTuple):
    """A response that its handler has encoded itself, and the code of its status."""

    code: Code
    data: bytes


UnaryHandler = Callable[[Call, Any], Awaitable[Message | EncodedResponse]]
ServerStreamHandler = Callable[[ServerStream, Any], Awaitable[None]]
StreamHandler = Callable[[Stream], Awaitable[None]]
#: By the method's name, as the service in proto/ has them; which of the three follows from there.
Handlers = Mapping[str, UnaryHandler | ServerStreamHandler | StreamHandler]


class Method(NamedTuple):
    """A method of the service."""

    name: str
    request: type[Message]
    response: type[Message]
    client_streams: bool
    server_streams: bool


#: By path.
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
