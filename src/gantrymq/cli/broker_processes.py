"""`BrokerProcesses` runs several brokers of one configuration, for example one for each processor core.

Each process is a broker of its own. Its name, ports and directories have its number, so that clients see a cluster of
`count` brokers. One page has the metrics of all processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gantrymq.broker.config import BrokerConfig
from gantrymq.cli.server_processes import ServerProcesses
from gantrymq.config import format_properties, from_properties
from gantrymq.errors import ConfigError
from gantrymq.metrics import MetricsServer
from gantrymq.remoting.address import reachable
from gantrymq.store.config import StoreConfig

log = logging.getLogger(__name__)

#: Distance of the ports of two processes. A broker uses three: `listenPort` - 2, `listenPort` and `listenPort` + 1.
PORT_STEP = 10
#: The time for the metrics of one process, in seconds.
_PAGE_TIMEOUT_S = 3.0


class BrokerProcesses:
    """Runs `count` brokers. Must be created in a running event loop.

    Args:
        properties: Returns the configuration, before each start of a process.
        count: Number of processes.

    Raises:
        ConfigError: The configuration is invalid, or has a proxy beside the broker.
    """

    def __init__(self, properties: Callable[[], Mapping[str, str]], count: int) -> None:
        self._properties = properties
        keys = properties()
        if keys.get("proxyMode"):
            raise ConfigError("--processes and proxyMode exclude each other: start 'gantry proxy' by itself")
        numbered = [_numbered(keys, n) for n in range(count)]
        configs = [from_properties(BrokerConfig, one, source="the broker's configuration") for one in numbered]
        self.address = ", ".join(reachable(config.bind_address, config.listen_port) for config in configs)
        self._processes = ServerProcesses("broker", count, self._configuration)
        self._metrics: _MergedMetrics | None = None
        if (page := from_properties(BrokerConfig, keys, source="the broker's configuration").metrics_page) is not None:
            pages = [reachable(config.bind_address, config.metrics_port) for config in configs]
            self._metrics = _MergedMetrics(pages, host=page[0], port=page[1])

    @property
    def pids(self) -> dict[int, int]:
        """{number: pid} of the running processes."""
        return self._processes.pids

    async def start(self) -> None:
        """Starts the brokers and the page with the metrics. Raises GantryError."""
        if self._metrics is not None:
            await self._metrics.start()
        try:
            await self._processes.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops all brokers. A second call has no effect."""
        await self._processes.stop()
        if self._metrics is not None:
            await self._metrics.stop()

    def _configuration(self, n: int) -> str:
        return format_properties(_numbered(self._properties(), n))


def _numbered(properties: Mapping[str, str], n: int) -> dict[str, str]:
    """Returns the configuration of process `n`."""
    config = from_properties(BrokerConfig, properties, source="the broker's configuration")
    store = from_properties(
        StoreConfig, {"storePathRootDir": str(Path.home() / "store"), **properties}, source="the configuration"
    )
    keys = {
        **properties,
        "brokerName": f"{config.broker_name}-{n}",
        "listenPort": str(config.listen_port + n * PORT_STEP),
        "storePathRootDir": str(store.store_path_root_dir / str(n)),
    }
    if "haListenPort" in properties:
        keys["haListenPort"] = str(int(properties["haListenPort"]) + n * PORT_STEP)
    if store.store_path_commit_log is not None:
        keys["storePathCommitLog"] = str(store.store_path_commit_log / str(n))
    if (page := config.metrics_page) is not None:
        keys["metricsPort"] = str(page[1] + 1 + n)
    return keys


class _MergedMetrics(MetricsServer):
    """Serves the metrics of the pages at HOST:PORT together. A page that does not respond is left out."""

    def __init__(self, pages: Iterable[str], *, host: str, port: int) -> None:
        super().__init__(list, host=host, port=port)
        self._pages = list(pages)

    async def page(self) -> bytes:
        return merged([page for page in await asyncio.gather(*map(_fetched, self._pages)) if page is not None])


async def _fetched(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_PAGE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                response = await reader.read(-1)
            finally:
                writer.close()
    except OSError as e:
        log.warning("no metrics of the broker with the page %s: %s", address, e or "no response in time")
        return None
    return response.partition(b"\r\n\r\n")[2].decode()


def merged(pages: Iterable[str]) -> bytes:
    """Returns one page in Prometheus's format with the samples of all pages. Each metric has its comments once."""
    comments: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        name = ""
        for line in page.splitlines():
            if line.startswith("#"):
                _, kind, name, *_ = line.split(" ", 3)
                comments.setdefault(name, {}).setdefault(kind, line)
            elif line:
                samples.setdefault(name, []).append(line)
    lines = [line for name in comments for line in (*comments[name].values(), *samples.get(name, ()))]
    return "".join(f"{line}\n" for line in lines).encode()
