"""ClientInstance: what a producer or consumer has in common: connections, routes, heartbeats.

Source: client/impl/factory/MQClientInstance. In Java all producers and consumers of a process share one; here each has
its own, with its own client id.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from functools import partial

from gantrymq.background.repeating import Repeating
from gantrymq.client.broker_api import BrokerApi
from gantrymq.client.lifecycle import CLOSE_TIMEOUT_S
from gantrymq.client.name_server_discovery import (
    POLL_INTERVAL_S,
    fetch_name_servers,
    is_discovery_url,
    split_addresses,
)
from gantrymq.client.routes import REFRESH_INTERVAL_S, Routes
from gantrymq.errors import ClientClosed
from gantrymq.logs import peer_log
from gantrymq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, ProducerData
from gantrymq.protocol.bodies.route import MASTER_ID
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.connection import CLOSE_TIMEOUT_S as REMOTING_CLOSE_TIMEOUT_S
from gantrymq.remoting.connection import RequestHandler, RpcHook

log = peer_log(__name__)

#: heartbeatBrokerInterval.
HEARTBEAT_INTERVAL_S = 30.0

_instance_number = itertools.count(1)


def local_ip() -> str:
    """The IPv4 address of the interface that leads out, 127.0.0.1 where none does. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1, RFC 5737
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _new_instance_name() -> str:
    return f"{os.getpid()}#{next(_instance_number)}#{time.time_ns():x}"


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
        ssl_context: ssl.SSLContext | None = None,
        hooks: Sequence[RpcHook] = (),
        instance_name: str | None = None,
    ) -> None:
        discovery: str | None = None
        if isinstance(name_servers, str):
            if is_discovery_url(name_servers):
                discovery, name_servers = name_servers, []
            else:
                name_servers = split_addresses(name_servers)
        self.ip = local_ip()
        self.client_id = f"{self.ip}@{instance_name or _new_instance_name()}"
        self.remoting = RemotingClient(handlers, ssl_context=ssl_context, hooks=hooks)
        self.api = BrokerApi(self.remoting)
        self.routes = Routes(self.api, name_servers, partial(fetch_name_servers, discovery) if discovery else None)
        self._producer_data = producer_data
        self._consumer_data = consumer_data
        #: The brokers that this client was announced to, in vain or not; those that know it.
        self._announced: set[str] = set()
        self._greeted: set[str] = set()
        self._jobs = [
            Repeating("the refresh of routes", self.routes.refresh_all, REFRESH_INTERVAL_S),
            Repeating("the heartbeat", self.heartbeat, HEARTBEAT_INTERVAL_S),
        ]
        if discovery is not None:
            self._jobs.append(Repeating("the search for NameServers", self.routes.rediscover, POLL_INTERVAL_S))

    def start(self) -> None:
        """Begins to refresh routes and to send heartbeats."""
        for job in self._jobs:
            job.start()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Takes the group off the brokers that were told of it, for so long at most, and closes the connections."""
        await asyncio.gather(*(job.stop() for job in self._jobs))
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*(self._unregister(address) for address in self._greeted))
        except TimeoutError:
            log.info("not all brokers answered that this client closes; they notice the closed connections")
        finally:
            await self.remoting.close(min(timeout_s, REMOTING_CLOSE_TIMEOUT_S))

    # -- heartbeats ---------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Tells every known broker of this client. Failures are logged: the next one comes in 30 s."""
        addresses = self._broker_addresses()
        self._announced &= addresses
        self._greeted &= addresses
        await self._greet(addresses)

    async def greet_new_brokers(self) -> None:
        """Tells those brokers of this client that it was never announced to.

        Where that failed the next heartbeat does it: nobody waits for a broker that is gone more than once.
        """
        await self._greet(self._broker_addresses() - self._announced)

    async def greet_again(self, address: str) -> None:
        """Tells a broker that has forgotten this client, after a restart or a broken connection."""
        await self._greet({address})

    def _broker_addresses(self) -> set[str]:
        # A producer has nothing to do with slaves.
        return {
            address
            for replicas in self.routes.all_brokers().values()
            for broker_id, address in replicas.items()
            if broker_id == MASTER_ID or self._consumer_data is not None
        }

    async def _greet(self, addresses: set[str]) -> None:
        if self._producer_data is None and self._consumer_data is None:
            return
        data = HeartbeatData(
            client_id=self.client_id,
            producer_data_set=[self._producer_data] if self._producer_data else [],
            consumer_data_set=[self._consumer_data] if self._consumer_data else [],
        )

        self._announced |= addresses

        async def greet(address: str) -> None:
            try:
                await self.api.heartbeat(address, data)
                self._greeted.add(address)
            except ClientClosed:
                pass
            except Exception as e:
                # Whatever it is (hooks are the user's), who heartbeats goes on.
                self._greeted.discard(address)
                log.warning("heartbeat to broker %s failed: %s", address, e)

        await asyncio.gather(*(greet(address) for address in addresses))

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
