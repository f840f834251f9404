"""An administrator resets a group to an earlier time. The group must receive all messages since then again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from sim.cluster import Program
from sim.history import Sent
from sim.scene import Scene
from sim.system import EPOCH_S
from sim.workloads.base import Workload

_TOPIC = "ledger"
_GROUP = "auditors"
_MESSAGES = 50


class Offsets(Workload):
    """Resets the group twice in a run."""

    network = 24
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._is_done = False
        #: (time of the request, target time) of the successful resets.
        self._resets: list[tuple[float, float]] = []
        #: (target time, messages received by then). Earlier messages that the group lacks are skipped.
        self._skips: list[tuple[float, frozenset[str]]] = []
        self.add("bookkeeper", self._send)
        self.add("auditor-0", self._read)
        self.add("auditor-1", self._read)
        self.add("chief", self._reset)
        scene.reads[_GROUP] = _TOPIC
        scene.rewound.add(_GROUP)
        scene.excuses.append(self._is_skipped)

    def is_done(self) -> bool:
        return self._is_done

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, 1.0)

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _GROUP)

    async def _reset(self, program: Program) -> None:
        await self._is_made.wait()
        async with self.admin() as admin:
            for _ in range(2):
                await asyncio.sleep(self.chance.uniform(15, 40))
                now = self.scene.now()
                begin = max(now - self.chance.uniform(1, 30), 0.0)
                at_ms = int((EPOCH_S + begin) * 1000)
                self._skips.append((begin, frozenset(self.scene.had[_GROUP])))
                await self.scene.until_done(
                    program,
                    lambda: admin.reset_offset(_GROUP, _TOPIC, at_ms),  # noqa: B023
                )
                self._resets.append((now, begin))
                self.scene.history.note(self.scene.now(), f"{_GROUP} is sent back to {begin:.3f}")
        # Redelivery takes this time.
        await asyncio.sleep(20)
        self._is_done = True

    def _is_skipped(self, sent: Sent) -> bool:
        """Returns true if a reset to a later time skipped the message."""
        return sent.topic == _TOPIC and any(
            sent.asked_at <= begin and sent.name not in had for begin, had in self._skips
        )

    def problems(self) -> Iterator[str]:
        if self.has_faults:
            # As in Java, an absent consumer continues at its old offset, and may commit it.
            return
        received = [one for one in self.scene.history.received if one.group == _GROUP]
        for told_at, begin in self._resets:
            again = {one.name for one in received if one.at >= told_at}
            for one in received:
                sent = self.scene.history.sent[one.name]
                if one.at < told_at and sent.asked_at > begin + 0.01 and one.name not in again:
                    yield f"{_GROUP} was sent back to {begin:.3f} at {told_at:.3f}, and had {one.name} not once more"
