"""`BrokerProcesses` runs several brokers of one configuration, for example one for each processor core.

Each process is a separate broker. The number of the process is part of the broker's name, ports and directories, so
that clients see a cluster of `count` brokers. One page has the metrics of all processes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from gantrymq.broker.config import BrokerConfig
from gantrymq.cli.server_processes import ServerProcesses
from gantrymq.config import format_properties, from_properties, load_properties
from gantrymq.errors import ConfigError
from gantrymq.metrics import MetricsServer
from gantrymq.remoting.address import reachable
from gantrymq.store.config import StoreConfig

log = logging.getLogger(__name__)

#: The difference between the ports of two processes. A broker uses three: `listenPort` - 2, `listenPort` and
#: `listenPort` + 1.
PORT_STEP = 10
#: File with the changes of one process at run time, in the `config` directory of its store.
_CHANGES = "changes.conf"
_SOURCE = "the broker's configuration"
#: The timeout for the metrics of one process, in seconds.
_PAGE_TIMEOUT_S = 3.0
#: The largest page of one process, in bytes. A larger one is left out.
_PAGE_BYTES = 256 * 1024 * 1024


class BrokerProcesses:
    """Runs `count` brokers. Must be created in a running event loop.

    Args:
        properties: Returns the configuration, before each start of a process.
        count: Number of processes.

    Raises:
        ConfigError: The configuration is invalid, or several brokers can't share it.
    """

    def __init__(self, properties: Callable[[], Mapping[str, str]], count: int) -> None:
        self._properties = properties
        keys = properties()
        common = from_properties(BrokerConfig, keys, source=_SOURCE)
        _check(keys, common, count)
        numbered = [_numbered(keys, n) for n in range(count)]
        configs = [from_properties(BrokerConfig, one, source=_SOURCE) for one in numbered]
        self.address = ", ".join(reachable(config.bind_address, config.listen_port) for config in configs)
        self._processes = ServerProcesses("broker", count, self._configuration)
        self._metrics: _MergedMetrics | None = None
        if (page := common.metrics_page) is not None:
            pages = [reachable(*config.metrics_page) for config in configs if config.metrics_page is not None]
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
        keys = _numbered(self._properties(), n)
        changes = Path(keys["brokerConfigPath"])
        if not changes.exists():
            changes.parent.mkdir(parents=True, exist_ok=True)
            changes.touch()
        return format_properties(keys)


def _numbered(properties: Mapping[str, str], n: int) -> dict[str, str]:
    """Returns the configuration of process `n`."""
    config = from_properties(BrokerConfig, properties, source=_SOURCE)
    store = from_properties(StoreConfig, {"storePathRootDir": str(Path.home() / "store"), **properties}, source=_SOURCE)
    directory = store.store_path_root_dir / str(n)
    keys = {
        "brokerName": f"{config.broker_name}-{n}",
        "listenPort": str(config.listen_port + n * PORT_STEP),
        "storePathRootDir": str(directory),
        "brokerConfigPath": str(directory / "config" / _CHANGES),
    }
    if "haListenPort" in properties:
        keys["haListenPort"] = str(int(properties["haListenPort"]) + n * PORT_STEP)
    if store.store_path_commit_log is not None:
        keys["storePathCommitLog"] = _numbered_paths(store.store_path_commit_log, n)
    changeable = {}
    if store.read_only_commit_log_store_paths is not None:
        changeable["readOnlyCommitLogStorePaths"] = _numbered_paths(store.read_only_commit_log_store_paths, n)
    if (page := config.metrics_page) is not None:
        keys["metricsPort" if config.metrics_port else "metricsPromExporterPort"] = str(page[1] + 1 + n)
    changes = Path(keys["brokerConfigPath"])
    changed = load_properties(changes) if changes.exists() else {}
    return {**properties, **changeable, **changed, **keys}


def _numbered_paths(paths: Iterable[Path], n: int) -> str:
    return ",".join(str(path / str(n)) for path in paths)


def _check(properties: Mapping[str, str], config: BrokerConfig, count: int) -> None:
    """Raises ConfigError for a configuration that several brokers can't share."""
    problem = ""
    if count < 1:
        problem = f"--processes {count}: at least 1"
    elif properties.get("proxyMode"):
        problem = "--processes and proxyMode exclude each other: start 'gantry proxy' by itself"
    elif properties.get("haMasterAddress"):
        problem = "--processes and haMasterAddress exclude each other: each slave needs the address of its own master"
    elif config.listen_port == 0:
        problem = "--processes needs a listenPort: the ports of the processes are numbered from it on"
    if problem:
        raise ConfigError(problem)


class _MergedMetrics(MetricsServer):
    """Serves the metrics of all pages (at HOST:PORT) together. A page that does not respond is left out."""

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
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d{1,9})\r", head)
                if b" 200 " not in head.partition(b"\r\n")[0] or length is None:
                    raise OSError("not a page of metrics")
                if int(length[1]) > _PAGE_BYTES:
                    raise OSError(f"a page of {int(length[1])} bytes: at most {_PAGE_BYTES} are read")
                return (await reader.readexactly(int(length[1]))).decode()
            finally:
                writer.close()
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as e:
        log.warning("no metrics of the broker with the page %s: %s", address, e or "no response in time")
        return None


def merged(pages: Iterable[str]) -> bytes:
    """Returns one page in Prometheus's format with the samples of all pages, and the comments of each metric once."""
    comments: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for page in pages:
        name = ""
        # Not by `splitlines`: a label can contain other line separators.
        for line in page.split("\n"):
            if line.startswith("# "):
                # The line is "# HELP NAME TEXT" or "# TYPE NAME KIND".
                kind, name = line[2:].split(" ", 2)[:2]
                comments.setdefault(name, {}).setdefault(kind, line)
            elif line:
                samples.setdefault(name, []).append(line)
    lines = [line for name in comments for line in (*comments[name].values(), *samples.get(name, ()))]
    return "".join(f"{line}\n" for line in lines).encode()
