"""LiteSubscriptions: the lite topics that each client reads (`LiteSubscriptionRegistryImpl`).

A client repeats its subscriptions from time to time. If it does not, they expire. A closed connection changes nothing,
because a client continues on another one, and a proxy has one connection for many clients.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from gantrymq.broker.config import BrokerRole
from gantrymq.broker.context import BrokerContext
from gantrymq.errors import RefusalReason, RequestRefused
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

#: Number of lost subscriptions that are remembered. One takes up to 1 KiB.
_MOST_LOST = 10_000


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

    Only clients with subscriptions are kept, so `maxLiteSubscriptionCount` limits their number, too.

    `watch(queue, is_watched)` is called when a light queue gets its first subscriber, or has lost its last one.
    `freed(name, group)` is called when a client of the group has lost a light queue that was ready.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        watch: Callable[[ConsumeQueue, bool], None],
        freed: Callable[[str, str], None],
    ) -> None:
        self._config = context.config
        self._access = context.access
        self._watch = watch
        self._freed = freed
        self._clients: dict[str, LiteClient] = {}
        #: (client id, light queue): subscriptions that clients of exclusive groups have lost to others, oldest first.
        self._lost: OrderedDict[tuple[str, str], None] = OrderedDict()
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
        """Returns a client. An unknown one is created, and kept from its first subscription on.

        A client of another group or topic loses its subscriptions. Raises RequestRefused if another user has a client
        with this id.
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
        return LiteClient(client_id, group, topic, connection)

    def add(self, client: LiteClient, queue: ConsumeQueue, quota: int | None) -> None:
        """Adds a subscription.

        Raises RequestRefused if the client has `quota` of them or the broker too many, if another request has created a
        client with this id, or if the broker has become a slave.
        """
        if self._config.broker_role is BrokerRole.SLAVE:
            # The request began while the broker was master.
            raise RequestRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave", RefusalReason.NOT_MASTER)
        if queue.topic in client.queues:
            return
        most = self._config.max_lite_subscription_count
        if self.count >= most:
            raise _quota(f"lite subscription quota exceeded {most}: maxLiteSubscriptionCount")
        if quota is not None and len(client.queues) >= quota:
            raise _quota(f"client {client.client_id[:200]} has {quota} lite topics, lite.sub.client.quota of its group")
        if self._clients.setdefault(client.client_id, client) is not client:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"another request changes the lite topics of client {client.client_id[:200]}: repeat this one",
            )
        client.queues[queue.topic] = queue
        self._lost.pop((client.client_id, queue.topic), None)
        subscribers = self._by_queue.get(queue.topic)
        if subscribers is None:
            subscribers = self._by_queue[queue.topic] = {}
            self._watch(queue, True)
        subscribers[client] = None
        self.count += 1

    def remove(self, client: LiteClient, name: str) -> bool:
        """Removes a subscription by the name of its light queue. Returns whether it existed."""
        queue = client.queues.pop(name, None)
        if queue is None:
            return False
        was_ready = name in client.ready
        client.ready.pop(name, None)
        if not client.queues:
            del self._clients[client.client_id]
        self.count -= 1
        subscribers = self._by_queue[name]
        del subscribers[client]
        if not subscribers:
            del self._by_queue[name]
            self._watch(queue, False)
        elif was_ready:
            self._freed(name, client.group)
        return True

    def take_over(self, name: str, group: str, by: LiteClient) -> list[LiteClient]:
        """Removes the subscriptions of all other clients of a group to a light queue, and notifies these clients.

        Returns the clients.
        """
        others = [client for client in self.subscribers(name, group) if client is not by]
        for client in others:
            self.remove(client, name)
            if len(self._lost) >= _MOST_LOST:
                self._lost.popitem(last=False)
            self._lost[client.client_id, name] = None
            self.notify(client, name)
        return others

    def has_lost(self, client: LiteClient, name: str) -> bool:
        """Returns whether another client of the group has taken a light queue over from this one, and still has it."""
        return (client.client_id, name) in self._lost and bool(self.subscribers(name, client.group))

    def forget(self, client: LiteClient) -> None:
        """Removes a client with all its subscriptions."""
        for name in list(client.queues):
            self.remove(client, name)

    def forget_queue(self, name: str) -> None:
        """Removes all subscriptions to a light queue, which was deleted."""
        subscribers = list(self._by_queue.get(name, ()))
        for client in subscribers:
            client.ready.pop(name, None)
        for client in subscribers:
            self.remove(client, name)

    def forget_all(self) -> None:
        """Removes all clients."""
        self._lost.clear()
        for client in self:
            client.ready.clear()
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

    def notify(self, client: LiteClient, name: str) -> None:
        """Tells a client that another one reads a lite topic of an exclusive group."""
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
