"""Broadcasting: each consumer receives each message, and keeps its offsets in a local file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.protocol.message import MessageExt
from sim.cluster import Program
from sim.scene import Scene
from sim.workloads.base import Workload

_TOPIC = "news"
_MESSAGES = 40
_LISTENERS = 2


class Broadcasts(Workload):
    """Consumers that restart several times and continue at their offsets."""

    network = 20
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self.add("newsroom", self._send)
        for number in range(_LISTENERS):
            self.add(f"listener-{number}", self._listen)
            scene.reads[f"listener-{number}"] = _TOPIC

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, 1.0)

    async def _listen(self, program: Program) -> None:
        await self._is_made.wait()

        async def handle(message: MessageExt) -> None:
            # In a broadcast, each consumer counts as a group.
            self.scene.receive(message, program.name, program.name)

        for stay_s in (self.chance.uniform(5, 40), self.chance.uniform(5, 20), None):
            consumer = PushConsumer(
                self.scene.names,
                "listeners",
                handle,
                broadcasting=True,
                start_from="earliest",
                offset_directory=Path("/offsets"),
                instance_name="listener",
            )
            consumer.subscribe(_TOPIC)
            async with consumer:
                assert program.ending is not None
                if stay_s is None:
                    await program.ending.wait()
                else:
                    await asyncio.sleep(stay_s)

    def problems(self) -> Iterator[str]:
        for listener in [program.name for program in self.programs[1:]]:
            places = [
                (one.broker, one.queue, one.offset) for one in self.scene.history.received if one.group == listener
            ]
            if not self.has_faults and len(places) != len(set(places)):
                yield f"{listener} had a message more than once, without a fault"
