"""Routes: brokers, addresses and queues of topics, requested from NameServers and cached.

Source: client/impl/factory/MQClientInstance (updateTopicRouteInfoFromNameServer, findBrokerAddressInSubscribe),
remoting/netty/NettyRemotingClient (getAndCreateNameserverChannel).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import inf

from gantrymq.background.shared_task import result_of
from gantrymq.client.broker_api import TIMEOUT_MS, BrokerApi
from gantrymq.client.failure_log import FailureLog
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS
from gantrymq.client.route_responses import RouteResponse, joined
from gantrymq.errors import (
    BodyError,
    BrokerError,
    BrokerUnavailable,
    ClientError,
    GantryError,
    NoRouteInfo,
    ProtocolError,
    RemotingError,
    RouteNotReady,
)
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.route import MASTER_ID, TopicRouteData
from gantrymq.protocol.bodies.topic_config import PERM_READ, PERM_WRITE
from gantrymq.protocol.message import MessageQueue
from gantrymq.protocol.topic_name import AUTO_CREATE_TOPIC, RETRY_TOPIC_PREFIX, is_system_topic
from gantrymq.system import randomness
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

#: Interval of refreshes (pollNameServerInterval), s.
REFRESH_INTERVAL_S = 30.0
#: If a topic is created automatically, each broker creates it with the first message that it receives. Until the route
#: has all brokers that create topics, the client requests it at the first interval while the route is young, then at
#: the second, s.
YOUNG_INTERVAL_S = 1.0
NARROW_INTERVAL_S = 5.0
#: A route is young for this time after its first request or last change, s.
YOUNG_S = 60.0
#: Limits for the queues of a route, on one broker and in total. A larger route is an error, as each queue needs memory.
MAX_QUEUES_OF_BROKER = 65_536
MAX_QUEUES = 100_000
#: Largest number of cached addresses of brokers that have left the routes.
MAX_FORMER = 100


def write_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Returns the queues that accept messages, sorted by broker: those of writable brokers with a master.

    An order topic has the queues of its configuration, "BROKER:QUEUES;...", even if brokers are down. A key therefore
    maps to the same queue until the configuration changes. Raises ClientError for an invalid configuration.
    """
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    with_master = {broker.broker_name for broker in route.broker_datas if MASTER_ID in broker.broker_addrs}
    return [
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name)
        if queues.perm & PERM_WRITE and queues.broker_name in with_master
        for queue_id in range(queues.write_queue_nums)
    ]


def no_writable_queue(topic: str, route: TopicRouteData) -> GantryError:
    """Returns the error for a topic without a writable queue: a missing permission, or no master at present."""
    # With acting masters, routes lack the write permission while the master is down.
    acts = any(broker.enable_acting_master for broker in route.broker_datas)
    if route.queue_datas and not acts and not any(queues.perm & PERM_WRITE for queues in route.queue_datas):
        return ClientError(
            f"topic {topic!r} has no write permission on any broker: 'gantry admin updateTopicPerm' changes that"
        )
    return BrokerUnavailable(
        f"topic {topic!r} has no writable queue on a broker with a master at present: try again; if it lasts, "
        f"'gantry doctor {topic}' names the cause"
    )


def _ordered_queues(topic: str, order_topic_conf: str) -> list[MessageQueue]:
    shown = order_topic_conf if len(order_topic_conf) <= 100 else f"{order_topic_conf[:100]}..."
    counts: list[tuple[str, int]] = []
    for item in filter(None, order_topic_conf.split(";")):
        broker, _, count = item.partition(":")
        if not broker or not (count.isascii() and count.isdigit()) or len(count) > len(str(MAX_QUEUES)):
            raise ClientError(f"topic {topic}: its order configuration {shown!r} is not BROKER:QUEUES;...")
        counts.append((broker, int(count)))
    of_all = sum(count for _, count in counts)
    if of_all > MAX_QUEUES:
        raise ClientError(f"topic {topic}: its order configuration {shown!r} has {of_all} queues: that can't be")
    return [MessageQueue(topic, broker, queue_id) for broker, count in counts for queue_id in range(count)]


