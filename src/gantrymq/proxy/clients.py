"""The table of registered clients and their settings. The caller passes the time.

A client is identified by its id (x-mq-client-id), not by its connections. A client registers by sending its settings
(Telemetry). The proxy removes it after NotifyClientTermination, or after a time without heartbeats and settings. Only
the user who registered an id can use the id. Without access control, only the connection with the client's open stream
can use it.

Sources: `GrpcClientSettingsManager`, `GrpcChannelManager`, and `ConsumerManager` and `ProducerManager` of the proxy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gantrymq.limits import PROXY_SETTINGS_BYTES, PROXY_TOPICS_OF_SETTINGS
from gantrymq.proxy.call import ServerStream
from gantrymq.proxy.message_size import memory_of_built
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import ClientType, Code, Settings

#: Memory of a client in addition to its settings, bytes. A client stays registered for two minutes without a heartbeat.
CLIENT_BYTES = 1024
_FEW_TOPICS = 16
LITE_CONSUMERS = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
#: A connection that receives nothing for this time, in seconds, counts as lost. Clients send a heartbeat every 10 s.
LOST_S = 20.0
_FEW_BYTES = 32 * 1024


@dataclass(slots=True, eq=False)
class Client:
    """One registered client. `settings` are the settings that it sent. `heard` is the time of its last heartbeat, s."""

    client_id: str
    #: The user who registered the client; empty without access control.
    user: str
    settings: Settings
    peer: str
    language: str
    version: str
    heard: float
    #: Memory of the client and its settings, bytes.
    size: int
    #: The client's open Telemetry stream, if any.
    telemetry: ServerStream | None = None

    @property
    def is_consumer(self) -> bool:
        return self.settings.HasField("subscription")

    @property
    def client_type(self) -> ClientType:
        return self.settings.client_type

    @property
    def is_lite(self) -> bool:
        """Whether the client is a consumer of lite topics."""
        return self.client_type in LITE_CONSUMERS

    @property
    def group(self) -> str:
        """The group of a consumer; empty for a producer."""
        return self.settings.subscription.group.name

    @property
    def topics(self) -> list[str]:
        """The topics that a producer publishes to, or that a consumer subscribes to."""
        return _topics_of(self.settings)


def _check_owner(client: Client, stream: ServerStream, settings: Settings) -> None:
    """Raises ProxyError if a new stream uses the id of another client."""
    own = client.telemetry
    if stream.user != client.user:
        raise ProxyError(Code.FORBIDDEN, f"client id {client.client_id} belongs to another user")
    if settings.subscription.group.name != client.group:
        raise ProxyError(Code.FORBIDDEN, f"client id {client.client_id} belongs to a client of another group")
    if not client.user and own is not None and own.connection is not stream.connection and own.silent_s < LOST_S:
        raise ProxyError(Code.FORBIDDEN, f"client id {client.client_id} belongs to another connection")


def _topics_of(settings: Settings) -> list[str]:
    if settings.HasField("subscription"):
        return [entry.topic.name for entry in settings.subscription.subscriptions]
    return [topic.name for topic in settings.publishing.topics]


def client_memory(settings: Settings) -> int:
    """Returns the memory of a client with these settings, bytes."""
    return memory_of_built(settings) + CLIENT_BYTES


@dataclass
class Watcher:
    """Callbacks of a listener: `changed` for new clients and new settings, `gone` for removed clients."""

    changed: Callable[[Client], None] = field(default=lambda client: None)
    gone: Callable[[Client], None] = field(default=lambda client: None)


class Clients:
    """All clients of this proxy."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        #: Producers by topic, consumers by group, in the order of their registration.
        self._producers: dict[str, dict[Client, None]] = {}
        self._consumers: dict[str, dict[Client, None]] = {}
        self._watchers: list[Watcher] = []
        self._topics = 0
        self._settings_bytes = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def consumers(self, group: str) -> list[Client]:
        return list(self._consumers.get(group, ()))

    def producers(self, topic: str) -> list[Client]:
        return list(self._producers.get(topic, ()))

    @property
    def produced_topics(self) -> list[str]:
        """The topics of all producers."""
        return list(self._producers)

    def register(self, stream: ServerStream, settings: Settings, now: float) -> Client:
        """Registers a client by its settings. `stream` is its Telemetry stream from now on.

        Raises ProxyError if the settings of all clients exceed a limit, or if the id belongs to another client.
        """
        client = self._clients.get(stream.client_id)
        if client is not None and client.telemetry is not stream:
            _check_owner(client, stream, settings)
        size = client_memory(settings)
        self._check_limits(client, settings, size)
        if client is None:
            client = Client(
                stream.client_id,
                stream.user,
                settings,
                stream.peer,
                stream.metadata.get("x-mq-language", ""),
                stream.metadata.get("x-mq-client-version", ""),
                now,
                size,
            )
            self._clients[client.client_id] = client
        else:
            self._unlist(client)
            client.settings, client.peer, client.heard, client.size = settings, stream.peer, now, size
        client.telemetry = stream
        self._list(client)
        for watcher in self._watchers:
            watcher.changed(client)
        return client

    def heard(self, client_id: str, now: float) -> Client | None:
        """Records a heartbeat. Returns None if the client is not registered."""
        client = self._clients.get(client_id)
        if client is not None:
            client.heard = now
        return client

    def stream_over(self, stream: ServerStream) -> None:
        """Removes an ended Telemetry stream. The client stays registered and can open another stream."""
        client = self._clients.get(stream.client_id)
        if client is not None and client.telemetry is stream:
            client.telemetry = None

    def remove(self, client_id: str) -> Client | None:
        """Removes and returns a client. Returns None if it is not registered."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._unlist(client)
            for watcher in self._watchers:
                watcher.gone(client)
        return client

    def expire(self, since: float) -> list[Client]:
        """Removes and returns the clients whose last heartbeat is older than `since`."""
        silent = [client for client in self._clients.values() if client.heard < since]
        for client in silent:
            self.remove(client.client_id)
        return silent

    def _check_limits(self, client: Client | None, settings: Settings, size: int) -> None:
        """Raises ProxyError if the settings exceed the limits of all clients together."""
        topics = _topics_of(settings)
        times = 2 if size <= _FEW_BYTES and len(topics) <= _FEW_TOPICS else 1
        if client is not None:
            size -= client.size
        if size > 0 and (
            self._settings_bytes + size > times * PROXY_SETTINGS_BYTES
            or self._topics + len(topics) > times * PROXY_TOPICS_OF_SETTINGS
        ):
            raise ProxyError(Code.TOO_MANY_REQUESTS, "this proxy has too many clients, or they too many topics")

    def _list(self, client: Client) -> None:
        self._settings_bytes += client.size
        self._topics += len(client.topics)
        for table, name in self._places(client):
            table.setdefault(name, {})[client] = None

    def _unlist(self, client: Client) -> None:
        self._settings_bytes -= client.size
        self._topics -= len(client.topics)
        for table, name in self._places(client):
            members = table.get(name)
            if members is not None:
                members.pop(client, None)
                if not members:
                    del table[name]

    def _places(self, client: Client) -> list[tuple[dict[str, dict[Client, None]], str]]:
        if client.is_consumer:
            return [(self._consumers, client.group)]
        return [(self._producers, topic) for topic in dict.fromkeys(client.topics)]
