"""ClientInstance: connections, routes and heartbeats of a producer or consumer (`MQClientInstance`).

In Java all producers and consumers of a process share one instance. Here, each producer and consumer has its own
instance, with its own client id.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

import msgspec

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.failover import is_role_change
from gantrymq.client.failure_log import FailureLog
from gantrymq.client.lifecycle import CLOSE_TIMEOUT_S
from gantrymq.client.route_renewal import RouteRenewal
from gantrymq.client.routes import REFRESH_INTERVAL_S, YOUNG_INTERVAL_S, Routes
from gantrymq.errors import BrokerError, BrokerUnavailable, ClientClosed, GantryError, RemotingError
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S as REMOTING_CLOSE_TIMEOUT_S
from gantrymq.remoting.connection import FirstLook, RequestHandler, RpcHook
from gantrymq.remoting.name_server_discovery import (
    POLL_INTERVAL_S,
    fetch_name_servers,
    is_discovery_url,
    split_addresses,
    unit_url,
)
from gantrymq.system import clock, network, tls

log = peer_log(__name__)

#: Interval of heartbeats (heartbeatBrokerInterval), s.
HEARTBEAT_INTERVAL_S = 30.0
#: Pause before the first reconnect to a lost broker, s. The pause doubles after each attempt. Its limit is
#: RECONNECT_AT_FIRST_S during ELECTION_S (the time of an election), and later the heartbeat interval.
RECONNECT_S = 0.25
RECONNECT_AT_FIRST_S = 0.5
ELECTION_S = 30.0
#: Largest number of routes that are requested again while a broker is lost or silent.
LOST_TOPICS = 8
#: If requests are pending and the broker sends nothing for PROBE_S seconds, the client sends a heartbeat. If the broker
#: sends nothing for SILENCE_S seconds, the client closes the connection. During a longer long poll, the response to the
#: heartbeat shows that the broker is alive.
PROBE_S = 3.0
SILENCE_S = 6.0
#: Interval of the check for silent brokers, s.
SILENCE_CHECK_S = 0.5
#: If the route has a new master, requests to a former master that has sent nothing for this time fail, s.
FORMER_S = 0.5
#: If a call has waited at least this long for the heartbeat of a broker, later calls do not wait for it, s.
IN_VAIN_S = 0.1

_instance_number = itertools.count(1)


class _Lost(NamedTuple):
    """Time when a broker's connection was lost (monotonic, s), and some topics whose routes had the broker."""

    since: float
    topics: list[str]


def _new_instance_name() -> str:
    return f"{network.process_id()}#{next(_instance_number)}#{clock.time_ns():x}"


