"""Heartbeats to brokers for the proxy's clients.

After a heartbeat, a broker lists these clients as members (`consumerConnection`), and sends them transaction checks.

A broker identifies the members of a group by their connections, so two consumers of one group need two connections.
Consumers of different groups can share a connection. The n-th consumer of each group uses the n-th `Lane`, which has
one connection to each broker. All producers share the proxy's own connection. Their topics serve as producer groups.

Java's proxy registers only producers at brokers (ClusterTransactionService). It sends its consumers to other proxies.
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
from gantrymq.proxy.concurrency import for_each
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.subscriptions import consume_type, subscriptions_of
from gantrymq.remoting.client import RemotingClient

log = peer_log(__name__)

#: Largest number of consumers of one group that are registered at brokers. Each needs a connection to each broker.
MAX_LANES = 1000
#: Largest number of producers' topics in one heartbeat.
_TOPICS_AT_ONCE = 100
#: Largest number of routes that are requested in one round. Later rounds request the others.
_LOOK_UPS = 500
#: Delay of a heartbeat for new clients, s. Clients often start together and then share a heartbeat.
_SOON_S = 0.1
#: Delay of a heartbeat after a lost connection or an error, s.
_AGAIN_S = 1.0
#: Timeouts when the proxy stops, s: to unregister clients at brokers, and to flush each connection.
_STOP_S = 2.0
_CLOSE_S = 0.5


@dataclass(eq=False)
class Lane:
    """Consumers of different groups that share one connection to each broker."""

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
    #: Addresses (host:port) of brokers that were sent the consumer's heartbeat.
    known_to: set[str] = field(default_factory=set)


@dataclass
class _Beat:
    """The clients in one heartbeat round to a broker."""

    members: list[_Member] = field(default_factory=list)
    #: Topics of producers.
    topics: list[str] = field(default_factory=list)


class Members:
    """Registers the proxy's clients at brokers by heartbeats, and unregisters them."""

    def __init__(self, config: ProxyConfig, brokers: Brokers, clients: Clients, jobs: Jobs) -> None:
        self._brokers = brokers
        self._clients = clients
        #: Lanes with at least one consumer.
        self.lanes: list[Lane] = []
        self._members: dict[Client, _Member] = {}
        self.leaving = Tasks("telling brokers that clients are gone")
        self._beating = jobs.repeating(
            "tell brokers of clients", self._beat, config.transaction_heartbeat_period_second, after_error_s=_AGAIN_S
        )
        self._looking = jobs.repeating("find the brokers of clients' topics", self._look_for_unknown)
        self._beats = Tasks("heartbeats for clients")
        #: Addresses (host:port) of brokers with a running heartbeat round, and the next round of each.
        self.busy: set[str] = set()
        self._later: dict[str, _Beat] = {}
        #: Topics of clients without a cached route, and which of these routes were requested recently.
        self._unknown: dict[str, None] = {}
        self._looked_for: frozenset[str] = frozenset()
        clients.watch(Watcher(changed=self._changed, gone=self._gone))

    def start(self) -> None:
        self._beating.start()
        self._looking.start()

    async def stop(self) -> None:
        """Unregisters all consumers at their brokers, then closes the connections."""
        await self._beating.stop()
        await self._looking.stop()
        await self._beats.stop()
        for member in list(self._members.values()):
            self._leave(member)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self.leaving.wait()
        # Brokers notice the closed connections.
        await self.leaving.stop()
        await asyncio.gather(*(lane.remoting.close(_CLOSE_S) for lane in self.lanes))

    # -- lanes --------------------------------------------------------------------------------------------------

    def _changed(self, client: Client) -> None:
        """Updates the group of a client with new settings, and sends heartbeats soon."""
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
        """Adds a consumer to the first lane that has no consumer of its group, or to a new lane."""
        lane = next((lane for lane in self.lanes if client.group not in lane.groups), None)
        if lane is None:
            if len(self.lanes) >= MAX_LANES:
                log.warning(
                    "client %s is not registered with brokers: group %s has too many", client.client_id, client.group
                )
                return
            lane = Lane(self._brokers.another_connection(self._lost))
            self.lanes.append(lane)
        self._members[client] = lane.groups[client.group] = _Member(client, client.group, lane)

    def _leave(self, member: _Member) -> None:
        del self._members[member.client]
        self.leaving.start(self._say_goodbye(member))

    async def _say_goodbye(self, member: _Member) -> None:
        """Unregisters a consumer at its brokers, then frees the group's position on the lane.

        The order matters. Brokers identify members by the connection, and would also remove the next consumer that uses
        it.
        """
        lane = member.lane

        async def unregister(address: str) -> None:
            try:
                await lane.api.unregister(address, member.client.client_id, consumer_group=member.group)
            except GantryError as e:
                log.info("can't unregister from broker %s client %s: %s", address, member.client.client_id, e)

        try:
            await for_each(member.known_to, unregister)
        finally:
            del lane.groups[member.group]
        if not lane.groups and lane in self.lanes:
            self.lanes.remove(lane)
            await lane.remoting.close()

    def _lost(self, address: str) -> None:
        """Sends new heartbeats, because the broker has removed the members of the lost connection."""
        self._beating.wake(_AGAIN_S)

    # -- heartbeats ---------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Starts a heartbeat round to each broker in a task of its own, so that a hanging broker delays no other."""
        for address, beat in self._beats_by_broker().items():
            self._later[address] = beat
            if address not in self.busy:
                self.busy.add(address)
                self._beats.start(self._send_beats(address))
        if self._unknown:
            self._looking.wake()

    async def _send_beats(self, address: str) -> None:
        """Sends heartbeat rounds to a broker until no further round is pending."""
        try:
            while (beat := self._later.pop(address, None)) is not None:
                await for_each(beat.members, partial(self._beat_for, address))
                for start in range(0, len(beat.topics), _TOPICS_AT_ONCE):
                    await self._beat_for_producers(address, beat.topics[start : start + _TOPICS_AT_ONCE])
        finally:
            self.busy.discard(address)

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
        # Recorded before the request: a consumer that leaves during the request must also be unregistered at this
        # broker.
        member.known_to.add(address)
        await self._heartbeat(member.lane.api, address, data)

    async def _beat_for_producers(self, address: str, topics: list[str]) -> None:
        data = HeartbeatData(
            client_id=self._brokers.client.client_id, producer_data_set=[ProducerData(topic) for topic in topics]
        )
        await self._heartbeat(self._brokers.api, address, data)

    async def _heartbeat(self, api: BrokerApi, address: str, data: HeartbeatData) -> None:
        """Sends a heartbeat. An error is only logged, because the next round repeats the heartbeat."""
        try:
            await api.heartbeat(address, data)
        except GantryError as e:
            self._brokers.client.failure_log.report(f"heartbeat to broker {address} for the proxy's clients failed", e)

    # -- routes -------------------------------------------------------------------------------------------------

    def _beats_by_broker(self) -> dict[str, _Beat]:
        """Returns the heartbeat round of each broker by its address (host:port), for topics with a cached route."""
        beats: dict[str, _Beat] = {}
        for member in self._members.values():
            for address in dict.fromkeys(chain.from_iterable(map(self._masters, member.client.topics))):
                beats.setdefault(address, _Beat()).members.append(member)
        for topic in self._clients.produced_topics:
            for address in self._masters(topic):
                beats.setdefault(address, _Beat()).topics.append(topic)
        return beats

    def _masters(self, topic: str) -> list[str]:
        """Returns the addresses of a topic's masters. Without a cached route, requests the route for a later round."""
        route = self._brokers.routes.cached(topic)
        if route is None:
            self._unknown.setdefault(topic)
            return []
        return [broker.master_address for broker in route.broker_datas if broker.master_address]

    async def _look_for_unknown(self) -> None:
        """Requests up to _LOOK_UPS of the missing routes. The next rounds request the others."""
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
            self._brokers.client.failure_log.report(f"can't find the brokers of topic {topic}", e)
        else:
            self._beating.wake(_SOON_S)
