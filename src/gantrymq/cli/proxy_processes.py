"""`ProxyProcesses` runs several processes of a proxy on the same ports, or one beside a broker.

The processes share only the ports. The kernel distributes connections among them (SO_REUSEPORT), so clients see
several proxies. A client sends its state to the proxy over its connection. If it connects to another process, it sends
the state again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from gantrymq.cli.server_processes import ServerProcesses
from gantrymq.config import from_properties
from gantrymq.errors import GantryError
from gantrymq.metrics_export import MetricsExporterType
from gantrymq.proxy.config import ProxyConfig
from gantrymq.remoting.address import reachable
from gantrymq.remoting.listener import bound_socket


class ProxyProcesses:
    """Runs `count` processes with the configuration `properties`. Must be created in a running event loop.

    Raises GantryError if a port is in use, and ConfigError for an invalid configuration.
    """

    def __init__(self, properties: Mapping[str, str], count: int) -> None:
        self._properties = properties
        self._config = config = from_properties(ProxyConfig, properties, source="the proxy's configuration")
        # These sockets never listen. They reserve the ports while no process is running.
        self._sockets = [bound_socket(config.bind_address, config.grpc_server_port, shared=True)]
        try:
            self._sockets.append(bound_socket(config.bind_address, config.remoting_listen_port, shared=True))
        except GantryError:
            self._sockets[0].close()
            raise
        self._grpc_port, self._remoting_port = (sock.getsockname()[1] for sock in self._sockets)
        self.address = reachable(config.bind_address, self._grpc_port)
        self._processes = ServerProcesses("proxy", count, self._configuration)

    @property
    def pids(self) -> dict[int, int]:
        """{number: pid} of the running processes."""
        return self._processes.pids

    async def start(self) -> None:
        """Works like `ServerProcesses.start`."""
        try:
            await self._processes.start()
        except BaseException:
            self._close()
            raise

    async def stop(self) -> None:
        """Stops the processes. A second call has no effect."""
        await self._processes.stop()
        self._close()

    def _close(self) -> None:
        for sock in self._sockets:
            sock.close()

    def _configuration(self, n: int) -> str:
        keys = {
            **self._properties,
            "grpcServerPort": str(self._grpc_port),
            "remotingListenPort": str(self._remoting_port),
            "sharedPorts": "true",
        }
        config = self._config
        if config.metrics_exporter_type is MetricsExporterType.PROM:
            if config.metrics_prom_exporter_port:
                keys["metricsPromExporterPort"] = str(config.metrics_prom_exporter_port + n)
        elif config.has_exporter:
            # The processes have the same name, so a collector or the log would mix their metrics.
            keys["metricsLabel"] = f"{config.metrics_label},process:{n}".removeprefix(",")
        return json.dumps(keys)
