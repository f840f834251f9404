"""ProxyProcesses: processes of a proxy, several on the same ports or one beside a broker; one that dies is replaced.

They share nothing but the ports, among which the kernel shares out connections (SO_REUSEPORT): to clients they are as
several proxies. What a proxy remembers of a client came by the client's own connection, and is told anew by another.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gantrymq.background.jobs import Jobs
from gantrymq.config import from_properties
from gantrymq.errors import GantryError
from gantrymq.proxy.config import MetricsExporterType, ProxyConfig
from gantrymq.remoting.address import reachable
from gantrymq.remoting.listener import bound_socket

#: A process that died is replaced after so long, s.
AGAIN_S = 1.0
#: One that was told to stop is killed after so long, s.
STOP_S = 15.0


class ProxyProcesses:
    """`count` of them with the keys `properties`; to be made in a running loop.

    Raises GantryError when a port is taken, ConfigError for keys that can't be read.
    """

    def __init__(self, properties: Mapping[str, str], count: int) -> None:
        config = from_properties(ProxyConfig, properties, source="the proxy's configuration")
        # They are never listened on: they keep the ports while no process has them.
        self._sockets = [bound_socket(config.bind_address, config.grpc_server_port, shared=True)]
        try:
            self._sockets.append(bound_socket(config.bind_address, config.remoting_listen_port, shared=True))
        except GantryError:
            self._sockets[0].close()
            raise
        grpc_port, remoting_port = (sock.getsockname()[1] for sock in self._sockets)
        self.address = reachable(config.bind_address, grpc_port)
        self._directory = tempfile.TemporaryDirectory(prefix="gantry-proxy-")
        self._files: list[Path] = []
        for n in range(count):
            keys = {
                **properties,
                "grpcServerPort": str(grpc_port),
                "remotingListenPort": str(remoting_port),
                "sharedPorts": "true",
            }
            if config.metrics_exporter_type is MetricsExporterType.PROM and config.metrics_prom_exporter_port:
                keys["metricsPromExporterPort"] = str(config.metrics_prom_exporter_port + n)
            file = Path(self._directory.name) / f"rmq-proxy-{n}.json"
            file.write_text(json.dumps(keys))
            self._files.append(file)
        jobs = Jobs()
        self._jobs = [
            jobs.repeating(f"process {n} of the proxy", partial(self._run, n), after_error_s=AGAIN_S)
            for n in range(count)
        ]
        self._ready: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(count)]
        #: By number, those that run.
        self.pids: dict[int, int] = {}

    async def start(self) -> None:
        """Returns when all serve. Raises GantryError when one can't; it has said why."""
        for job in self._jobs:
            job.start(0.0)
        try:
            await asyncio.gather(*self._ready)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends them; once more does no harm."""
        await asyncio.gather(*(job.stop() for job in self._jobs))
        for sock in self._sockets:
            sock.close()
        self._directory.cleanup()

    async def _run(self, n: int) -> None:
        """Returns by an error alone: the process has ended. When this is cancelled, it is told to stop."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gantrymq.cli", "proxy", "-c", str(self._files[n]), "--stop-on-eof"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        ready = self._ready[n]
        self.pids[n] = process.pid
        try:
            assert process.stdout is not None
            if b"ready at" in await process.stdout.readline() and not ready.done():
                ready.set_result(None)
            code = await process.wait()
        finally:
            del self.pids[n]
            if process.returncode is None:
                await _end(process)
        error = GantryError(f"process {n} of the proxy has ended with code {code}")
        if not ready.done():
            ready.set_exception(error)
        raise error


async def _end(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