class ClientInstance:
    """Connections, routes and heartbeats of one producer or consumer.

    Args:
        name_servers: HOST:PORT, several separated by `;`, or the URL of a page that lists them.
        group_data: Producer group, or consumer group with its subscriptions, for heartbeats. None: no group.
        handlers: Handlers of brokers' requests, by request code.
        ssl_context: Encrypts the connections.
        hooks: Called before and after each request.
        instance_name: Part of the client id IP@INSTANCE_NAME. By default a new name for each instance.
        unit_name: If it isn't empty, the client id ends with @UNIT_NAME, and the URL of the page with -UNIT_NAME.
        on_error: Called with each background error that is logged.
        first_look: Handles responses before they are decoded. See `Connection`.
    """

    def __init__(
        self,
        name_servers: Sequence[str] | str,
        *,
        group_data: ProducerData | ConsumerData | None = None,
        handlers: Mapping[int, RequestHandler] | None = None,
        ssl_context: tls.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        instance_name: str | None = None,
        unit_name: str = "",
        on_error: Callable[[Exception], object] | None = None,
        first_look: FirstLook | None = None,
    ) -> None:
        discovery: str | None = None
        if isinstance(name_servers, str):
            if is_discovery_url(name_servers):
                discovery, name_servers = unit_url(name_servers, unit_name), []
            else:
                name_servers = split_addresses(name_servers)
        self.ip = network.local_ip()
        self.client_id = f"{self.ip}@{instance_name or _new_instance_name()}" + (f"@{unit_name}" if unit_name else "")
        self.remoting = RemotingClient(
            handlers,
            ssl_context=ssl_context,
            hooks=hooks,
            on_open=self._connected,
            on_close=self._disconnected,
            silence_s=SILENCE_S,
            first_look=first_look,
        )
        self.api = BrokerApi(self.remoting)
        self.failure_log = FailureLog(on_error)
        discover = partial(fetch_name_servers, discovery) if discovery else None
        self.routes = Routes(self.api, name_servers, discover, self.failure_log, self._look_again_soon)
        self._renewal = RouteRenewal(self.routes, self.failure_log)
        self._producer_data = group_data if isinstance(group_data, ProducerData) else None
        self._consumer_data = group_data if isinstance(group_data, ConsumerData) else None
        #: Brokers to which a heartbeat was sent. The next attribute has the brokers that accepted the last heartbeat.
        self._announced: set[str] = set()
        self._greeted: set[str] = set()
        #: Brokers whose connections were lost.
        self._lost: dict[str, _Lost] = {}
        #: Heartbeats in flight.
        self._greeting: dict[str, asyncio.Task[None]] = {}
        #: Brokers whose heartbeats failed or timed out. Callers do not wait for these brokers until they respond again.
        self._given_up: set[str] = set()
        #: Brokers that a route change removed, and the time of the change (monotonic, s).
        self._former: dict[str, float] = {}
        self._leaving = Repeating("the end of waiting for former masters", self._leave_former)
        self._is_closing = False
        #: True until the first complete routes, if heartbeats wait for them.
        self._is_postponed = False
        #: Silent brokers, with the time at which the client sent each of them a heartbeat.
        self._probed: dict[str, float] = {}
        self._reconnect_s = RECONNECT_S
        self._reconnecting = Repeating("the search for lost brokers", self._reconnect, after_error_s=RECONNECT_S)
        self._looking_again = Repeating(
            "the look at young routes", self.routes.look_again, after_error_s=YOUNG_INTERVAL_S
        )
        self._jobs = [
            Repeating("the refresh of routes", self.routes.refresh_all, REFRESH_INTERVAL_S),
            self._looking_again,
            Repeating("the heartbeat", self.heartbeat, HEARTBEAT_INTERVAL_S),
            self._reconnecting,
            self._leaving,
            Repeating("the check for silent brokers", self._check_silence, SILENCE_CHECK_S),
        ]
        self.routes.watch(self._route_changed)
        if discovery is not None:
            self._jobs.append(Repeating("the search for NameServers", self.routes.rediscover, POLL_INTERVAL_S))

    def start(self) -> None:
        """Starts the jobs that refresh routes and send heartbeats."""
        self._renewal.start()
        for job in self._jobs:
            job.start()

    def set_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> None:
        """Replaces the subscriptions that later heartbeats contain."""
        if self._consumer_data is not None:
            self._consumer_data = msgspec.structs.replace(
                self._consumer_data, subscription_data_set=list(subscriptions)
            )

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Unregisters the group from the brokers, within at most `timeout_s` seconds, and closes the connections."""
        self._is_closing = True
        self.failure_log.close()
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

    def _look_again_soon(self) -> None:
        self._looking_again.wake(YOUNG_INTERVAL_S)

    # -- brokers that fail --------------------------------------------------------------------------------------

    def report_failure(self, topic: str, error: GantryError) -> bool:
        """Requests the topic's route again if the error can mean that the route is stale. Returns whether it can.

        Concurrent reports share one request (`RouteRenewal`).
        """
        if isinstance(error, RemotingError | BrokerUnavailable) or is_role_change(error):
            self._renewal.request(topic)
            return True
        return False

    async def route_change(self, topic: str, timeout_s: float) -> None:
        """Waits until the topic's route has changed, for at most `timeout_s` seconds."""
        await self._renewal.change(topic, timeout_s)

    async def recover(self, topic: str, broker_name: str, error: GantryError, pause_s: float) -> float:
        """Reports a failure. Returns the pause before the next request to the broker, in seconds.

        If the route can be stale, the method waits until the route changes or `pause_s` ends, and returns 0.
        """
        if not self.report_failure(topic, error):
            return pause_s
        asked = error.address if isinstance(error, BrokerError | RemotingError) else None
        master = self.routes.master_address(broker_name)
        # The route may have changed while the request was in flight.
        if not is_role_change(error) or master is None or master == asked:
            await self._renewal.change(topic, pause_s)
        return 0.0

    def connected_former_master(self, broker_name: str) -> str | None:
        """Returns HOST:PORT of the master of a broker that has left the routes, if its connection is open.

        A NameServer removes a broker when it loses the broker's connection, although the broker may still run. A
        consumer then revokes the broker's queues, but can still commit their offsets and unlock them.
        """
        address = self.routes.former_master(broker_name)
        return address if address is not None and self.remoting.is_connected(address) else None

    # -- heartbeats ---------------------------------------------------------------------------------------------

    def postpone_heartbeats(self) -> None:
        """Sends no heartbeats until there are routes, and all of them are complete.

        With an incomplete route, some brokers would list this consumer as a member and others would not. The other
        members would then leave queues to this consumer that it does not read.
        """
        self._is_postponed = True

    @property
    def is_postponed(self) -> bool:
        """Whether heartbeats wait for complete routes. Stays false after the routes were complete once."""
        if self._is_postponed:
            self._is_postponed = self.routes.is_any_awaited or not self.routes.all_brokers()
        return self._is_postponed

    async def heartbeat(self) -> None:
        """Sends heartbeats to all brokers of the routes. Failures are logged; the next heartbeat follows in 30 s."""
        addresses = self._broker_addresses()
        self._announced &= addresses
        self._greeted &= addresses
        self._given_up &= addresses
        # Heartbeats in flight may have outdated contents.
        await self._end_of(self._greeting.keys() & addresses)
        await self._greet(addresses)

    async def greet_new_brokers(self, timeout_s: float | None = None) -> None:
        """Sends heartbeats to brokers that have not accepted any yet, and waits for at most `timeout_s` seconds.

        Concurrent calls wait for the same heartbeats. A failed heartbeat is repeated later; until the broker responds,
        further calls do not wait for it.
        """
        addresses = self._broker_addresses()
        for address in addresses - self._announced:
            self._begin_greeting(address)
        await self._end_of(addresses - self._greeted - self._given_up, timeout_s)

    async def greet_again(self, address: str) -> None:
        """Sends a heartbeat to a broker that has lost this client."""
        await self._greet({address})

    def _connected(self, address: str) -> None:
        """Sends a heartbeat over a new connection, because a restarted broker has no clients."""
        if address in self._broker_addresses() and address not in self._greeting:
            self._given_up.discard(address)
            self._begin_greeting(address)

    def _disconnected(self, address: str) -> None:
        """Records a lost connection. The broker drops this client, so it needs a heartbeat as soon as possible."""
        self._announced.discard(address)
        self._greeted.discard(address)
        topics = self._topics_of_broker(address)
        if topics and address not in self._lost and not self._is_closing:
            self._lost[address] = _Lost(clock.monotonic(), topics)
            self._reconnect_s = RECONNECT_S
            self._reconnecting.wake(self._reconnect_s)

    async def _reconnect(self) -> float:
        """Reconnects to lost brokers and requests the routes that contained them. Returns the next pause, in seconds.

        A slave may have become master, or be the only replica left. A lost broker outside of the routes is retried for
        ELECTION_S.
        """
        now, addresses = clock.monotonic(), self._broker_addresses()
        for address, lost in list(self._lost.items()):
            is_member = address in addresses
            if address in self._greeted or (not is_member and now - lost.since > ELECTION_S):
                del self._lost[address]
                continue
            if is_member:
                # Does not wait, because the broker may hang.
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
        """Sends heartbeats to silent brokers, and closes the connections of those that stay silent.

        If a broker does not answer the heartbeat at once, requests the routes that contain it again. They may have a
        new master.
        """
        now, brokers = clock.monotonic(), self.routes.addresses()
        silent = set(self.remoting.silent(PROBE_S))
        for address in self._probed.keys() - silent:
            del self._probed[address]
        for address in silent:
            probed = self._probed.setdefault(address, now)
            # The heartbeat is followed by a wait: if this process was stopped, a response may still be in the socket's
            # buffer.
            if now - probed >= SILENCE_S - PROBE_S:
                del self._probed[address]
                log.warning("%s has sent nothing for %g s: closing the connection", address, SILENCE_S)
                self.remoting.abort(address)
            elif probed == now and address in brokers:
                self._begin_greeting(address)
            else:
                for topic in self._topics_of_broker(address):
                    self._renewal.request(topic)

    def _topics_of_broker(self, address: str) -> list[str]:
        """Returns some topics whose routes contain a broker. All routes have the same address for the broker."""
        names = {name for name, replicas in self.routes.all_brokers().items() if address in replicas.values()}
        return self.routes.topics_of(names)[-LOST_TOPICS:]

    def _route_changed(self, topic: str) -> None:
        """Handles a route change: a broker that got heartbeats, such as a former master, may have left the routes."""
        former = self._announced - self._broker_addresses()
        if former:
            now = clock.monotonic()
            self._former |= {address: now for address in former if address not in self._former}
            self._leaving.wake(FORMER_S)

    def _leave_former(self) -> float:
        """Aborts requests to former masters that send nothing. Returns the next pause, in seconds."""
        now = clock.monotonic()
        for address, since in list(self._former.items()):
            if now - since >= FORMER_S:
                del self._former[address]
                self.remoting.leave_silent(address, since)
        return min(self._former.values()) + FORMER_S - now if self._former else inf

    def _broker_addresses(self) -> set[str]:
        # A producer sends no heartbeats to slaves. A client without a group sends no heartbeats at all.
        if self.is_postponed or (self._producer_data is None and self._consumer_data is None):
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
            # After a very short wait, or if the caller was cancelled, the broker is not considered unreachable.
            if timeout_s is not None and timeout_s >= IN_VAIN_S:
                self._given_up.update(under_way[greeting] for greeting in late)

    def _begin_greeting(self, address: str) -> None:
        """Sends a heartbeat unless one is in flight. A new connection for a heartbeat also calls this method."""
        if address not in self._greeting and not self._is_closing and not self.is_postponed:
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
            self.failure_log.recovered(address)
        except ClientClosed:
            pass
        except Exception as e:
            # Any error, because hooks are user code. The heartbeats to other brokers continue.
            self._greeted.discard(address)
            self._given_up.add(address)
            self.failure_log.report(f"heartbeat to broker {address} failed", e)

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
            # Any error, because hooks are user code. The broker notices the closed connection.
            log.info("can't unregister from broker %s: %s", address, e)
