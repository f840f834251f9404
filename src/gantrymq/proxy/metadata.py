"""Cached configuration of topics, groups and users, requested from brokers (`ClusterMetadataService`)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from gantrymq.auth.policy import Acl
from gantrymq.auth.users import User, subject_of
from gantrymq.background.shared_task import result_of
from gantrymq.errors import BodyError, BrokerError, GantryError, NoRouteInfo, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.auth import AclInfo, UserInfo
from gantrymq.protocol.bodies.route import TopicRouteData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.fastjson import decode_json
from gantrymq.protocol.headers.auth import AclRequestHeader, UserRequestHeader
from gantrymq.protocol.headers.group import GetSubscriptionGroupConfigRequestHeader
from gantrymq.protocol.headers.header import Header
from gantrymq.protocol.headers.topic import TopicRequestHeader
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.config import ProxyConfig
from gantrymq.system import randomness
from gantrymq.system.clock import monotonic

log = peer_log(__name__)

T = TypeVar("T")

#: Timeout of a request to a broker if there are other brokers to try, ms. It is short because a client waits.
_FIRST_MS = 1000

#: Topic attribute with the type of its messages (`TopicAttributes`).
MESSAGE_TYPE = "message.type"
#: Values of the attribute (`TopicMessageType`).
UNSPECIFIED = "UNSPECIFIED"
NORMAL = "NORMAL"
FIFO = "FIFO"
DELAY = "DELAY"
TRANSACTION = "TRANSACTION"
MIXED = "MIXED"
PRIORITY = "PRIORITY"
LITE = "LITE"
TOPIC_TYPES = frozenset({UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, MIXED, PRIORITY, LITE})


class _Remembered(Generic[T]):
    """A cache by name. If a value is older than `refresh_s`, the cache returns the old value and requests a new one."""

    def __init__(self, ask: Callable[[str], Awaitable[T]], refresh_s: float, most: int) -> None:
        self._ask = ask
        self._refresh_s = refresh_s
        self._most = most
        #: Name -> (time of the request in s, value), oldest first.
        self._known: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[T]] = {}

    async def get(self, name: str) -> T:
        """Returns the value. A value that is not cached is requested; raises the errors of the request."""
        known = self._known.get(name)
        if known is not None and monotonic() - known[0] < self._refresh_s:
            return known[1]
        task = self._asking.get(name) or self._begin(name)
        return known[1] if known is not None else await result_of(task)

    def cached(self, name: str) -> tuple[bool, T | None]:
        """Returns True and the value, or False and None. A missing value is then requested in the background."""
        found = self._known.get(name)
        if found is None and name not in self._asking:
            self._begin(name)
        return found is not None, self.known(name)

    def known(self, name: str) -> T | None:
        """Returns the cached value, or None if nothing is cached. Refreshes an old value in the background."""
        known = self._known.get(name)
        if known is None:
            return None
        if monotonic() - known[0] >= self._refresh_s and name not in self._asking:
            self._begin(name)
        return known[1]

    def _begin(self, name: str) -> asyncio.Task[T]:
        task = self._asking[name] = asyncio.ensure_future(self._ask(name))
        task.add_done_callback(lambda done: self._asked(name, done))
        return task

    def _asked(self, name: str, task: asyncio.Task[T]) -> None:
        del self._asking[name]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.info("can't ask for %s: %s", name, error)
            return
        self._known.pop(name, None)
        self._known[name] = monotonic(), task.result()
        if len(self._known) > self._most:
            self._known.popitem(last=False)


class Metadata:
    """Returns the configuration of topics, groups and users, from any broker of the topic or of the cluster."""

    def __init__(self, config: ProxyConfig, brokers: Brokers) -> None:
        self._brokers = brokers
        self._cluster = config.rocket_mq_cluster_name
        self._topics = _Remembered(
            self._ask_for_topic, config.topic_config_cache_refresh_seconds, config.topic_config_cache_max_num
        )
        self._groups = _Remembered(
            self._ask_for_group,
            config.subscription_group_config_cache_refresh_seconds,
            config.subscription_group_config_cache_max_num,
        )
        self._users = _Remembered(self._ask_for_user, config.user_cache_refresh_seconds, config.user_cache_max_num)
        self._acls = _Remembered(self._ask_for_acl, config.acl_cache_refresh_seconds, config.acl_cache_max_num)

    async def topic_type(self, topic: str) -> str:
        """Returns one of TOPIC_TYPES; UNSPECIFIED if no broker returns the topic.

        Raises a RemotingError if no broker is reachable. Otherwise any topic would count as UNSPECIFIED.
        """
        try:
            config = await self._topics.get(topic)
        except RemotingError:
            raise
        except GantryError:
            return UNSPECIFIED
        return _type_of(config)

    def known_topic_type(self, topic: str) -> str | None:
        """Returns the cached `topic_type`, or None if it is not cached."""
        config = self._topics.known(topic)
        return None if config is None else _type_of(config)

    async def group(self, group: str) -> SubscriptionGroupConfig | None:
        """Returns a consumer group; None if no broker has the group.

        Raises a RemotingError if no broker is reachable: the defaults would be wrong for a group with orderly
        consumption.
        """
        try:
            return await self._groups.get(group)
        except RemotingError:
            raise
        except GantryError:
            return None

    async def user(self, username: str) -> User | None:
        """Returns a user; None if the brokers have no such user. Raises GantryError if the request fails."""
        return await self._users.get(username)

    def cached_user(self, username: str) -> tuple[bool, User | None]:
        """Returns True and the cached `user`, or False and None. A missing user is requested in the background."""
        return self._users.cached(username)

    async def acl(self, username: str) -> Acl | None:
        """Returns a user's policies; None if the user has none. Raises GantryError if the request fails."""
        return await self._acls.get(username)

    async def _ask_for_user(self, username: str) -> User | None:
        route = await self._brokers.route(self._cluster)
        response = await self._ask_any(route, RequestCode.AUTH_GET_USER, UserRequestHeader(username=username))
        info = decode_json(response.body, UserInfo) if response.body else None
        try:
            # Without a password, no signature can be checked. Brokers return passwords only to a super user.
            return User(username, "").changed(info) if info is not None and info.password else None
        except ValueError as e:
            raise BodyError(f"user {username}: {e}") from e

    async def _ask_for_acl(self, username: str) -> Acl | None:
        route = await self._brokers.route(self._cluster)
        header = AclRequestHeader(subject=subject_of(username))
        response = await self._ask_any(route, RequestCode.AUTH_GET_ACL, header)
        try:
            return Acl.from_info(decode_json(response.body, AclInfo).policies) if response.body else None
        except ValueError as e:
            raise BodyError(f"what user {username} may do: {e}") from e

    async def _ask_for_topic(self, topic: str) -> TopicConfig:
        route = await self._brokers.route(topic)
        response = await self._ask_any(route, RequestCode.GET_TOPIC_CONFIG, TopicRequestHeader(topic=topic))
        return decode_json(response.body, TopicConfig)

    async def _ask_for_group(self, group: str) -> SubscriptionGroupConfig | None:
        try:
            route = await self._brokers.route(self._cluster)
        except NoRouteInfo:
            return None
        header = GetSubscriptionGroupConfigRequestHeader(group=group)
        try:
            response = await self._ask_any(route, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        except BrokerError as e:
            if e.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            raise
        return decode_json(response.body, SubscriptionGroupConfig)

    async def _ask_any(self, route: TopicRouteData, code: RequestCode, header: Header) -> RemotingCommand:
        """Returns the first response of a topic's brokers. Raises the last broker's error if all fail.

        All brokers of a cluster have the topic with the cluster's name.
        """
        addresses = _addresses(route)
        if not addresses:
            raise GantryError("the NameServers' route names no broker")
        for address in addresses[:-1]:
            with suppress(RemotingError):
                return await self._brokers.remoting.call(address, RemotingCommand.request(code, header), _FIRST_MS)
        return await self._brokers.remoting.call(addresses[-1], RemotingCommand.request(code, header))


def _type_of(config: TopicConfig) -> str:
    kind = config.attributes.get(MESSAGE_TYPE, NORMAL)
    return kind if kind in TOPIC_TYPES else UNSPECIFIED


def _addresses(route: TopicRouteData) -> list[str]:
    """Returns one address of each broker, in random order: the master, or else any replica."""
    brokers = route.broker_datas
    return [
        broker.master_address or next(iter(broker.broker_addrs.values()))
        for broker in randomness.sample(brokers, len(brokers))
        if broker.broker_addrs
    ]
