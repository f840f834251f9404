"""Telemetry: the stream on which a client tells its settings and answers what it is asked (`ClientActivity`)."""

from __future__ import annotations

from gantrymq.proxy.call import Handlers, Stream
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metadata import Metadata
from gantrymq.proxy.questions import Questions
from gantrymq.proxy.settings import check_properties, settings_for
from gantrymq.proxy.statuses import GrpcCode, GrpcError, ProxyError, status
from gantrymq.proxy.subscriptions import subscription_of
from gantrymq.proxy.v2.definition_pb2 import LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER, Code, Settings
from gantrymq.proxy.v2.service_pb2 import TelemetryCommand
from gantrymq.proxy.validation import check_group, check_topic
from gantrymq.system.clock import monotonic

#: What is kept of a client, bytes: thousands of topics.
MAX_SETTINGS_SIZE = 1 << 20
MAX_TOPICS = 10_000


class Telemetry:
    """Telemetry for all clients; `questions` get the answers."""

    def __init__(self, config: ProxyConfig, metadata: Metadata, clients: Clients, questions: Questions) -> None:
        self._config = config
        self._metadata = metadata
        self._clients = clients
        self._questions = questions

    @property
    def handlers(self) -> Handlers:
        return {"Telemetry": self.telemetry}

    async def telemetry(self, call: Stream) -> None:
        """Ends with gRPC's status: a stream has no response of its own to put one in. Raises GrpcError."""
        try:
            async for command in call.requests():
                await self._take(call, command)
        except ProxyError as e:
            if e.code == Code.UNAUTHORIZED:
                # That is told as in other calls, by a last response.
                raise
            is_clients = Code.BAD_REQUEST <= e.code < Code.INTERNAL_ERROR
            raise GrpcError(
                GrpcCode.INVALID_ARGUMENT if is_clients else GrpcCode.INTERNAL,
                f"process client telemetryCommand failed. {e}",
            ) from e
        finally:
            self._clients.stream_over(call)

    async def _take(self, call: Stream, command: TelemetryCommand) -> None:
        match command.WhichOneof("command"):
            case "settings":
                await call.write(await self._tell(call, command.settings))
            case "thread_stack_trace":
                self._questions.answer(call, command.thread_stack_trace.nonce, command)
            case "verify_message_result":
                self._questions.answer(call, command.verify_message_result.nonce, command)

    async def _tell(self, call: Stream, settings: Settings) -> TelemetryCommand:
        """Keeps a client's settings; those that it is to have instead."""
        check_settings(settings)
        client = self._clients.tell(call, settings, monotonic())
        group = await self._metadata.group(client.group) if client.is_consumer else None
        return TelemetryCommand(status=status(Code.OK), settings=settings_for(settings, group, self._config))


def check_settings(settings: Settings) -> None:
    """Raises ProxyError or GrpcError for settings that no client can have."""
    if settings.ByteSize() > MAX_SETTINGS_SIZE:
        raise ProxyError(
            Code.BAD_REQUEST, f"settings of {settings.ByteSize()} bytes: at most {MAX_SETTINGS_SIZE} are taken"
        )
    if settings.client_type in (LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER):
        raise GrpcError(GrpcCode.UNIMPLEMENTED, "lite consumers are not supported: these brokers have no lite topics")
    topics = max(len(settings.publishing.topics), len(settings.subscription.subscriptions))
    if topics > MAX_TOPICS:
        raise ProxyError(Code.BAD_REQUEST, f"{topics} topics in one client's settings: at most {MAX_TOPICS} are taken")
    match settings.WhichOneof("pub_sub"):
        case "publishing":
            for topic in settings.publishing.topics:
                check_topic(topic.name)
        case "subscription":
            check_group(settings.subscription.group.name)
            for entry in settings.subscription.subscriptions:
                check_topic(entry.topic.name)
                subscription_of(entry.topic.name, entry.expression)
        case _:
            raise GrpcError(GrpcCode.INVALID_ARGUMENT, "there is no publishing or subscription data in settings")
    check_properties(settings.client_properties)
