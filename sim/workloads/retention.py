"""Deletion of old log files while consumers read. Deleted messages may be missing, but nothing may block."""

from __future__ import annotations

import asyncio

from sim.cluster import BROKER_PORT, Program
from sim.history import Sent
from sim.plan import FAULTS_S
from sim.scene import Scene
from sim.workloads.base import Workload


class Retention(Workload):
    """An administrator deletes expired files early, as if space were short."""

    network = 27

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._deleted_at = 0.0
        self._is_done = False
        self.add("janitor", self._clean)
        scene.excuses.append(self._is_gone)

    def is_done(self) -> bool:
        return self._is_done

    def _is_gone(self, sent: Sent) -> bool:
        """Returns true if the message may be deleted. Its log file is unknown, so all earlier messages count."""
        return sent.asked_at <= self._deleted_at

    async def _clean(self, program: Program) -> None:
        await asyncio.sleep(self.chance.uniform(20, FAULTS_S))
        addresses = [f"{broker.host.address}:{BROKER_PORT}" for broker in self.scene.servers.brokers]
        async with self.admin() as admin:
            for hours in ("0", "72"):
                for address in addresses:
                    await self.scene.until_done(
                        program,
                        lambda: admin.update_broker_config([address], {"fileReservedTime": hours}),  # noqa: B023
                    )
                    if hours == "0":
                        await self.scene.until_done(
                            program,
                            lambda: admin.delete_expired_commit_log([address]),  # noqa: B023
                        )
                        self._deleted_at = self.scene.now()
                # The broker deletes files one by one in the background.
                await asyncio.sleep(5)
                self._deleted_at = self.scene.now() if hours == "0" else self._deleted_at
        self._is_done = True
