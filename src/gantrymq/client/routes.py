"""Routes: which brokers have a topic's queues, and at which addresses; asked of NameServers and kept.

Source: client/impl/factory/MQClientInstance (updateTopicRouteInfoFromNameServer, findBrokerAddressInSubscribe),
remoting/netty/NettyRemotingClient (getAndCreateNameserverChannel).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import inf

from gantrymq.background.shared import result_of
from gantrymq.client.broker_api import TIMEOUT_MS, BrokerApi
from gantrymq.client.producing.send_command import DEFAULT_TOPIC_QUEUE_NUMS
from gantrymq.client.route_answers import RouteAnswer, joined
from gantrymq.client.troubles import Troubles
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

#: pollNameServerInterval.
REFRESH_INTERVAL_S = 30.0
#: A route with fewer brokers than make topics by themselves is asked for so often: while it is young, and later on.
#: Such a topic is made broker by broker, where its first messages go.
YOUNG_INTERVAL_S = 1.0
NARROW_INTERVAL_S = 5.0
#: A route is young for so long after it was found, or changed.
YOUNG_S = 60.0
#: A route with more queues, on one broker or on all, is taken for a mistake: each of them takes memory here.
MAX_QUEUES_OF_BROKER = 65_536
MAX_QUEUES = 100_000


def write_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The queues that take messages: those of writable brokers that have a master, broker by broker.

    An order topic has those of its configuration, "BROKER:QUEUES;...", whether or not the brokers are there: a message
    goes to the same queue as long as the configuration is the same. Raises ClientError for one that can't be read.
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
    """Why `write_queues` finds none: a permission that an operator must change, or a state that passes."""
    # With acting masters the routes take the permission away while a master is gone.
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
    """The queues that can be read, sorted; slaves serve them too."""
    return sorted(
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in route.queue_datas
        if queues.perm & PERM_READ
        for queue_id in range(queues.read_queue_nums)
    )


def _check_queues(topic: str, route: TopicRouteData) -> None:
    """Raises BodyError for a route with an impossible number of queues."""
    of_one = max((max(data.read_queue_nums, data.write_queue_nums) for data in route.queue_datas), default=0)
    of_all = sum(max(data.read_queue_nums, data.write_queue_nums, 0) for data in route.queue_datas)
    if of_one > MAX_QUEUES_OF_BROKER or of_all > MAX_QUEUES:
        raise BodyError(f"the route of topic {topic} has {of_all} queues, {of_one} on one broker: that can't be")


class Routes:
    """What a client knows of topics and brokers. `get` asks a NameServer once per topic, `refresh_all` asks again.

    One NameServer (host:port) is used as long as it answers, then the next; the first is picked at random.
    With `discover` the NameServers are those that it returns, asked when the first is needed and by `rediscover`.

    If a NameServer has just started, its route can lack brokers that haven't registered again. Then the other
    NameServers are asked as well, and the awaited brokers stay as they are in the route that is kept.
    """

    def __init__(
        self,
        api: BrokerApi,
        name_servers: Sequence[str],
        discover: Callable[[], Awaitable[list[str]]] | None = None,
        troubles: Troubles | None = None,
    ) -> None:
        if not name_servers and discover is None:
            raise ClientError("no NameServer given: pass at least one HOST:PORT")
        self._api = api
        self._discover = discover
        self._troubles = troubles or Troubles()
        self.name_servers: list[str] = []
        self._current = 0
        self._use(name_servers)
        self._routes: dict[str, TopicRouteData] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._finding: dict[tuple[str, int | None], asyncio.Task[TopicRouteData]] = {}
        #: When each was found or changed, by the monotonic clock.
        self._changed: dict[str, float] = {}
        #: Topics that aren't there yet, whose routes are those of the brokers that will make them.
        self._expected: set[str] = set()
        #: Brokers that the kept route of a topic lacks, because no NameServer has run for a registration period.
        self._awaited: dict[str, frozenset[str]] = {}
        self._looked: dict[str, float] = {}
        #: The names of these brokers, and when they were asked for.
        self._makers: tuple[float, set[str]] = (-inf, set())
        #: What else is known to NameServers that don't know a topic, and when they were asked.
        self._found_instead: tuple[float, str | None] = (-inf, None)
        self._watchers: list[Callable[[str], None]] = []
        #: Called when a route was found that may want to be looked at again soon: see `look_again`.
        self.on_new: Callable[[], None] | None = None

    def watch(self, changed: Callable[[str], None]) -> None:
        """Has `changed` called with the topic whenever a route that was known is another one."""
        self._watchers.append(changed)

    def _use(self, name_servers: Sequence[str]) -> None:
        self.name_servers = list(name_servers)
        self._current = randomness.randrange(len(self.name_servers)) if name_servers else 0

    async def rediscover(self) -> None:
        """Asks where the NameServers are. Raises what `discover` does; the known ones stay then."""
        assert self._discover is not None
        found = await self._discover()
        if sorted(found) != sorted(self.name_servers):
            log.info("the NameServers are now %s", ";".join(found))
            self._use(found)

    @property
    def topics(self) -> list[str]:
        """The topics whose routes are kept."""
        return list(self._routes)

    def cached(self, topic: str) -> TopicRouteData | None:
        return self._routes.get(topic)

    async def get(self, topic: str) -> TopicRouteData:
        """The topic's route. Raises NoRouteInfo, or a RemotingError when no NameServer answers."""
        return self._routes.get(topic) or await self._find_once(topic, None)

    async def get_or_default(self, topic: str, queue_nums: int = DEFAULT_TOPIC_QUEUE_NUMS) -> TopicRouteData:
        """The topic's route; for an unknown topic the brokers that make topics on their own (those of TBW102)."""
        return self._routes.get(topic) or await self._find_once(topic, queue_nums)

    async def refresh(self, topic: str) -> TopicRouteData:
        """Asks for the topic's route, kept or not. Raises as `get`; what was kept stays then."""
        try:
            return self._keep(topic, *await self._ask(topic))
        except RouteNotReady:
            raise
        except NoRouteInfo:
            raise await self._no_route(topic) from None

    def awaited(self, topic: str) -> frozenset[str]:
        """Brokers that have queues of the topic and are missing in its kept route, because the NameServers have just
        started."""
        return self._awaited.get(topic, frozenset())

    async def refresh_all(self) -> None:
        """Asks for every kept route. Failures are logged: what was known stays."""
        for topic in self.topics:
            try:
                await self.refresh(topic)
            except GantryError as e:
                self._troubles.tell(f"can't refresh the route of topic {topic}", e)

    async def look_again(self) -> float:
        """Asks for those routes that lack brokers which make topics; seconds until the next time, inf for none."""
        awaited_pause_s = YOUNG_INTERVAL_S if await self._refresh_awaited() else inf
        topics = [topic for topic in self._routes if topic not in self._expected and topic != AUTO_CREATE_TOPIC]
        try:
            makers = await self._topic_makers() if topics else set()
        except GantryError as e:
            self._troubles.tell("can't find the brokers that make topics", e)
            return min(awaited_pause_s, NARROW_INTERVAL_S)
        pause_s = awaited_pause_s
        for topic in topics:
            route, now = self._routes.get(topic), monotonic()
            if route is None or not makers - {broker.broker_name for broker in route.broker_datas}:
                continue
            is_young = now - self._changed[topic] < YOUNG_S
            # The system's own topics are where they are, those of retries where the group is known.
            if not is_young and (is_system_topic(topic) or topic.startswith(RETRY_TOPIC_PREFIX)):
                continue
            pause_s = min(pause_s, YOUNG_INTERVAL_S if is_young else NARROW_INTERVAL_S)
            if is_young or now - self._looked.get(topic, -inf) >= NARROW_INTERVAL_S:
                self._looked[topic] = now
                try:
                    await self.refresh(topic)
                except GantryError as e:
                    self._troubles.tell(f"can't refresh the route of topic {topic}", e)
        return pause_s

    async def _refresh_awaited(self) -> bool:
        """Refreshes the routes that lack awaited brokers. Returns whether some still do."""
        for topic in list(self._awaited):
            try:
                await self.refresh(topic)
            except GantryError as e:
                self._troubles.tell(f"can't refresh the route of topic {topic}", e)
                if isinstance(e, NoRouteInfo) and not isinstance(e, RouteNotReady):
                    # The topic is gone, and no broker of it is awaited.
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
        """All queues that can be read. Raises as `get`, and RouteNotReady while the kept route lacks brokers."""
        route = await self.get(topic)
        if topic in self._awaited:
            raise RouteNotReady(topic, self.name_servers, self._awaited[topic])
        return read_queues(topic, route)

    def master_address(self, broker_name: str) -> str | None:
        """host:port of a broker's master; None when no kept route names one."""
        return self._brokers.get(broker_name, {}).get(MASTER_ID)

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """host:port of that replica, or of any other of the broker; None when no kept route names one."""
        replicas = self._brokers.get(broker_name)
        if not replicas:
            return None
        return replicas.get(broker_id) or next(iter(replicas.values()))

    def next_replica(self, broker_name: str, broker_id: int) -> int:
        """The id after this one among a broker's replicas, the first after the last; the master's if none is known."""
        ids = sorted(self._brokers.get(broker_name, ()))
        return next((other for other in ids if other > broker_id), ids[0] if ids else MASTER_ID)

    def all_brokers(self) -> dict[str, dict[int, str]]:
        """{broker name: {broker id: host:port}} over all kept routes."""
        return self._brokers

    def addresses(self) -> set[str]:
        """host:port of every replica that a kept route names."""
        return {address for replicas in self._brokers.values() for address in replicas.values()}

    def topics_of(self, broker_names: Collection[str]) -> list[str]:
        """The topics whose kept routes name one of the brokers."""
        return [
            topic
            for topic, route in self._routes.items()
            if any(broker.broker_name in broker_names for broker in route.broker_datas)
        ]

    async def _find_once(self, topic: str, default_queue_nums: int | None) -> TopicRouteData:
        """Like `_find`; a hundred first messages to a topic share one request."""
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
            task.exception()  # seen, even if all who waited have given up

    async def _find(self, topic: str, default_queue_nums: int | None) -> TopicRouteData:
        try:
            return self._keep(topic, *await self._ask(topic))
        except RouteNotReady:
            # The topic exists: it must not be created on the brokers that are there.
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
        """The error, which says what the NameServers know instead; they aren't asked for that each time."""
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
            return f"{there} yet: it is made when its first message comes, or by AdminClient.ensure_topic"
        return f"{there}, and none of them makes topics by itself (autoCreateTopicEnable=false): create it"

    async def _ask(self, topic: str) -> tuple[TopicRouteData, frozenset[str]]:
        """The route of the first NameServer that has a complete one, or what all have, with the brokers that it lacks.

        Raises NoRouteInfo, RouteNotReady, or the error of the last NameServer if none answers.
        """
        error: RemotingError | ProtocolError | RouteNotReady | None = None
        answers: list[RouteAnswer] = []
        if not self.name_servers:
            await self.rediscover()
        tried: set[str] = set()
        while (name_server := self._next(tried)) is not None:
            tried.add(name_server)
            try:
                answer = await self._api.route_answer(name_server, topic, TIMEOUT_MS)
                if answer.route is not None:
                    _check_queues(topic, answer.route)
                self._troubles.over(name_server)
                if answer.route is not None and not answer.awaited:
                    return answer.route, answer.awaited
                answers.append(answer)
                if not any(answer.awaited for answer in answers):
                    break
            except (RemotingError, ProtocolError, RouteNotReady) as e:
                self._troubles.tell(f"NameServer {name_server}", e)
                error = e
                # Unless another look-up has gone on already.
                if self._next(set()) == name_server:
                    self._current += 1
        if not answers:
            assert error is not None
            raise error
        route, awaited = joined(answers, None if topic in self._expected else self._routes.get(topic))
        if route is not None:
            return route, awaited
        if awaited:
            raise RouteNotReady(topic, self.name_servers, awaited)
        raise NoRouteInfo(topic, self.name_servers)

    def _next(self, tried: set[str]) -> str | None:
        """The NameServer in use, or the next one after it that wasn't tried; the list may be another one by now."""
        count = len(self.name_servers)
        in_turn = (self.name_servers[(self._current + n) % count] for n in range(count))
        return next((name_server for name_server in in_turn if name_server not in tried), None)

    def _keep(self, topic: str, route: TopicRouteData, awaited: frozenset[str]) -> TopicRouteData:
        known = self._routes.get(topic)
        self._expected.discard(topic)
        if awaited:
            self._awaited[topic] = awaited
            if self.on_new is not None:
                self.on_new()
        else:
            self._awaited.pop(topic, None)
        if known == route:
            return known
        self._changed[topic] = monotonic()
        # The newest answer goes last, so that its addresses win.
        self._routes.pop(topic, None)
        self._routes[topic] = route
        self._brokers = {b.broker_name: b.broker_addrs for kept in self._routes.values() for b in kept.broker_datas}
        if known is not None:
            for changed in self._watchers:
                changed(topic)
        if self.on_new is not None:
            self.on_new()
        return route
