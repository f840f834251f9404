"""The rpc Telemetry: a stream on which a client sends its settings and responds to commands (`ClientActivity`)."""

from __future__ import annotations

from gantrymq.proxy.call import Call, Handlers, Slices, Stream
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.settings import check_properties, settings_for
from gantrymq.proxy.statuses import GrpcCode, GrpcError, ProxyError, status
from gantrymq.proxy.subscriptions import subscription_of
from gantrymq.proxy.telemetry_requests import TelemetryRequests
from gantrymq.proxy.v2.definition_pb2 import Code, Settings
from gantrymq.proxy.v2.service_pb2 import TelemetryCommand
from gantrymq.proxy.validation import check_group, check_topic
from gantrymq.system.clock import monotonic

#: Largest size of the settings of one client, bytes. It allows thousands of topics.
MAX_SETTINGS_SIZE = 1 << 20
MAX_TOPICS = 10_000


class Telemetry:
    """Serves Telemetry for all clients. `requests` receives the responses to commands."""

    def __init__(self, config: ProxyConfig, metadata: Metadata, clients: Clients, requests: TelemetryRequests) -> None:
        self._config = config
        self._metadata = metadata
        self._clients = clients
        self._requests = requests

    @property
    def handlers(self) -> Handlers:
        return {"Telemetry": self.telemetry}

    async def telemetry(self, call: Stream) -> None:
        """Processes the client's commands until the stream ends.

        Raises GrpcError for an invalid command, because a stream has no final response that could contain a status.
        """
        try:
            async for command in call.requests():
                await self._take(call, command)
        except ProxyError as e:
            if e.code == Code.UNAUTHORIZED:
                # As with other rpcs, the client receives a last response with this status.
                raise
            is_clients = Code.BAD_REQUEST <= e.code < Code.INTERNAL_ERROR
            raise GrpcError(
                GrpcCode.INVALID_ARGUMENT if is_clients else GrpcCode.INTERNAL,
                f"process client telemetryCommand failed. {e}",
            ) from e
        finally:
            self._clients.stream_over(call)

    async def _take(self, call: Stream, command: TelemetryCommand) -> None:
        """Processes one command: settings, or the response to a command of the proxy."""
        match command.WhichOneof("command"):
            case "settings":
                await call.write(await self._register(call, command.settings))
            case "thread_stack_trace":
                self._requests.answer(call, command.thread_stack_trace.nonce, command)
            case "verify_message_result":
                self._requests.answer(call, command.verify_message_result.nonce, command)

    async def _register(self, call: Stream, settings: Settings) -> TelemetryCommand:
        """Stores the settings of a client, and returns those that the client must use."""
        await check_settings(call, settings)
        client = self._clients.register(call, settings, monotonic())
        group = await self._metadata.group(client.group) if client.is_consumer else None
        return TelemetryCommand(status=status(Code.OK), settings=settings_for(settings, group, self._config))


async def check_settings(call: Call, settings: Settings) -> None:
    """Raises ProxyError or GrpcError for invalid settings."""
    if settings.ByteSize() > MAX_SETTINGS_SIZE:
        raise ProxyError(
            Code.BAD_REQUEST, f"settings of {settings.ByteSize()} bytes: at most {MAX_SETTINGS_SIZE} are taken"
        )
    topics = max(len(settings.publishing.topics), len(settings.subscription.subscriptions))
    if topics > MAX_TOPICS:
        raise ProxyError(Code.BAD_REQUEST, f"{topics} topics in one client's settings: at most {MAX_TOPICS} are taken")
    match settings.WhichOneof("pub_sub"):
        case "publishing":
            async for topic in Slices(call, settings.publishing.topics):
                check_topic(topic.name)
        case "subscription":
            check_group(settings.subscription.group.name)
            async for entry in Slices(call, settings.subscription.subscriptions):
                check_topic(entry.topic.name)
                subscription_of(entry.topic.name, entry.expression)
        case _:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "there is no publishing or subscription data in settings")
    check_properties(settings.client_properties)
