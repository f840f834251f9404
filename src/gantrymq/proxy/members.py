"""Members: brokers see the proxy's clients in their groups (`consumerConnection`), and ask its producers of halves.

A broker knows a group's members by their connections, so two consumers of one group need two. Those of different groups
share one: the n-th consumer of each group speaks on the n-th `Lane`, a connection to each broker. All producers share
the first, where their topics stand for their groups.

Java's proxy tells brokers of producers only (ClusterTransactionService); of consumers it tells other proxies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from gantrymq.background.jobs import Jobs
from gantrymq.background.tasks import Tasks
from gantrymq.client.broker_api import BrokerApi
from gantrymq.errors import GantryError, NoRouteInfo
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
)
from gantrymq.proxy.brokers import Brokers
from gantrymq.proxy.clients import Client, Clients, Watcher
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.for_each import for_each
from gantrymq.proxy.subscriptions import consume_type, subscriptions_of
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

#: Consumers of one group that brokers are told of: each is a connection to each broker.
MAX_LANES = 1000
#: Producers' topics in one heartbeat.
_TOPICS_AT_ONCE = 100
#: So soon brokers learn of those who came: several come at once, s.
_SOON_S = 0.1
#: After the loss of a connection, s.
_AGAIN_S = 1.0
#: Brokers have so long to hear that clients are gone when the proxy stops, s.
_STOP_S = 5.0


@dataclass(eq=False)
class Lane:
    """Consumers of different groups that share a connection to each broker."""

    remoting: RemotingClient
    groups: dict[str, _Member] = field(default_factory=dict)

    @property
    def api(self) -> BrokerApi:
        return BrokerApi(self.remoting)


@dataclass(eq=False)
class _Member:
    """A consumer in its group."""

    client: Client
    group: str
    lane: Lane
    #: The brokers that know it, host:port.
    known_to: set[str] = field(default_factory=set)


class Members:
    """Heartbeats to brokers for all clients of the proxy."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, clients: Clients, jobs: Jobs) -> None:
        self._brokers = brokers
        self._clients = clients
        #: Those that are in use.
        self.lanes: list[Lane] = []
        self._members: dict[Client, _Member] = {}
        self._leaving = Tasks("telling brokers that clients are gone")
        self._beating = jobs.repeating(
            "tell brokers of clients", self._beat, config.transaction_heartbeat_period_second, after_error_s=_AGAIN_S
        )
        clients.watch(Watcher(changed=self._changed, gone=self._gone))

    def start(self) -> None:
        self._beating.start()

    async def stop(self) -> None:
        await self._beating.stop()
        for member in list(self._members.values()):
            self._leave(member)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._leaving.wait()
        # Brokers notice the closed connections.
        await self._leaving.stop()
        for lane in self.lanes:
            await lane.remoting.close()

    # -- who is where -------------------------------------------------------------------------------------------

    def _changed(self, client: Client) -> None:
        member = self._members.get(client)
        if member is not None and (not client.is_consumer or member.group != client.group):
            self._leave(member)
            member = None
        if member is None and client.is_consumer:
            self._join(client)
        self._beating.wake(_SOON_S)

    def _gone(self, client: Client) -> None:
        member = self._members.get(client)
        if member is not None:
            self._leave(member)

    def _join(self, client: Client) -> None:
        lane = next((lane for lane in self.lanes if client.group not in lane.groups), None)
        if lane is None:
            if len(self.lanes) >= MAX_LANES:
                log.warning("brokers aren't told of client %s: group %s has too many", client.client_id, client.group)
                return
            lane = Lane(self._brokers.another_connection(self._lost))
            self.lanes.append(lane)
        self._members[client] = lane.groups[client.group] = _Member(client, client.group, lane)

    def _leave(self, member: _Member) -> None:
        del self._members[member.client]
        self._leaving.start(self._say_goodbye(member))

    async def _say_goodbye(self, member: _Member) -> None:
        """Its place on the lane is free afterwards: brokers go by connections, and would take its successor off."""
        lane = member.lane

        async def unregister(address: str) -> None:
            try:
                await lane.api.unregister(address, member.client.client_id, consumer_group=member.group)
            except GantryError as e:
                log.info("broker %s isn't told that client %s is gone: %s", address, member.client.client_id, e)

        try:
            await for_each(member.known_to, unregister)
        finally:
            del lane.groups[member.group]
        if not lane.groups and lane in self.lanes:
            self.lanes.remove(lane)
            await lane.remoting.close()

    def _lost(self, address: str) -> None:
        """The broker has forgotten who was known by that connection."""
        self._beating.wake(_AGAIN_S)

    # -- heartbeats ---------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        try:
            await for_each(list(self._members.values()), self._beat_for)
        finally:
            await for_each(await self._of_producers(), self._beat_for_producers)

    async def _beat_for(self, member: _Member) -> None:
        client = member.client
        if self._members.get(client) is not member:
            return
        subscriptions = subscriptions_of(client)
        data = HeartbeatData(
            client_id=client.client_id,
            consumer_data_set=[
                ConsumerData(member.group, consume_type(client), subscription_data_set=subscriptions),
            ],
        )
        for address in await self._masters(subscription.topic for subscription in subscriptions):
            try:
                await member.lane.api.heartbeat(address, data)
            except GantryError as e:
                self._brokers.client.troubles.tell(f"heartbeat to broker {address} for its clients failed", e)
            else:
                member.known_to.add(address)

    async def _of_producers(self) -> list[tuple[str, list[str]]]:
        """(broker's address, topics of clients that produce)."""
        topics = {topic: None for client in self._clients if not client.is_consumer for topic in client.topics}
        by_broker: dict[str, list[str]] = {}
        for topic in topics:
            for address in await self._masters([topic]):
                by_broker.setdefault(address, []).append(topic)
        return [
            (address, some[start : start + _TOPICS_AT_ONCE])
            for address, some in by_broker.items()
            for start in range(0, len(some), _TOPICS_AT_ONCE)
        ]

    async def _beat_for_producers(self, beat: tuple[str, list[str]]) -> None:
        address, topics = beat
        data = HeartbeatData(
            client_id=self._brokers.client.client_id, producer_data_set=[ProducerData(topic) for topic in topics]
        )
        try:
            await self._brokers.api.heartbeat(address, data)
        except GantryError as e:
            self._brokers.client.troubles.tell(f"heartbeat to broker {address} for producers failed", e)

    async def _masters(self, topics: Iterable[str]) -> list[str]:
        """The addresses of the brokers that have these topics."""
        addresses: dict[str, None] = {}
        for topic in topics:
            try:
                route = await self._brokers.route(topic)
            except NoRouteInfo:
                continue
            except GantryError as e:
                self._brokers.client.troubles.tell(f"can't find the brokers of topic {topic}", e)
                continue
            addresses.update((broker.master_address, None) for broker in route.broker_datas if broker.master_address)
        return list(addresses)
