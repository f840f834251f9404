"""BrokerWithProxy: a broker whose configuration says `proxyMode=LOCAL`, with a proxy in a process of its own.

In Java both are threads of one process, which share its heap and its pauses. Here neither stalls the other, and the
proxy ends with its broker, however that ends.
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

_LOCAL, _CLUSTER = "LOCAL", "CLUSTER"


def wants_proxy(properties: Mapping[str, str]) -> bool:
    """Whether a broker's configuration says so. Raises ConfigError for another mode than Java's two."""
    mode = properties["proxyMode"].strip().upper()
    if mode not in (_LOCAL, _CLUSTER):
        raise ConfigError(f"proxyMode={mode[:200]}: {_LOCAL} or {_CLUSTER} is expected")
    return mode == _LOCAL


class BrokerWithProxy:
    """`properties` are the proxy's; its NameServers are the broker's if they don't say others.

    To be made in a running loop. Raises what either raises.
    """

    def __init__(self, config: BrokerConfig, properties: Mapping[str, str]) -> None:
        proxy = {
            "namesrvAddr": ";".join(config.namesrv_addr),
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


def proxy_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Of the file that `proxyConfigPath` names; none without it. Raises ConfigError."""
    need("proxy", "proxyMode=LOCAL")
    path = properties.get("proxyConfigPath", "").strip()
    return load_json(Path(path)) if path else {}
