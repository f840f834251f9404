"""A NameServer, a controller and three brokers of one name, each in its own process. One broker is the master."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from wait_until import until

from gantrymq.client.admin.client import AdminClient
from gantrymq.testing.processes import HOST, START_TIMEOUT_S, ServerProcess

NAME = "broker-a"
#: Time until the controller considers a killed master dead, in ms.
MISSED_MS = 2000
_WAIT_S = 120.0


class FailoverCluster:
    """Context manager that runs the cluster. `namesrv_addr` has the same form as in ProcessCluster."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._brokers: dict[str, ServerProcess] = {}
        self.namesrv_addr = ""
        self._controller = ""

    def __enter__(self) -> Self:
        try:
            files = {
                "kvConfigPath": str(self._directory / "kv.json"),
                "configStorePath": str(self._directory / "n.properties"),
            }
            self.namesrv_addr = self._start("namesrv", "namesrv", **files).address
            store = str(self._directory / "controller")
            self._controller = self._start("controller", "controller", controllerStorePath=store).address
            for name in ("a", "b", "c"):
                broker = self._start_broker(name)
                self._brokers[broker.address] = broker
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    async def until_in_sync(self, admin: AdminClient) -> None:
        """Returns when all brokers are in the sync-state set."""

        async def same() -> bool:
            info = (await admin.sync_state_sets(self._controller, [NAME])).get(NAME)
            return info is not None and {each.broker_address for each in info.in_sync_replicas} == set(self._brokers)

        await until(same, _WAIT_S)

    async def kill_master(self, admin: AdminClient) -> None:
        """Kills the master and returns when the controller has elected another one."""
        first = await self._master(admin)
        os.kill(self._brokers[first].pid, signal.SIGKILL)

        async def is_another() -> bool:
            return await self._master(admin) not in ("", first)

        await until(is_another, _WAIT_S)

    async def _master(self, admin: AdminClient) -> str:
        info = (await admin.sync_state_sets(self._controller, [NAME])).get(NAME)
        return (info.master_address or "") if info is not None else ""

    def _start(self, command: str, name: str, **properties: str) -> ServerProcess:
        given = {"listenPort": "0", "bindAddress": HOST} | properties
        server = ServerProcess(command, name, self._directory, given, ())
        self._stack.callback(server.stop)
        server.wait_until_ready(time.monotonic() + START_TIMEOUT_S)
        return server

    def _start_broker(self, name: str) -> ServerProcess:
        return self._start(
            "broker",
            name,
            brokerIP1=HOST,
            brokerName=NAME,
            namesrvAddr=self.namesrv_addr,
            storePathRootDir=str(self._directory / name),
            mappedFileSizeCommitLog=str(16 * 1024 * 1024),
            enableControllerMode="true",
            controllerAddr=self._controller,
            allAckInSyncStateSet="true",
            minInSyncReplicas="2",
            controllerHeartBeatTimeoutMills=str(MISSED_MS),
            brokerHeartbeatInterval="200",
            checkSyncStateSetPeriod="200",
            haSendHeartbeatInterval="200",
        )
