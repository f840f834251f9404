"""Clients: who is connected, with what settings; a plain table that is told the time.

A client is its id (x-mq-client-id), whatever connections it has. It comes by its settings (Telemetry) and goes by
NotifyClientTermination or by its silence: heartbeats and every settings count. Sources: `GrpcClientSettingsManager`,
`GrpcChannelManager`, ConsumerManager and ProducerManager, which the proxy has apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gantrymq.proxy.call import ServerStream
from gantrymq.proxy.v2.definition_pb2 import ClientType, Settings


@dataclass(slots=True, eq=False)
class Client:
    """One client. `settings` are what it told, without what the proxy adds for it; `heard` is when it was, s."""

    client_id: str
    settings: Settings
    peer: str
    language: str
    version: str
    heard: float
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
        if self.is_consumer:
            return [entry.topic.name for entry in self.settings.subscription.subscriptions]
        return [topic.name for topic in self.settings.publishing.topics]


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

    def tell(self, stream: ServerStream, settings: Settings, now: float) -> Client:
        """A client told its settings, on the stream on which it listens from now on."""
        client = self._clients.get(stream.client_id)
        if client is None:
            client = Client(
                stream.client_id,
                settings,
                stream.peer,
                stream.metadata.get("x-mq-language", ""),
                stream.metadata.get("x-mq-client-version", ""),
                now,
            )
            self._clients[client.client_id] = client
        else:
            self._unlist(client)
            client.settings, client.peer, client.heard = settings, stream.peer, now
        client.telemetry = stream
        for table, name in self._places(client):
            table.setdefault(name, {})[client] = None
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

    def _unlist(self, client: Client) -> None:
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
