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

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.lifecycle import CLOSE_TIMEOUT_S
from gantrymq.client.name_server_discovery import (
    POLL_INTERVAL_S,
    fetch_name_servers,
    is_discovery_url,
    split_addresses,
)
from gantrymq.client.routes import REFRESH_INTERVAL_S, YOUNG_INTERVAL_S, Routes
from gantrymq.client.troubles import Troubles
from gantrymq.errors import ClientClosed
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
#: A broker whose connection was lost is tried again after so long, and after twice as long each time.
RECONNECT_S = 0.25
#: A producer waits for a former master that says nothing for so long after another is known.
FORMER_S = 0.5
#: A broker that has not answered a heartbeat while somebody waited so long isn't waited for again.
IN_VAIN_S = 0.1

_instance_number = itertools.count(1)


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
        )
        self.api = BrokerApi(self.remoting)
        self.troubles = Troubles()
        discover = partial(fetch_name_servers, discovery) if discovery else None
        self.routes = Routes(self.api, name_servers, discover, self.troubles)
        self._producer_data = producer_data
        self._consumer_data = consumer_data
        #: The brokers that this client was announced to, in vain or not; those that know it; those that did.
        self._announced: set[str] = set()
        self._greeted: set[str] = set()
        self._lost: set[str] = set()
        #: Heartbeats under way.
        self._greeting: dict[str, asyncio.Task[None]] = {}
        #: Brokers whose heartbeats were waited for in vain, or failed; until they are heard of again.
        self._given_up: set[str] = set()
        #: Masters in whose place there are others, and when this client learned of that, loop time.
        self._former: dict[str, float] = {}
        self._leaving = Repeating("the end of waiting for former masters", self._leave_former)
        self._is_closing = False
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
        ]
        if producer_data is not None:
            self.routes.watch(self._route_changed)
        if discovery is not None:
            self._jobs.append(Repeating("the search for NameServers", self.routes.rediscover, POLL_INTERVAL_S))

    def start(self) -> None:
        """Begins to refresh routes and to send heartbeats."""
        for job in self._jobs:
            job.start()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Takes the group off the brokers that were told of it, for so long at most, and closes the connections."""
        self._is_closing = self.troubles.is_closing = True
        await asyncio.gather(*(job.stop() for job in self._jobs))
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
        """The broker has forgotten this client, or will: it is told again as soon as it can be reached."""
        self._announced.discard(address)
        if address in self._greeted:
            self._greeted.discard(address)
            self._lost.add(address)
            self._reconnect_s = RECONNECT_S
            self._reconnecting.wake(self._reconnect_s)

    async def _reconnect(self) -> float:
        """Tries those brokers whose connections were lost; how long to wait until the next time, s."""
        self._lost &= self._broker_addresses()
        for address in self._lost:
            # One that hangs isn't waited for.
            self._begin_greeting(address)
        if any(len(ids) > 1 and not self._lost.isdisjoint(ids.values()) for ids in self.routes.all_brokers().values()):
            # Their slaves may be all that is left, or another is master now. One without slaves stays in the routes: it
            # is used again as soon as it is there, not when a NameServer has told of it.
            await self.routes.refresh_all()
            self._lost &= self._broker_addresses()
        self._lost -= self._greeted
        if not self._lost:
            return inf
        self._reconnect_s = min(2 * self._reconnect_s, HEARTBEAT_INTERVAL_S)
        return self._reconnect_s

    def _route_changed(self, topic: str) -> None:
        """Masters that were told of this producer may be masters no more."""
        former = self._announced - self._broker_addresses()
        if former:
            now = asyncio.get_running_loop().time()
            self._former |= {address: now for address in former if address not in self._former}
            self._leaving.wake(FORMER_S)

    def _leave_former(self) -> float:
        """One that lives answers what it was sent; when to look again, s."""
        now = asyncio.get_running_loop().time()
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
