"""LiteSubscriptionManager: the lite topics of a consumer, and the requests with which it subscribes at the brokers.

Each broker of the parent topic gets each change, because it may have messages of any lite topic. Brokers have the
subscriptions only in memory, and remove those that are not repeated. The client therefore sends the whole set

- to all brokers every REPEAT_S, and
- to a broker that may not have it: after a failed request, over a new connection, and after a change of the master.

The whole set (COMPLETE_ADD) takes no lite topic over from another client, a single change (PARTIAL_ADD) does.
Source: client-java LiteSubscriptionManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from gantrymq.background.repeating import Repeating
from gantrymq.client.client_instance import ClientInstance
from gantrymq.client.failover import is_role_change
from gantrymq.client.routes import read_queues
from gantrymq.errors import BrokerUnavailable, GantryError, NoRouteInfo, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.lite import (
    LiteSubscription,
    LiteSubscriptionAction,
    LiteSubscriptionCtlBody,
    OffsetOption,
)
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import encode_json
from gantrymq.protocol.headers.lite import NotifyUnsubscribeLiteRequestHeader
from gantrymq.remoting.connection import Connection
from gantrymq.system import clock

log = peer_log(__name__)

#: Interval of the repetition, in seconds. Brokers remove subscriptions after 180 s without one
#: (`liteSubscriptionCheckTimeoutMills`).
REPEAT_S = 30.0
#: Pause before another request to a broker that could not be reached, in seconds.
RETRY_S = 1.0
#: Timeout of a request, in ms.
_TIMEOUT_MS = 3000


class LiteSubscriptionManager:
    """The lite topics of one consumer, from `start` to `stop`.

    Args:
        client: Connections and routes.
        group: Consumer group, with its namespace.
        topic: Parent topic, with its namespace.
        on_unsubscribe_lite: Called with each lite topic that another client has taken over.
    """

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        topic: str,
        on_unsubscribe_lite: Callable[[str], object] | None,
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._on_unsubscribe_lite = on_unsubscribe_lite
        self._lite_topics: dict[str, None] = {}
        #: The lite topic of a PARTIAL_ADD in flight. Notifications about it can be of an earlier subscription.
        self._adding: str | None = None
        #: Held during requests, so that a repetition never overtakes a change.
        self._changing = asyncio.Lock()
        #: Broker name -> the connection over which its master got the whole set.
        self._synced: dict[str, Connection] = {}
        #: Time of the next repetition to all brokers (monotonic, s).
        self._due = 0.0
        #: Time until which the whole set is not sent, because a broker has refused it (monotonic, s).
        self._refused_until = 0.0
        self._repeating = Repeating(f"repeating the lite topics of group {group}", self._repeat, after_error_s=RETRY_S)
        client.routes.watch(self._route_changed)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The names of the subscribed lite topics."""
        return frozenset(self._lite_topics)

    async def start(self) -> None:
        """Registers at the brokers. Unreachable brokers, and a topic without a route, are retried in the background.

        Raises:
            BrokerError: A broker refuses the group or the topic.
        """
        async with self._changing:
            try:
                is_incomplete = await self._send_all(await self.broker_names())
            except GantryError as e:
                if not _can_be_retried(e):
                    raise
                self._report(e)
                is_incomplete = True
        self._repeating.start(RETRY_S if is_incomplete else REPEAT_S)

    async def stop(self, timeout_s: float) -> None:
        """Removes the subscriptions from the brokers, within at most `timeout_s` seconds."""
        await self._repeating.stop()
        self._lite_topics.clear()
        # Also from brokers that have refused the last request: they can have the subscriptions of an earlier one.
        route = self._client.routes.cached(self._topic)
        names = set(self._synced) if route is None else {queue.broker_name for queue in read_queues(self._topic, route)}
        leaving = self._change(LiteSubscriptionAction.COMPLETE_REMOVE, ())
        try:
            async with asyncio.timeout(timeout_s), self._changing:
                results = await asyncio.gather(*(self._call(name, leaving) for name in names), return_exceptions=True)
        except TimeoutError:
            results = [TimeoutError(f"no response in {timeout_s:g} s")]
        for error in results:
            if isinstance(error, Exception):
                log.info("the lite topics of group %s expire later at a broker: %s", self._group, error)

    async def subscribe(self, lite_topic: str, offset_option: OffsetOption | None) -> None:
        """Subscribes to a lite topic at all brokers. Raises the errors of `LiteConsumer.subscribe_lite`."""
        async with self._changing:
            is_new = lite_topic not in self._lite_topics
            if not is_new and offset_option is None:
                return
            self._lite_topics[lite_topic] = None
            self._adding = lite_topic
            try:
                change = self._change(LiteSubscriptionAction.PARTIAL_ADD, [lite_topic], offset_option)
                names = await self.broker_names()
                errors = await self._to_all(names, change)
                # A broker that can't be reached now gets the whole set later, but no offset option.
                if offset_option is not None or len(errors) == len(names):
                    _raise_first(errors)
                _raise_first([error for error in errors if not _can_be_retried(error)])
            except BaseException:
                if is_new:
                    # Brokers that have accepted the change get the set without the lite topic.
                    self._lite_topics.pop(lite_topic, None)
                    self._repeat_soon()
                raise
            finally:
                self._adding = None

    async def unsubscribe(self, lite_topic: str) -> None:
        """Removes the subscription at all brokers. A broker that can't be reached now gets the whole set later."""
        async with self._changing:
            if lite_topic not in self._lite_topics:
                return
            del self._lite_topics[lite_topic]
            change = self._change(LiteSubscriptionAction.PARTIAL_REMOVE, [lite_topic])
            try:
                errors = await self._to_all(await self.broker_names(), change)
            except GantryError as e:
                errors = [e]
                self._repeat_soon()
            _raise_first([error for error in errors if not _can_be_retried(error)])

    def check(self, broker_name: str) -> None:
        """Sends the whole set soon if the master of a broker may not have it. Call it before each pop."""
        if not self._is_synced(broker_name) and clock.monotonic() >= self._refused_until:
            self._repeating.wake()

    def pop_failed(self, broker_name: str) -> None:
        """Sends the whole set again after a failed pop, because the broker may have lost it with its role."""
        self._synced.pop(broker_name, None)

    def unsubscribed(self, connection: Connection, request: RemotingCommand) -> None:
        """Handles NOTIFY_UNSUBSCRIBE_LITE: another client of the group has the lite topic now."""
        header = request.read_header(NotifyUnsubscribeLiteRequestHeader)
        is_mine = (header.consumer_group, header.client_id) == (self._group, self._client.client_id)
        lite_topic = header.lite_topic
        if not is_mine or lite_topic not in self._lite_topics or lite_topic == self._adding:
            # If the lite topic is lost, the broker notifies again at the next repetition.
            return
        del self._lite_topics[lite_topic]
        log.info("another client of group %s has taken over the lite topic %s", self._group, lite_topic)
        # The other brokers may not have removed it.
        self._repeat_soon()
        if self._on_unsubscribe_lite is not None:
            try:
                self._on_unsubscribe_lite(lite_topic)
            except Exception:
                log.exception("%s failed", getattr(self._on_unsubscribe_lite, "__name__", self._on_unsubscribe_lite))

    async def broker_names(self) -> list[str]:
        """Returns the brokers with readable queues of the parent topic. Raises NoRouteInfo, or a RemotingError."""
        queues = read_queues(self._topic, await self._client.routes.get(self._topic))
        if not queues:
            raise NoRouteInfo(self._topic, self._client.routes.name_servers)
        return sorted({queue.broker_name for queue in queues})

    def _route_changed(self, topic: str) -> None:
        if topic == self._topic:
            self._repeating.wake()

    def _repeat_soon(self) -> None:
        self._due = 0.0
        self._repeating.wake()

    async def _repeat(self) -> float:
        """Sends the whole set to the brokers that need it. Returns the pause before the next run, in seconds."""
        async with self._changing:
            is_due = clock.monotonic() >= self._due
            try:
                names = await self.broker_names()
                is_incomplete = await self._send_all([name for name in names if is_due or not self._is_synced(name)])
            except GantryError as e:
                self._report(e)
                if _can_be_retried(e):
                    return RETRY_S
                # A refusal does not change soon.
                self._refused_until = clock.monotonic() + REPEAT_S
                return REPEAT_S
            return RETRY_S if is_incomplete else max(self._due - clock.monotonic(), 0.0)

    async def _send_all(self, names: Sequence[str]) -> bool:
        """Sends the whole set to these brokers. Returns whether a retry is useful. Raises the first refusal."""
        if clock.monotonic() >= self._due:
            self._due = clock.monotonic() + REPEAT_S
        change = self._change(LiteSubscriptionAction.COMPLETE_ADD, self._lite_topics)
        errors = await self._to_all(names, change)
        _raise_first([error for error in errors if not _can_be_retried(error)])
        for error in errors:
            self._report(error)
        return bool(errors)

    def _report(self, error: GantryError) -> None:
        self._client.failure_log.report(f"can't subscribe to lite topics of {self._topic}", error)

    def _change(
        self, action: LiteSubscriptionAction, lite_topics: Iterable[str], offset_option: OffsetOption | None = None
    ) -> LiteSubscription:
        return LiteSubscription(
            action, self._client.client_id, self._group, self._topic, list(lite_topics), offset_option
        )

    async def _to_all(self, names: Sequence[str], change: LiteSubscription) -> list[GantryError]:
        """Sends a change to these brokers. Returns the errors."""
        results = await asyncio.gather(*(self._call(name, change) for name in names), return_exceptions=True)
        errors = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, GantryError):
                self._synced.pop(name, None)
                self._client.report_failure(self._topic, result)
                if _can_be_retried(result):
                    self._repeating.wake(RETRY_S)
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
            elif change.action is LiteSubscriptionAction.COMPLETE_ADD and result is not None:
                self._synced[name] = result
        return errors

    async def _call(self, broker_name: str, change: LiteSubscription) -> Connection | None:
        """Sends a change to the master of a broker. Returns the connection. Raises GantryError."""
        address = self._client.routes.master_address(broker_name)
        if address is None:
            raise BrokerUnavailable(f"broker {broker_name} has no master at present: try again")
        body = encode_json(LiteSubscriptionCtlBody([change]))
        request = RemotingCommand.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)
        await self._client.remoting.call(address, request, _TIMEOUT_MS)
        self._client.failure_log.recovered(address)
        return self._client.remoting.open_connection(address)

    def _is_synced(self, broker_name: str) -> bool:
        address = self._client.routes.master_address(broker_name)
        connection = None if address is None else self._client.remoting.open_connection(address)
        return connection is not None and self._synced.get(broker_name) is connection


def _can_be_retried(error: GantryError) -> bool:
    return isinstance(error, RemotingError | BrokerUnavailable | NoRouteInfo) or is_role_change(error)


def _raise_first(errors: Sequence[GantryError]) -> None:
    if errors:
        raise errors[0]
