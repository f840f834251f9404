"""`ProxyProcesses` runs several processes of a proxy on the same ports, or one beside a broker. Restarts dead ones.

The processes share only the ports. The kernel distributes connections among them (SO_REUSEPORT), so clients see
several proxies. A proxy receives its state of a client over the client's own connection. If the client connects to
another process, it sends this state again.
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

#: The delay until a dead process is replaced, in seconds.
AGAIN_S = 1.0
#: The time after which a process that doesn't stop is killed, in seconds.
STOP_S = 15.0


class ProxyProcesses:
    """Runs `count` processes with the configuration `properties`. Must be created in a running event loop.

    Raises GantryError if a port is in use, and ConfigError for an invalid configuration.
    """

    def __init__(self, properties: Mapping[str, str], count: int) -> None:
        config = from_properties(ProxyConfig, properties, source="the proxy's configuration")
        # These sockets never listen. They reserve the ports while no process is running.
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
        #: {number: pid} of the running processes.
        self.pids: dict[int, int] = {}

    async def start(self) -> None:
        """Starts the processes, and returns when all of them serve requests.

        Raises GantryError if one can't start. The process has printed the reason.
        """
        for job in self._jobs:
            job.start(0.0)
        try:
            await asyncio.gather(*self._ready)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops the processes. Idempotent."""
        await asyncio.gather(*(job.stop() for job in self._jobs))
        for sock in self._sockets:
            sock.close()
        self._directory.cleanup()

    async def _run(self, n: int) -> None:
        """Runs a process, and raises GantryError when it ends. If the task is cancelled, it stops the process."""
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
