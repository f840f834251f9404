"""ClientInstance: what a producer or consumer has in common: connections, routes, heartbeats.

Source: client/impl/factory/MQClientInstance. In Java all producers and consumers of a process share one; here each has
its own, with its own client id.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.failover import is_role_change
from gantrymq.client.lifecycle import CLOSE_TIMEOUT_S
from gantrymq.client.name_server_discovery import (
    POLL_INTERVAL_S,
    fetch_name_servers,
    is_discovery_url,
    split_addresses,
)
from gantrymq.client.route_renewal import RouteRenewal
from gantrymq.client.routes import REFRESH_INTERVAL_S, YOUNG_INTERVAL_S, Routes
from gantrymq.client.troubles import Troubles
from gantrymq.errors import BrokerError, BrokerUnavailable, ClientClosed, GantryError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S as REMOTING_CLOSE_TIMEOUT_S
from gantrymq.remoting.connection import RequestHandler, RpcHook
from gantrymq.system import clock, network, tls

log = peer_log(__name__)

#: heartbeatBrokerInterval.
HEARTBEAT_INTERVAL_S = 30.0
#: A broker whose connection was lost is tried again after so long, and after twice as long each time; at least once
#: in RECONNECT_AT_FIRST_S during the time that an election takes.
RECONNECT_S = 0.25
RECONNECT_AT_FIRST_S = 0.5
ELECTION_S = 30.0
#: The routes of so many topics are requested while a broker is lost.
LOST_TOPICS = 8
#: If a broker owes responses and nothing arrives for PROBE_S, the client sends a heartbeat. If nothing arrives until
#: SILENCE_S, the client closes the connection. A long poll waits longer than that for messages; the heartbeat's
#: response shows that its broker is alive.
PROBE_S = 3.0
SILENCE_S = 6.0
#: How often the client checks for silent brokers, s.
SILENCE_CHECK_S = 0.5
#: When the route names another master, requests to the former one wait for so long for a sign of life.
FORMER_S = 0.5
#: A broker that has not answered a heartbeat while somebody waited so long isn't waited for again.
IN_VAIN_S = 0.1

_instance_number = itertools.count(1)


class _Lost(NamedTuple):
    """A broker whose connection was lost: when, by the monotonic clock, and some topics whose routes named it."""

    since: float
    topics: list[str]


def _new_instance_name() -> str:
    return f"{network.process_id()}#{next(_instance_number)}#{clock.time_ns():x}"


class ClientInstance:
    """Connections, routes and heartbeats of one producer or consumer.

    `name_servers` are HOST:PORT, in one string with `;` between them; or the URL of a page that says them.
    `producer_data` or `consumer_data` is what brokers are told of it; `handlers` answer what brokers ask. The client
    id is IP@INSTANCE_NAME, a new one each time where no `instance_name` is given.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        *,
        producer_data: ProducerData | None = None,
        consumer_data: ConsumerData | None = None,
        handlers: Mapping[int, RequestHandler] | None = None,
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        instance_name: str | None = None,
    ) -> None:
        discovery: str | None = None
        if isinstance(name_servers, str):
            if is_discovery_url(name_servers):
                discovery, name_servers = name_servers, []
            else:
                name_servers = split_addresses(name_servers)
        self.ip = network.local_ip()
        self.client_id = f"{self.ip}@{instance_name or _new_instance_name()}"
        self.remoting = RemotingClient(
            handlers,
            ssl_context=ssl_context,
            hooks=hooks,
            on_open=self._connected,
            on_close=self._disconnected,
            silence_s=SILENCE_S,
        )
        self.api = BrokerApi(self.remoting)
        self.troubles = Troubles()
        discover = partial(fetch_name_servers, discovery) if discovery else None
        self.routes = Routes(self.api, name_servers, discover, self.troubles)
        self._renewal = RouteRenewal(self.routes, self.troubles)
        self._producer_data = producer_data
        self._consumer_data = consumer_data
        #: The brokers that this client was announced to, in vain or not; those that know it; those that did.
        self._announced: set[str] = set()
        self._greeted: set[str] = set()
        #: Brokers whose connections were lost.
        self._lost: dict[str, _Lost] = {}
        #: Heartbeats under way.
        self._greeting: dict[str, asyncio.Task[None]] = {}
        #: Brokers whose heartbeats were waited for in vain, or failed; until they are heard of again.
        self._given_up: set[str] = set()
        #: Brokers in whose place the routes name others, and when the routes changed, monotonic clock.
        self._former: dict[str, float] = {}
        self._leaving = Repeating("the end of waiting for former masters", self._leave_former)
        self._is_closing = False
        #: Silent brokers that were sent a heartbeat, and when.
        self._probed: dict[str, float] = {}
        self._reconnect_s = RECONNECT_S
        self._reconnecting = Repeating("the search for lost brokers", self._reconnect, after_error_s=RECONNECT_S)
        looking_again = Repeating("the look at young routes", self.routes.look_again, after_error_s=YOUNG_INTERVAL_S)
        self.routes.on_new = partial(looking_again.wake, YOUNG_INTERVAL_S)
        self._jobs = [
            Repeating("the refresh of routes", self.routes.refresh_all, REFRESH_INTERVAL_S),
            looking_again,
            Repeating("the heartbeat", self.heartbeat, HEARTBEAT_INTERVAL_S),
            self._reconnecting,
            self._leaving,
            Repeating("the check for silent brokers", self._check_silence, SILENCE_CHECK_S),
        ]
        self.routes.watch(self._route_changed)
        if discovery is not None:
            self._jobs.append(Repeating("the search for NameServers", self.routes.rediscover, POLL_INTERVAL_S))

    def start(self) -> None:
        """Begins to refresh routes and to send heartbeats."""
        self._renewal.start()
        for job in self._jobs:
            job.start()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Takes the group off the brokers that were told of it, for so long at most, and closes the connections."""
        self._is_closing = self.troubles.is_closing = True
        await asyncio.gather(self._renewal.stop(), *(job.stop() for job in self._jobs))
        for greeting in self._greeting.values():
            greeting.cancel()
        await self._end_of(list(self._greeting))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._unregister(address) for address in self._greeted))
        except TimeoutError:
            log.info("not all brokers answered that this client closes; they notice the closed connections")
        finally:
            await self.remoting.close(min(timeout_s, REMOTING_CLOSE_TIMEOUT_S))

    # -- brokers that fail --------------------------------------------------------------------------------------

    def report_failure(self, topic: str, error: GantryError) -> bool:
        """Requests the topic's route if the failure of a request to a broker can mean that the route is stale.

        Returns whether it can. Concurrent reports share one request (`RouteRenewal`).
        """
        if isinstance(error, RemotingError | BrokerUnavailable) or is_role_change(error):
            self._renewal.request(topic)
            return True
        return False

    async def route_change(self, topic: str, timeout_s: float) -> None:
        """Returns when the topic's route has changed, or after `timeout_s`."""
        await self._renewal.change(topic, timeout_s)

    async def recover(self, topic: str, broker_name: str, error: GantryError, pause_s: float) -> float:
        """Reports a failure; how long to wait until the next request to the broker, s.

        If the route can be stale, the pause takes place here and ends when the route changes.
        """
        if not self.report_failure(topic, error):
            return pause_s
        asked = error.address if isinstance(error, BrokerError | RemotingError) else None
        master = self.routes.master_address(broker_name)
        # The route may have changed while the request was in flight.
        if not is_role_change(error) or master is None or master == asked:
            await self._renewal.change(topic, pause_s)
        return 0.0

    # -- heartbeats ---------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Tells every known broker of this client, as it is now. Failures are logged: the next one comes in 30 s."""
        addresses = self._broker_addresses()
        self._announced &= addresses
        self._greeted &= addresses
        self._given_up &= addresses
        # What is under way may say what was true before.
        await self._end_of(self._greeting.keys() & addresses)
        await self._greet(addresses)

    async def greet_new_brokers(self, timeout_s: float | None = None) -> None:
        """Tells those brokers of this client that don't know it yet, or any more; for so long at most.

        Whoever calls it meanwhile waits for the same heartbeats. Where one fails it is repeated later: nobody waits for
        a broker that is gone more than once.
        """
        addresses = self._broker_addresses()
        for address in addresses - self._announced:
            self._begin_greeting(address)
        await self._end_of(addresses - self._greeted - self._given_up, timeout_s)

    async def greet_again(self, address: str) -> None:
        """Tells a broker that has forgotten this client."""
        await self._greet({address})

    def _connected(self, address: str) -> None:
        """A broker that has started again knows nobody, and knows clients by their connections."""
        if address in self._broker_addresses() and address not in self._greeting:
            self._given_up.discard(address)
            self._begin_greeting(address)

    def _disconnected(self, address: str) -> None:
        """The broker has forgotten this client, or will: it gets a heartbeat as soon as it can be reached."""
        self._announced.discard(address)
        names = {name for name, replicas in self.routes.all_brokers().items() if address in replicas.values()}
        self._greeted.discard(address)
        if names and address not in self._lost and not self._is_closing:
            # An address that one route brings counts for all topics of the broker.
            self._lost[address] = _Lost(clock.monotonic(), self.routes.topics_of(names)[-LOST_TOPICS:])
            self._reconnect_s = RECONNECT_S
            self._reconnecting.wake(self._reconnect_s)

    async def _reconnect(self) -> float:
        """Connects with lost brokers, and requests the routes that named them; how long until the next time, s.

        A slave may be master instead, or be all that is left. A lost broker that has left the routes is followed until
        an election must have ended.
        """
        now, addresses = clock.monotonic(), self._broker_addresses()
        for address, lost in list(self._lost.items()):
            is_member = address in addresses
            if address in self._greeted or (not is_member and now - lost.since > ELECTION_S):
                del self._lost[address]
                continue
            if is_member:
                # One that hangs isn't waited for.
                self._begin_greeting(address)
            for topic in lost.topics:
                self._renewal.request(topic)
        if not self._lost:
            return inf
        is_young = any(now - lost.since <= ELECTION_S for lost in self._lost.values())
        most_s = RECONNECT_AT_FIRST_S if is_young else HEARTBEAT_INTERVAL_S
        self._reconnect_s = min(2 * self._reconnect_s, most_s)
        return self._reconnect_s

    def _check_silence(self) -> None:
        """Sends heartbeats to silent brokers, and closes the connections of those that stay silent."""
        now, brokers = clock.monotonic(), self.routes.addresses()
        silent = set(self.remoting.silent(PROBE_S))
        for address in self._probed.keys() - silent:
            del self._probed[address]
        for address in silent:
            probed = self._probed.setdefault(address, now)
            # Not by the silence alone: if this process was stopped, the response waits in the socket.
            if now - probed >= SILENCE_S - PROBE_S:
                del self._probed[address]
                log.warning("%s has sent nothing for %g s: closing the connection", address, SILENCE_S)
                self.remoting.abort(address)
            elif probed == now and address in brokers:
                self._begin_greeting(address)

    def _route_changed(self, topic: str) -> None:
        """A broker that this client was announced to may be no master any more, or be gone."""
        former = self._announced - self._broker_addresses()
        if former:
            now = clock.monotonic()
            self._former |= {address: now for address in former if address not in self._former}
            self._leaving.wake(FORMER_S)

    def _leave_former(self) -> float:
        """Ends what waits for former masters that are silent: a live one answers; when to look again, s."""
        now = clock.monotonic()
        for address, since in list(self._former.items()):
            if now - since >= FORMER_S:
                del self._former[address]
                self.remoting.leave_silent(address, since)
        return min(self._former.values()) + FORMER_S - now if self._former else inf

    def _broker_addresses(self) -> set[str]:
        # A producer has nothing to do with slaves; who is of no group has to tell nobody.
        if self._producer_data is None and self._consumer_data is None:
            return set()
        return {
            address
            for replicas in self.routes.all_brokers().values()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or self._consumer_data is not None
        }

    async def _greet(self, addresses: Collection[str]) -> None:
        for address in addresses:
            self._begin_greeting(address)
        await self._end_of(addresses)

    async def _end_of(self, addresses: Collection[str], timeout_s: float | None = None) -> None:
        under_way = {self._greeting[address]: address for address in addresses if address in self._greeting}
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=timeout_s)
            # Who had hardly any time, or was cancelled, has learned nothing of the broker.
            if timeout_s is not None and timeout_s >= IN_VAIN_S:
                self._given_up.update(under_way[greeting] for greeting in late)

    def _begin_greeting(self, address: str) -> None:
        """Unless it is under way: it may be what made the connection."""
        if address not in self._greeting and not self._is_closing:
            self._announced.add(address)
            task = asyncio.get_running_loop().create_task(self._greet_one(address))
            self._greeting[address] = task
            task.add_done_callback(lambda done: self._greeting_ended(address))

    def _greeting_ended(self, address: str) -> None:
        del self._greeting[address]

    async def _greet_one(self, address: str) -> None:
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[self._producer_data] if self._producer_data else [],
            consumer_data_set=[self._consumer_data] if self._consumer_data else [],
        )
        try:
            await self.api.heartbeat(address, data)
            self._greeted.add(address)
            self._given_up.discard(address)
            self.troubles.over(address)
        except ClientClosed:
            pass
        except Exception as e:
            # Whatever it is (hooks are the user's), who heartbeats goes on.
            self._greeted.discard(address)
            self._given_up.add(address)
            self.troubles.tell(f"heartbeat to broker {address} failed", e)

    async def _unregister(self, address: str) -> None:
        if self._producer_data is None and self._consumer_data is None:
            return
        try:
            await self.api.unregister(
                address,
                self.client_id,
                producer_group=self._producer_data.group_name if self._producer_data else None,
                consumer_group=self._consumer_data.group_name if self._consumer_data else None,
            )
        except Exception as e:
            # Whatever it is (hooks are the user's), the broker notices the closed connection.
            log.info("broker %s was not told that this client closes: %s", address, e)
