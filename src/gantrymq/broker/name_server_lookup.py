"""NameServerLookup: finds the NameServers by DNS, or on the page of an address server.

Sources: BrokerController.updateNamesrvAddr, BrokerOuterAPI (updateNameServerAddressListByDnsLookup,
fetchNameServerAddr).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from gantrymq.broker.context import BrokerContext
from gantrymq.broker.feature import Feature
from gantrymq.errors import ConnectFailed
from gantrymq.logs import peer_log
from gantrymq.remoting.address import format_address, parse_address
from gantrymq.remoting.name_server_discovery import discovery_url, fetch_name_servers
from gantrymq.system.network import SOCK_STREAM, UnknownHost

log = peer_log(__name__)

#: Longest wait of a starting broker for the first lookup, in seconds.
_START_WAIT_S = 1.0
#: Timeout of the lookup of one host, in seconds. A resolver repeats its request after 5 s.
_LOOKUP_TIMEOUT_S = 10.0


class NameServerLookup(Feature):
    """Looks up the NameServers while `fetchNameSrvAddrByDnsLookup` or `fetchNamesrvAddrByAddressServer` is true.

    With DNS, `namesrvAddr` has host names, and each address of a host is a NameServer. The address server is only used
    without `namesrvAddr`. If a lookup of a host or of the page fails, the addresses of its last successful lookup stay
    in use.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._events = context.events
        #: The first lookup has succeeded or failed.
        self._tried = asyncio.Event()
        #: HOST:PORT of each NameServer in `namesrvAddr` -> its addresses in the last successful lookup.
        self._resolved: dict[str, list[str]] = {}
        #: The `namesrvAddr` of the last lookup by DNS.
        self._looked_up: list[str] | None = None
        self._job = context.jobs.repeating("look up the NameServers", self._look_up)
        context.events.config_changed.subscribe(self._config_changed)

    async def start(self) -> None:
        """Waits at most _START_WAIT_S for the first lookup."""
        config = self._config
        if config.fetch_name_srv_addr_by_dns_lookup or config.fetch_namesrv_addr_by_address_server:
            self._job.start(0.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_WAIT_S):
                    await self._tried.wait()

    async def stop(self) -> None:
        await self._job.stop()

    def _config_changed(self) -> None:
        self._job.wake()

    async def _look_up(self) -> float:
        """Returns the seconds to the next lookup. Raises ConnectFailed if a host or the page can't be looked up."""
        config = self._config
        try:
            if config.namesrv_addr:
                if config.fetch_name_srv_addr_by_dns_lookup:
                    await self._look_up_hosts(list(config.namesrv_addr))
                else:
                    self._found(config.namesrv_addr)
                return config.update_name_server_addr_period / 1000
            if config.fetch_namesrv_addr_by_address_server:
                url = discovery_url(config.rmq_address_server_domain, config.rmq_address_server_sub_group)
                self._found(await fetch_name_servers(url))
            else:
                self._found([])
            return config.fetch_namesrv_addr_interval / 1000
        finally:
            self._tried.set()

    async def _look_up_hosts(self, hosts: list[str]) -> None:
        """Looks up each HOST:PORT. If the lookup of a host fails, its last addresses stay in use.

        Raises the first ConnectFailed at the end, so that the failure is logged and the next lookup comes soon.
        """
        problem: BaseException | None = None
        resolved: dict[str, list[str]] = {}
        results = await asyncio.gather(*map(_addresses, hosts), return_exceptions=True)
        for host, result in zip(hosts, results, strict=True):
            if isinstance(result, BaseException):
                problem = problem or result
                resolved[host] = self._resolved.get(host, [])
            else:
                resolved[host] = result
        self._resolved = resolved
        found = list(dict.fromkeys(address for host in hosts for address in resolved[host]))
        if found:
            self._found(found, is_by_dns=self._looked_up == hosts)
            self._looked_up = hosts
        if problem is not None:
            raise problem

    def _found(self, addresses: list[str], *, is_by_dns: bool = False) -> None:
        """Sets the NameServers, and publishes an event if they have changed."""
        config = self._config
        if set(addresses) != set(config.name_servers):
            log.info("found NameServers: %s", ", ".join(addresses) or "none")
            config.set_name_servers(addresses)
            self._events.name_servers_changed.publish(is_by_dns)


async def _addresses(address: str) -> list[str]:
    """Returns IP:PORT for each IP address of HOST:PORT. Raises ConnectFailed.

    If the host has IPv4 addresses, the result omits its IPv6 addresses, because they belong to the same NameServers.
    """
    try:
        host, port = parse_address(address)
        async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
            entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=SOCK_STREAM)
    except TimeoutError:
        raise ConnectFailed(
            f"the NameServer {address} can't be resolved: DNS does not respond within {_LOOKUP_TIMEOUT_S:g} s", address
        ) from None
    except (UnknownHost, UnicodeError, ValueError) as e:
        raise ConnectFailed(f"the NameServer {address} can't be resolved: {e}", address) from e
    ips = [str(sockaddr[0]) for *_, sockaddr in entries]
    by_ipv4 = [ip for ip in ips if ":" not in ip]
    return [format_address(ip, port) for ip in by_ipv4 or ips]
