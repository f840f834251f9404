"""Members: brokers see the proxy's clients in their groups (`consumerConnection`), and ask its producers of halves.

A broker knows a group's members by their connections, so two consumers of one group need two. Those of different groups
share one: the n-th consumer of each group speaks on the n-th `Lane`, a connection to each broker. All producers share
the first, where their topics stand for their groups.

Java's proxy tells brokers of producers only (ClusterTransactionService); of consumers it tells other proxies.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

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
#: Unknown topics that NameServers are asked for at once, and again with the next beat.
_LOOK_UPS = 500
#: So soon brokers learn of those who came: several come at once, s.
_SOON_S = 0.1
#: After the loss of a connection, s.
_AGAIN_S = 1.0
#: Timeout of brokers when the proxy stops: to answer that clients are gone, and to take what is sent to them, s.
_STOP_S = 2.0
_CLOSE_S = 0.5


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
    #: The brokers that know it, or are being told, host:port.
    known_to: set[str] = field(default_factory=set)


@dataclass
class _Beat:
    """What a broker is told of clients."""

    members: list[_Member] = field(default_factory=list)
    #: Of producers.
    topics: list[str] = field(default_factory=list)


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
        self._looking = jobs.repeating("find the brokers of clients' topics", self._look_for_unknown)
        self._beats = Tasks("heartbeats for clients")
        #: The brokers that are being told of clients, host:port, and what they are to be told next.
        self._telling: set[str] = set()
        self._later: dict[str, _Beat] = {}
        #: Topics of clients whose brokers aren't known; those that were looked for in vain.
        self._unknown: dict[str, None] = {}
        self._looked_for: frozenset[str] = frozenset()
        clients.watch(Watcher(changed=self._changed, gone=self._gone))

    def start(self) -> None:
        self._beating.start()
        self._looking.start()

    async def stop(self) -> None:
        await self._beating.stop()
        await self._looking.stop()
        await self._beats.stop()
        for member in list(self._members.values()):
            self._leave(member)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._leaving.wait()
        # Brokers notice the closed connections.
        await self._leaving.stop()
        await asyncio.gather(*(lane.remoting.close(_CLOSE_S) for lane in self.lanes))

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

    def _beat(self) -> None:
        """Each broker is told by itself: one that doesn't answer holds up nobody else's heartbeats."""
        for address, beat in self._beats_by_broker().items():
            self._later[address] = beat
            if address not in self._telling:
                self._telling.add(address)
                self._beats.start(self._tell(address))
        if self._unknown:
            self._looking.wake()

    async def _tell(self, address: str) -> None:
        """What there is to say by now, and what comes to it meanwhile."""
        try:
            while (beat := self._later.pop(address, None)) is not None:
                await for_each(beat.members, partial(self._beat_for, address))
                for start in range(0, len(beat.topics), _TOPICS_AT_ONCE):
                    await self._beat_for_producers(address, beat.topics[start : start + _TOPICS_AT_ONCE])
        finally:
            self._telling.discard(address)

    async def _beat_for(self, address: str, member: _Member) -> None:
        client = member.client
        if self._members.get(client) is not member:
            return
        data = HeartbeatData(
            client_id=client.client_id,
            consumer_data_set=[
                ConsumerData(member.group, consume_type(client), subscription_data_set=subscriptions_of(client)),
            ],
        )
        # Before: who leaves while the broker is being told is to be taken off again.
        member.known_to.add(address)
        await self._heartbeat(member.lane.api, address, data)

    async def _beat_for_producers(self, address: str, topics: list[str]) -> None:
        data = HeartbeatData(
            client_id=self._brokers.client.client_id, producer_data_set=[ProducerData(topic) for topic in topics]
        )
        await self._heartbeat(self._brokers.api, address, data)

    async def _heartbeat(self, api: BrokerApi, address: str, data: HeartbeatData) -> None:
        """A broker that doesn't take it is asked again with the next beat."""
        try:
            await api.heartbeat(address, data)
        except GantryError as e:
            self._brokers.client.troubles.tell(f"heartbeat to broker {address} for the proxy's clients failed", e)

    # -- where topics are ---------------------------------------------------------------------------------------

    def _beats_by_broker(self) -> dict[str, _Beat]:
        """What each broker, host:port, is to be told, as far as it's known where topics are."""
        beats: dict[str, _Beat] = {}
        for member in self._members.values():
            for address in dict.fromkeys(chain.from_iterable(map(self._masters, member.client.topics))):
                beats.setdefault(address, _Beat()).members.append(member)
        for topic in self._clients.produced_topics:
            for address in self._masters(topic):
                beats.setdefault(address, _Beat()).topics.append(topic)
        return beats

    def _masters(self, topic: str) -> list[str]:
        """The addresses of the brokers that have it."""
        route = self._brokers.routes.cached(topic)
        if route is None:
            self._unknown.setdefault(topic)
            return []
        return [broker.master_address for broker in route.broker_datas if broker.master_address]

    async def _look_for_unknown(self) -> None:
        """Asks where topics are that weren't known; for some of them each time, in turn."""
        unknown, self._unknown = self._unknown, {}
        topics = [topic for topic in unknown if topic not in self._looked_for][:_LOOK_UPS]
        self._looked_for = self._looked_for.union(topics) if topics else frozenset()
        await for_each(topics, self._look_for)

    async def _look_for(self, topic: str) -> None:
        try:
            await self._brokers.route(topic)
        except NoRouteInfo:
            pass
        except GantryError as e:
            self._brokers.client.troubles.tell(f"can't find the brokers of topic {topic}", e)
        else:
            self._beating.wake(_SOON_S)
