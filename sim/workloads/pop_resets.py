"""Offset resets of POP groups, one of them orderly: acknowledged messages are delivered again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.popping.simple_consumer import SimpleConsumer
from gantrymq.errors import GantryError
from sim.cluster import Program
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload
from sim.workloads.ordered_pops import OrderlySimpleConsumer

_TOPIC = "parcels"
_QUEUES = 2
_MESSAGES = 40
_GROUPS = {"carriers": SimpleConsumer, "orderly-carriers": OrderlySimpleConsumer}
_RESETS = 4
_INVISIBLE_S = 20.0
#: (broker name, queue id) -> offset.
Offsets = dict[tuple[str, int], int]


class PopResets(Workload):
    """One message in five is not acknowledged.

    The committed offset stays there while later messages are acknowledged.
    """

    network = 34
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        self._left = len(_GROUPS)
        #: (group, time of the reset in seconds, offsets, names of the messages stored by then).
        self._resets: list[tuple[str, float, Offsets, frozenset[str]]] = []
        self.add("dispatcher", self._send)
        for group in _GROUPS:
            self.add(f"{group}-0", self._carry)
            self.add(f"chief-of-{group}", self._reset)
            scene.reads[group] = _TOPIC
            scene.rewound.add(group)

    def is_done(self) -> bool:
        return not self._left and not any(True for _ in self._missing())

    async def _send(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC, _QUEUES)
        self._is_made.set()
        await self.send_all(program, _TOPIC, _MESSAGES, 1.0)

    async def _carry(self, program: Program) -> None:
        await self._is_made.wait()
        group = program.name.removesuffix("-0")
        consumer = _GROUPS[group](self.scene.names, group)
        consumer.subscribe(_TOPIC)
        assert program.ending is not None
        async with consumer:
            while not program.ending.is_set():
                try:
                    for message in await consumer.receive(4, invisible_time=_INVISIBLE_S, timeout=3):
                        name = self.scene.receive(message, group, program.name)
                        if self.chance.random() < 0.8:
                            await consumer.ack(message)
                        else:
                            self.scene.history.note(self.scene.now(), f"{group} forgets {name}")
                except GantryError as e:
                    self.scene.history.fail(self.scene.now(), program.name, e)
                    await asyncio.sleep(AGAIN_S)

    async def _reset(self, program: Program) -> None:
        await self._is_made.wait()
        group = program.name.removeprefix("chief-of-")
        async with self.admin() as admin:
            for _ in range(_RESETS):
                await asyncio.sleep(self.chance.uniform(5, 20))
                told_at = self.scene.now()
                stored = frozenset(
                    sent.name for sent in self.scene.history.sent.values() if sent.topic == _TOPIC and sent.place
                )
                reset = self.chance.choice((self._to_the_begin, self._to_what_is_committed))
                offsets = await self.scene.until_done(program, lambda: reset(admin, group))  # noqa: B023
                self._resets.append((group, told_at, offsets, stored))
                self.scene.history.note(self.scene.now(), f"{group} is sent back to {offsets}")
        self._left -= 1

    async def _to_the_begin(self, admin: AdminClient, group: str) -> Offsets:
        answer = await admin.reset_offset(group, _TOPIC, 0)
        return {(queue.broker_name, queue.queue_id): offset for queue, offset in answer.items()}

    async def _to_what_is_committed(self, admin: AdminClient, group: str) -> Offsets:
        """Resets to the committed offset. Acknowledgements of later messages are void.

        As in Java, a reset to an offset before the first message is refused. Retention can delete the message at the
        committed offset, so the reset is then to the first message.
        """
        offsets: Offsets = {}
        for broker in (await admin.topic_route(_TOPIC)).broker_datas:
            if (address := broker.master_address) is None:
                continue
            for queue_id in range(_QUEUES):
                committed = await admin.committed_offset(address, group, _TOPIC, queue_id) or 0
                transport = transport_of(admin)
                first = await transport.api.min_offset(address, _TOPIC, queue_id, transport.timeout_ms)
                offset = max(committed, first)
                await admin.reset_queue_offset(address, group, _TOPIC, queue_id, offset)
                offsets[broker.broker_name, queue_id] = offset
        return offsets

    def problems(self) -> Iterator[str]:
        return self._missing()

    def _missing(self) -> Iterator[str]:
        if self.scene.has_server_faults:
            # As in Java, a broker that dies or is cut off may lose the reset.
            return
        for group, told_at, offsets, stored in self._resets:
            again = {one.name for one in self.scene.history.received if one.group == group and one.at >= told_at}
            for name in sorted(stored - again):
                sent = self.scene.history.sent[name]
                broker, queue_id, offset = sent.place or ("", 0, 0)
                # Retention may have removed the message.
                if offset >= offsets.get((broker, queue_id), offset + 1) and not self.scene.is_excused(sent):
                    yield f"{group} was sent back at {told_at:.1f} s, and had {name} not once more"