def read_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """Returns the readable queues, sorted. A queue is also readable if its broker has only slaves."""
    return sorted(
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in route.queue_datas
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_nums)
    )


def _check_queues(topic: str, route: TopicRouteData) -> None:
    """Raises BodyError if a route has an impossible number of queues."""
    of_one = max((max(data.read_queue_nums, data.write_queue_nums) for data in route.queue_datas), default=0)
    of_all = sum(max(data.read_queue_nums, data.write_queue_nums, 0) for data in route.queue_datas)
    if of_one > MAX_QUEUES_OF_BROKER or of_all > MAX_QUEUES:
        raise BodyError(f"the route of topic {topic} has {of_all} queues, {of_one} on one broker: that can't be")


class Routes:
    """Cache of a client's routes. `get` requests a topic's route once; `refresh_all` requests all routes again.

    The client uses one NameServer (HOST:PORT), at first a random one, until it fails, and then the next one. `discover`
    returns the NameServers; it is called before the first request and by `rediscover`. `on_new` is called for a new
    route that may change soon (see `look_again`).

    After a restart, a NameServer's route can lack brokers that have not registered again. The client then also queries
    the other NameServers. The awaited brokers keep their entries in the cached route.
    """

    def __init__(
        self,
        api: BrokerApi,
        name_servers: Sequence[str],
        discover: Callable[[], Awaitable[list[str]]] | None = None,
        failure_log: FailureLog | None = None,
        on_new: Callable[[], None] = lambda: None,
    ) -> None:
        if not name_servers and discover is None:
            raise ClientError("no NameServer given: pass at least one HOST:PORT")
        self._api = api
        self._discover = discover
        self._on_new = on_new
        self._failure_log = failure_log or FailureLog()
        self.name_servers: list[str] = []
        self._current = 0
        self._use(name_servers)
        self._routes: dict[str, TopicRouteData] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        #: Number of changes of the cached routes.
        self.changes = 0
        #: Address of the master of each broker that has left all cached routes, by broker name.
        self._former: dict[str, str] = {}
        self._finding: dict[tuple[str, int | None], asyncio.Task[TopicRouteData]] = {}
        #: Time when each route was found or changed (monotonic, s).
        self._changed: dict[str, float] = {}
        #: Topics that do not exist yet. Their routes have the brokers that will create them.
        self._expected: set[str] = set()
        #: Topic -> brokers that may still register. They are missing in its cached route, and each NameServer is young.
        self._awaited: dict[str, frozenset[str]] = {}
        self._looked: dict[str, float] = {}
        #: Brokers that create topics automatically, and the time of the request.
        self._makers: tuple[float, set[str]] = (-inf, set())
        #: Explanation of the last missing route, and the time of the request for it.
        self._found_instead: tuple[float, str | None] = (-inf, None)
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, changed: Callable[[str], None]) -> None:
        """Registers a function. When a cached route changes, it is called with the topic."""
        self._watchers.append(changed)

    def _use(self, name_servers: Sequence[str]) -> None:
        self.name_servers = list(name_servers)
        self._current = randomness.randrange(len(self.name_servers)) if name_servers else 0

    async def rediscover(self) -> None:
        """Discovers the NameServers again. On an error of `discover`, raises it and keeps the old NameServers."""
        assert self._discover is not None
        found = await self._discover()
        if sorted(found) != sorted(self.name_servers):
            log.info("the NameServers are now %s", ";".join(found))
            self._use(found)

    @property
    def topics(self) -> list[str]:
        """The topics with cached routes."""
        return list(self._routes)

    def cached(self, topic: str) -> TopicRouteData | None:
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRouteData:
        """Returns the topic's route. Raises NoRouteInfo, or a RemotingError if no NameServer responds."""
        return self._routes.get(topic) or await self._find_once(topic, None)

    async def get_or_default(self, topic: str, queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS) -> TopicRouteData:
        """Returns the topic's route. For an unknown topic, returns the brokers that create topics (those of TBW102)."""
        return self._routes.get(topic) or await self._find_once(topic, queue_nums)

    async def refresh(self, topic: str) -> TopicRouteData:
        """Requests the topic's route, cached or not. On an error of `get`, raises it and keeps the cached route."""
        try:
            return self._keep(topic, *await self._ask(topic))
        except RouteNotReady:
            raise
        except NoRouteInfo:
            raise await self._no_route(topic) from None

    @property
    def is_any_awaited(self) -> bool:
        """Whether the route of any topic lacks brokers, because the NameServers have just started."""
        return bool(self._awaited)

    def awaited(self, topic: str) -> frozenset[str]:
        """Returns brokers that the topic's route lacks, because the NameServers have just started."""
        return self._awaited.get(topic, frozenset())

    async def refresh_all(self) -> None:
        """Requests all cached routes again. Logs failures and keeps the old routes."""
        for topic in self.topics:
            try:
                await self.refresh(topic)
            except GantryError as e:
                self._failure_log.report(f"can't refresh the route of topic {topic}", e)

    async def look_again(self) -> float:
        """Requests each route that lacks awaited brokers or brokers that create topics.

        Returns the pause before the next call, in seconds; inf if no route lacks such brokers.
        """
        awaited_pause_s = YOUNG_INTERVAL_S if await self._refresh_awaited() else inf
        topics = [topic for topic in self._routes if topic not in self._expected and topic != AUTO_CREATE_TOPIC]
        try:
            makers = await self._topic_makers() if topics else set()
        except GantryError as e:
            self._failure_log.report("can't find the brokers that make topics", e)
            return min(awaited_pause_s, NARROW_INTERVAL_S)
        pause_s = awaited_pause_s
        for topic in topics:
            route, now = self._routes.get(topic), monotonic()
            if route is None or not makers - {broker.broker_name for broker in route.broker_datas}:
                continue
            is_young = now - self._changed[topic] < YOUNG_S
            # System topics stay on their brokers, and retry topics exist only where the group is registered.
            if not is_young and (is_system_topic(topic) or topic.startswith(RETRY_TOPIC_PREFIX)):
                continue
            pause_s = min(pause_s, YOUNG_INTERVAL_S if is_young else NARROW_INTERVAL_S)
            if is_young or now - self._looked.get(topic, -inf) >= NARROW_INTERVAL_S:
                self._looked[topic] = now
                try:
                    await self.refresh(topic)
                except GantryError as e:
                    self._failure_log.report(f"can't refresh the route of topic {topic}", e)
        return pause_s

    async def _refresh_awaited(self) -> bool:
        """Refreshes the routes that lack awaited brokers. Returns whether some routes still lack any."""
        for topic in list(self._awaited):
            try:
                await self.refresh(topic)
            except GantryError as e:
                self._failure_log.report(f"can't refresh the route of topic {topic}", e)
                if isinstance(e, NoRouteInfo) and not isinstance(e, RouteNotReady):
                    # The topic was deleted, and none of its brokers is awaited.
                    self._awaited.pop(topic, None)
        return bool(self._awaited)

    async def _topic_makers(self) -> set[str]:
        asked, names = self._makers
        if monotonic() - asked >= REFRESH_INTERVAL_S:
            try:
                route, _ = await self._ask(AUTO_CREATE_TOPIC)
                names = {broker.broker_name for broker in route.broker_datas}
            except NoRouteInfo:
                names = set()
            self._makers = monotonic(), names
        return names

    async def write_queues(self, topic: str) -> list[MessageQueue]:
        return write_queues(topic, await self.get(topic))

    async def read_queues(self, topic: str) -> list[MessageQueue]:
        """Returns all readable queues. Raises the errors of `get`, and RouteNotReady while the route lacks brokers."""
        route = await self.get(topic)
        if topic in self._awaited:
            raise RouteNotReady(topic, self.name_servers, self._awaited[topic])
        return read_queues(topic, route)

    def master_address(self, broker_name: str) -> str | None:
        """Returns HOST:PORT of a broker's master; None if no cached route contains it."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def former_master(self, broker_name: str) -> str | None:
        """Returns HOST:PORT of the last master of a broker that has left all cached routes."""
        return self._former.get(broker_name)

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Returns HOST:PORT of this replica, or of another replica of the broker; None if no cached route has one."""
        replicas = self._brokers.get(broker_name)
        if not replicas:
            return None
        return replicas.get(broker_id) or next(iter(replicas.values()))

    def next_replica(self, broker_name: str, broker_id: int) -> int:
        """Returns the next id among a broker's replicas, round robin. If none is cached, returns the master's id."""
        ids = sorted(self._brokers.get(broker_name, ()))
        return next((other for other in ids if other > broker_id), ids[0] if ids else MASTER_ID)

    def all_brokers(self) -> dict[str, dict[int, str]]:
        """Returns {broker name: {broker id: HOST:PORT}} of all cached routes."""
        return self._brokers

    def addresses(self) -> set[str]:
        """Returns HOST:PORT of every replica in the cached routes."""
        return {address for replicas in self._brokers.values() for address in replicas.values()}

    def topics_of(self, broker_names: Collection[str]) -> list[str]:
        """Returns the topics whose cached routes contain one of the brokers."""
        return [
            topic
            for topic, route in self._routes.items()
            if any(broker.broker_name in broker_names for broker in route.broker_datas)
        ]

    async def _find_once(self, topic: str, default_queue_nums: int | None) -> TopicRouteData:
        """Works like `_find`, but concurrent calls for a topic share one request."""
        key = topic, default_queue_nums
        task = self._finding.get(key)
        if task is None:
            task = asyncio.create_task(self._find(topic, default_queue_nums))
            self._finding[key] = task
            task.add_done_callback(lambda done: self._found(key, done))
        return await result_of(task)

    def _found(self, key: tuple[str, int | None], task: asyncio.Task[TopicRouteData]) -> None:
        del self._finding[key]
        if not task.cancelled():
            task.exception()  # Retrieves the error, in case all callers were cancelled.

    async def _find(self, topic: str, default_queue_nums: int | None) -> TopicRouteData:
        try:
            return self._keep(topic, *await self._ask(topic))
        except RouteNotReady:
            # The topic exists, so the registered brokers must not create it.
            raise
        except NoRouteInfo:
            if default_queue_nums is None:
                raise await self._no_route(topic) from None
            try:
                route, _ = await self._ask(AUTO_CREATE_TOPIC)
            except RouteNotReady:
                raise
            except NoRouteInfo:
                raise await self._no_route(topic) from None
        for queues in route.queue_datas:
            queues.read_queue_nums = queues.write_queue_nums = min(default_queue_nums, queues.read_queue_nums)
        kept = self._keep(topic, route, frozenset())
        self._expected.add(topic)
        return kept

    async def _no_route(self, topic: str) -> NoRouteInfo:
        """Returns the error for a missing route. Its explanation is requested at most every NARROW_INTERVAL_S."""
        asked, found = self._found_instead
        if monotonic() - asked >= NARROW_INTERVAL_S:
            try:
                found = await self._ask_what_is_there()
            except (RemotingError, BrokerError, ProtocolError, RouteNotReady):
                found = None
            self._found_instead = monotonic(), found
        return NoRouteInfo(topic, self.name_servers, found)

    async def _ask_what_is_there(self) -> str:
        name_server = self.name_servers[self._current % len(self.name_servers)]
        brokers = sorted((await self._api.cluster_info(name_server)).broker_addr_table)
        if not brokers:
            return "no broker has registered there; none runs, or it has another namesrvAddr"
        shown = ", ".join(brokers[:3]) + (f" and {len(brokers) - 3} others" if len(brokers) > 3 else "")
        there = f"brokers are registered there ({shown}), but the topic doesn't exist"
        makers = await self._topic_makers()
        if makers:
            return f"{there} yet: its first message creates it, or 'gantry admin updateTopic'"
        return f"{there} (autoCreateTopicEnable=false): create it with 'gantry admin updateTopic'"

    async def _ask(self, topic: str) -> tuple[TopicRouteData, frozenset[str]]:
        """Returns the first complete route.

        If no route is complete, merges all responses and also returns the missing brokers.

        Raises NoRouteInfo, RouteNotReady, or the error of the last NameServer if none responds.
        """
        error: RemotingError | ProtocolError | RouteNotReady | None = None
        answers: list[RouteResponse] = []
        if not self.name_servers:
            await self.rediscover()
        tried: set[str] = set()
        while (name_server := self._next(tried)) is not None:
            tried.add(name_server)
            try:
                answer = await self._api.route_answer(name_server, topic, TIMEOUT_MS)
                if answer.route is not None:
                    _check_queues(topic, answer.route)
                self._failure_log.recovered(name_server)
                if answer.route is not None and not answer.awaited:
                    return answer.route, answer.awaited
                answers.append(answer)
                if not any(answer.awaited for answer in answers):
                    break
            except (RemotingError, ProtocolError, RouteNotReady) as e:
                self._failure_log.report(f"NameServer {name_server}", e)
                error = e
                # A concurrent request may have moved on to the next NameServer already.
                if self._next(set()) == name_server:
                    self._current += 1
        if not answers:
            assert error is not None
            raise error
        route, awaited = joined(answers, None if topic in self._expected else self._routes.get(topic))
        if route is not None:
            return route, awaited
        if awaited:
            if topic != AUTO_CREATE_TOPIC:
                self._wait_for(topic, awaited)
            raise RouteNotReady(topic, self.name_servers, awaited)
        raise NoRouteInfo(topic, self.name_servers)

    def _next(self, tried: set[str]) -> str | None:
        """Returns the current NameServer, or the next one that was not tried. The list may have changed since."""
        count = len(self.name_servers)
        in_turn = (self.name_servers[(self._current + n) % count] for n in range(count))
        return next((name_server for name_server in in_turn if name_server not in tried), None)

    def _wait_for(self, topic: str, awaited: frozenset[str]) -> None:
        """Requests the route again soon, because it lacks these brokers."""
        self._awaited[topic] = awaited
        self._on_new()

    def _keep(self, topic: str, route: TopicRouteData, awaited: frozenset[str]) -> TopicRouteData:
        known = self._routes.get(topic)
        self._expected.discard(topic)
        if awaited:
            self._wait_for(topic, awaited)
        else:
            self._awaited.pop(topic, None)
        if known == route:
            return known
        self._changed[topic] = monotonic()
        # The newest route goes last, so that its addresses win.
        self._routes.pop(topic, None)
        self._routes[topic] = route
        self.changes += 1
        before = self._brokers
        self._brokers = {b.broker_name: b.broker_addrs for kept in self._routes.values() for b in kept.broker_datas}
        self._keep_former(before)
        if known is not None:
            for changed in self._watchers:
                changed(topic)
        self._on_new()
        return route

    def _keep_former(self, before: dict[str, dict[int, str]]) -> None:
        for name in self._brokers.keys() & self._former.keys():
            del self._former[name]
        for name in before.keys() - self._brokers.keys():
            if MASTER_ID in before[name]:
                self._former[name] = before[name][MASTER_ID]
        while len(self._former) > MAX_FORMER:
            del self._former[next(iter(self._former))]
