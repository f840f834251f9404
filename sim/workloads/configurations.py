"""Changes of the brokers' configuration at run time. A changed value must survive a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.broker.admin.broker_config import properties_of
from sim.cluster import BROKER_PORT, Program
from sim.scene import Scene
from sim.workloads.base import Workload

#: Keys that can be changed at run time, with acceptable values.
_CHOICES = {
    "flushIntervalCommitLog": ("100", "900"),
    "flushConsumerOffsetInterval": ("1000", "8000"),
    "longPollingEnable": ("true", "false"),
    "maxTransferCountOnMessageInMemory": ("1", "5", "32"),
    "popCkStayBufferTime": ("2000", "10000"),
    "popPollingSize": ("1", "1024"),
    "registerNameServerPeriod": ("10000", "15000"),
    "transactionCheckInterval": ("3000", "6000"),
    "transactionOpBatchInterval": ("500", "3000"),
}
_CHANGES = 8
_PAUSE_S = 8.0


class Configurations(Workload):
    """An administrator that changes random keys."""

    network = 22

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        #: {broker: {key: value}} of the successful changes.
        self._set: dict[str, dict[str, str]] = {}
        self._is_done = False
        self.add("configurator", self._configure)

    def is_done(self) -> bool:
        return self._is_done

    async def _configure(self, program: Program) -> None:
        async with self.admin() as admin:
            for _ in range(_CHANGES):
                await asyncio.sleep(_PAUSE_S * 2 * self.chance.random())
                broker = self.chance.choice(self.scene.servers.brokers)
                key = self.chance.choice(sorted(_CHOICES))
                value = self.chance.choice(_CHOICES[key])
                address = [f"{broker.host.address}:{BROKER_PORT}"]
                await self.scene.until_done(
                    program,
                    lambda: admin.update_broker_config(address, {key: value}),  # noqa: B023
                )
                self.scene.history.note(self.scene.now(), f"{broker.name} has {key}={value}")
                self._set.setdefault(broker.name, {})[key] = value
        self._is_done = True

    def problems(self) -> Iterator[str]:
        for name, values in self._set.items():
            broker = self.scene.servers.running.get(name)
            has = properties_of(broker.config) if broker is not None else {}
            for key, value in values.items():
                if has.get(key) != value:
                    yield f"{name} was told {key}={value} and has {has.get(key)}"
