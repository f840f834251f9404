"""Clients: who is connected, with what settings; a plain table that is told the time.

A client is its id (x-mq-client-id), whatever connections it has. It comes by its settings (Telemetry) and goes by
NotifyClientTermination or by its silence: heartbeats and every settings count. Its id belongs to the user who
registered it; without access control, to the connection of its stream as long as that is alive.

Sources: `GrpcClientSettingsManager`, `GrpcChannelManager`, ConsumerManager and ProducerManager, which the proxy has
apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gantrymq.proxy.call import ServerStream
from gantrymq.proxy.message_size import memory_of_built
from gantrymq.proxy.statuses import ProxyError
from gantrymq.proxy.v2.definition_pb2 import ClientType, Code, Settings

#: Limits of all clients together: the topics in their settings, which heartbeats go through, and the memory that the
#: settings take. Clients with few topics and small settings are accepted up to twice these limits.
MAX_TOPICS = 100_000
MAX_SETTINGS_BYTES = 64 * 1024 * 1024
#: What a client counts for beside its settings: it stays for two minutes, whether it does anything or not.
CLIENT_BYTES = 1024
_FEW_TOPICS = 16
#: A connection that was silent for so long can be lost, s: clients send a heartbeat every 10 s.
LOST_S = 20.0
_FEW_BYTES = 32 * 1024


@dataclass(slots=True, eq=False)
class Client:
    """One client. `settings` are what it told, without what the proxy adds for it; `heard` is when it was, s."""

    client_id: str
    #: Who registered it; empty without access control.
    user: str
    settings: Settings
    peer: str
    language: str
    version: str
    heard: float
    #: Of its settings and itself in memory, bytes.
    size: int
    #: The one it listens to, if any.
    telemetry: ServerStream | None = None

    @property
    def is_consumer(self) -> bool:
        return self.settings.HasField("subscription")

    @property
    def client_type(self) -> ClientType:
        return self.settings.client_type

    @property
    def group(self) -> str:
        """Of a consumer; empty for a producer."""
        return self.settings.subscription.group.name

    @property
    def topics(self) -> list[str]:
        """That a producer sends to, or a consumer subscribes to."""
        return _topics_of(self.settings)


def _check_owner(client: Client, stream: ServerStream, settings: Settings) -> None:
    """Raises ProxyError if a stream that comes beside, or after, a client's own is not the same client's."""
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
    """The bytes of memory that a client with these settings takes."""
    return memory_of_built(settings) + CLIENT_BYTES


@dataclass
class Watcher:
    """Told of clients: those that came or have other settings (`changed`), and those that are gone."""

    changed: Callable[[Client], None] = field(default=lambda client: None)
    gone: Callable[[Client], None] = field(default=lambda client: None)


class Clients:
    """All clients of this proxy."""

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        #: Producers by topic, consumers by group, in the order in which they came.
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
        """That producers send to."""
        return list(self._producers)

    def tell(self, stream: ServerStream, settings: Settings, now: float) -> Client:
        """A client told its settings, on the stream on which it listens from now on.

        Raises ProxyError when clients have told too much already, or the id belongs to another client.
        """
        client = self._clients.get(stream.client_id)
        if client is not None and client.telemetry is not stream:
            _check_owner(client, stream, settings)
        size = client_memory(settings)
        self._make_room(client, settings, size)
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
        """It is there; None when it never told its settings, or was taken for gone."""
        client = self._clients.get(client_id)
        if client is not None:
            client.heard = now
        return client

    def stream_over(self, stream: ServerStream) -> None:
        """The client doesn't listen on that stream any more; it may come back on another."""
        client = self._clients.get(stream.client_id)
        if client is not None and client.telemetry is stream:
            client.telemetry = None

    def remove(self, client_id: str) -> Client | None:
        """It is gone; None when it wasn't there."""
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._unlist(client)
            for watcher in self._watchers:
                watcher.gone(client)
        return client

    def expire(self, since: float) -> list[Client]:
        """Removes those that were not heard of since then."""
        silent = [client for client in self._clients.values() if client.heard < since]
        for client in silent:
            self.remove(client.client_id)
        return silent

    def _make_room(self, client: Client | None, settings: Settings, size: int) -> None:
        topics = _topics_of(settings)
        times = 2 if size <= _FEW_BYTES and len(topics) <= _FEW_TOPICS else 1
        if client is not None:
            size -= client.size
        if size > 0 and (
            self._settings_bytes + size > times * MAX_SETTINGS_BYTES or self._topics + len(topics) > times * MAX_TOPICS
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
