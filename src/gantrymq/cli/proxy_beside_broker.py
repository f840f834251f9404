"""`BrokerWithProxy`: a broker with `proxyMode=LOCAL` in its configuration, and a proxy in a separate process.

In Java, both run in one process and share its heap and its GC pauses. Here, neither can stall the other. The proxy
always ends with its broker, even after a crash of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.cli.proxy_processes import ProxyProcesses
from gantrymq.errors import ConfigError
from gantrymq.extras import need
from gantrymq.proxy.config import load_json
from gantrymq.remoting.name_server_discovery import discovery_url

_LOCAL, _CLUSTER = "LOCAL", "CLUSTER"


def wants_proxy(properties: Mapping[str, str]) -> bool:
    """Whether a broker's configuration has `proxyMode=LOCAL`. Raises ConfigError for a mode that Java does not have."""
    mode = properties["proxyMode"].strip().upper()
    if mode not in (_LOCAL, _CLUSTER):
        raise ConfigError(f"proxyMode={mode[:200]}: {_LOCAL} or {_CLUSTER} is expected")
    return mode == _LOCAL


class BrokerWithProxy:
    """A broker and its proxy.

    `properties` is the configuration of the proxy. NameServers, address and cluster default to the broker's values.
    Must be created in a running event loop. Raises the errors of the broker and of the proxy.
    """

    def __init__(self, config: BrokerConfig, properties: Mapping[str, str]) -> None:
        proxy = {
            "namesrvAddr": _name_servers(config),
            "bindAddress": config.bind_address,
            "rocketMQClusterName": config.broker_cluster_name,
            **properties,
        }
        self.proxy = ProxyProcesses(proxy, 1)
        self._broker = Broker(config)
        self.address = self._broker.address

    async def start(self) -> None:
        await self._broker.start()
        try:
            await self.proxy.start()
        except BaseException:
            await self._broker.stop()
            raise

    async def stop(self) -> None:
        await self.proxy.stop()
        await self._broker.stop()


def _name_servers(config: BrokerConfig) -> str:
    """Returns the broker's NameServers, or the URL of the address server that lists them."""
    if not config.namesrv_addr and config.fetch_namesrv_addr_by_address_server:
        return discovery_url(config.rmq_address_server_domain, config.rmq_address_server_sub_group)
    return ";".join(config.namesrv_addr)


def proxy_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties in the file `proxyConfigPath`; empty without this key. Raises ConfigError."""
    need("proxy", "proxyMode=LOCAL")
    path = properties.get("proxyConfigPath", "").strip()
    return load_json(Path(path)) if path else {}
