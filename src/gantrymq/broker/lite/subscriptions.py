"""LiteSubscriptions: the lite topics that each client reads (`LiteSubscriptionRegistryImpl`).

A client repeats its subscriptions from time to time. If it does not, they expire. A closed connection changes nothing,
because a client continues on another one, and a proxy has one connection for many clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from gantrymq.broker.context import BrokerContext
from gantrymq.errors import RequestRefused
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.lite import ClientGroup
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from gantrymq.protocol.lite_topic import lite_topic_of
from gantrymq.remoting.connection import Connection
from gantrymq.store.consume_queue import ConsumeQueue
from gantrymq.system.clock import monotonic, now_ms

log = peer_log(__name__)


@dataclass(slots=True, eq=False)
class LiteClient:
    """A client and its lite topics.

    Attributes:
        connection: The connection of its last request.
        queues: The light queues of its lite topics, by name.
        ready: Those that may have messages for the client, in the order of their arrival.
        renewed_at: Monotonic time of the last change or repetition, in seconds.
        accessed_at: Monotonic time of the last pop, in seconds.
        accessed_ms: The same as a time since the epoch, in ms. -1 before the first pop.
        consumed_ms: Time of the last pop that looked into a lite topic, in ms since the epoch. 0 before the first one.
    """

    client_id: str
    group: str
    topic: str
    connection: Connection
    queues: dict[str, ConsumeQueue] = field(default_factory=dict)
    ready: dict[str, None] = field(default_factory=dict)
    renewed_at: float = field(default_factory=monotonic)
    accessed_at: float = field(default_factory=monotonic)
    accessed_ms: int = -1
    consumed_ms: int = 0

    def accessed(self) -> None:
        """Records a pop."""
        self.accessed_at = monotonic()
        self.accessed_ms = now_ms()


class LiteSubscriptions:
    """The subscriptions of all clients of one broker.

    `watch(queue, is_watched)` is called when a light queue gets its first subscriber, or has lost its last one.
    """

    def __init__(self, context: BrokerContext, *, watch: Callable[[ConsumeQueue, bool], None]) -> None:
        self._config = context.config
        self._access = context.access
        self._watch = watch
        self._clients: dict[str, LiteClient] = {}
        #: The subscribers of a light queue.
        self._by_queue: dict[str, dict[LiteClient, None]] = {}
        #: Number of subscriptions of all clients.
        self.count = 0

    def __iter__(self) -> Iterator[LiteClient]:
        """Yields all clients."""
        return iter(list(self._clients.values()))

    def find(self, client_id: str) -> LiteClient | None:
        """Returns a client with subscriptions, or None."""
        return self._clients.get(client_id)

    def client(self, client_id: str, group: str, topic: str, connection: Connection) -> LiteClient:
        """Returns a client, which is created if it is unknown. A client of another group or topic is replaced.

        Raises RequestRefused if another user has a client with this id.
        """
        client = self._clients.get(client_id)
        if client is not None:
            if client.connection is not connection and not self._access.is_same_user(client.connection, connection):
                raise RequestRefused(ResponseCode.NO_PERMISSION, f"another user has a client {client_id[:200]}")
            if (client.group, client.topic) == (group, topic):
                client.connection = connection
                client.renewed_at = monotonic()
                return client
            self.forget(client)
        client = self._clients[client_id] = LiteClient(client_id, group, topic, connection)
        return client

    def add(self, client: LiteClient, queue: ConsumeQueue, quota: int | None) -> None:
        """Adds a subscription. Raises RequestRefused if the client has `quota` of them, or the broker too many."""
        if queue.topic in client.queues:
            return
        most = self._config.max_lite_subscription_count
        if self.count >= most:
            raise _quota(f"lite subscription quota exceeded {most}: maxLiteSubscriptionCount")
        if quota is not None and len(client.queues) >= quota:
            raise _quota(f"client {client.client_id[:200]} has {quota} lite topics, lite.sub.client.quota of its group")
        client.queues[queue.topic] = queue
        subscribers = self._by_queue.get(queue.topic)
        if subscribers is None:
            subscribers = self._by_queue[queue.topic] = {}
            self._watch(queue, True)
        subscribers[client] = None
        self.count += 1

    def remove(self, client: LiteClient, names: Iterable[str]) -> list[str]:
        """Removes subscriptions by the names of their light queues. Returns those that existed."""
        removed = []
        for name in names:
            queue = client.queues.pop(name, None)
            client.ready.pop(name, None)
            if queue is None:
                continue
            removed.append(name)
            self.count -= 1
            subscribers = self._by_queue[name]
            del subscribers[client]
            if not subscribers:
                del self._by_queue[name]
                self._watch(queue, False)
        return removed

    def take_over(self, name: str, group: str, by: LiteClient) -> list[LiteClient]:
        """Removes the subscriptions of all other clients of a group to a light queue, and notifies these clients.

        Returns the clients.
        """
        others = [client for client in self.subscribers(name, group) if client is not by]
        for client in others:
            self.remove(client, (name,))
            self._notify(client, name)
        return others

    def forget(self, client: LiteClient) -> None:
        """Removes a client with all its subscriptions."""
        self.remove(client, list(client.queues))
        self._clients.pop(client.client_id, None)

    def forget_queue(self, name: str) -> None:
        """Removes all subscriptions to a light queue, which was deleted."""
        for client in list(self._by_queue.get(name, ())):
            self.remove(client, (name,))

    def forget_all(self) -> None:
        """Removes all clients."""
        for client in self:
            self.forget(client)

    def expired(self) -> list[LiteClient]:
        """Returns the clients that have not repeated their subscriptions in time."""
        before = monotonic() - self._config.lite_subscription_check_timeout_mills / 1000
        return [client for client in self._clients.values() if client.renewed_at < before]

    def subscribers(self, name: str, group: str | None = None) -> list[LiteClient]:
        """Returns the subscribers of a light queue; with `group`, those of this group."""
        return [client for client in self._by_queue.get(name, ()) if group is None or client.group == group]

    def names(self, name: str) -> list[ClientGroup]:
        """Returns the subscribers of a light queue as for the response to an administrator."""
        return [ClientGroup(client.client_id, client.group) for client in self._by_queue.get(name, ())]

    def groups(self, name: str) -> Collection[str]:
        """Returns the groups with subscribers of a light queue, each once."""
        return dict.fromkeys(client.group for client in self._by_queue.get(name, ()))

    def of_group(self, group: str) -> list[LiteClient]:
        """Returns the clients of a group."""
        return [client for client in self._clients.values() if client.group == group]

    def _notify(self, client: LiteClient, name: str) -> None:
        """Tells a client that it has lost a subscription."""
        found = lite_topic_of(name)
        if found is None or client.connection.is_closed:
            return
        header = NotifyUnsubscribeLiteRequestHeader(
            lite_topic=found[1], consumer_group=client.group, client_id=client.client_id
        )
        client.connection.send_oneway(RemotingCommand.request(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, header))
        log.info("client %s of group %s has lost the lite topic %s", client.client_id, client.group, name)


def _quota(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, text)
