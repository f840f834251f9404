"""Exactly-once writers: a write that is repeated after a crash or an error stores each row once."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextvars import Context

from gantrymq.client.credentials import rpc_hooks
from gantrymq.errors import GantryError
from gantrymq.remoting.client import RemotingClient
from sim import access_control
from sim.cluster import Program
from sim.history import Sent
from sim.replicas_plan import CONTROLLED
from sim.scene import AGAIN_S, Scene
from sim.workloads.base import Workload

_TOPIC, _GROUP = "rows", "row-readers"
_WRITER = "task"
_WRITES, _ROWS, _PARTS = 10, 40, 4
#: Each sharding key selects a queue.
_KEYS = 3
_RETRY_MS = 15_000
#: Share of the parts during which the writer is killed, once in each write, and the time of a part, in seconds.
_KILLED_SHARE, _PART_S = 0.2, 0.003
#: Faults with which rows that a consumer has received can be lost, so that the next attempt stores them again.
_LOSSES = ("wreck", "lies", "lying", "rot", "disaster")


class Writers(Workload):
    """A writer that is killed during some of its writes, and then repeats the write."""

    network = 37
    sends = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_made = asyncio.Event()
        #: The current write. A restarted writer repeats it.
        self._number = 0
        self._was_killed: set[int] = set()
        self.add(_WRITER, self._write_all)
        self.add("row-reader", self._read)
        scene.reads[_GROUP] = _TOPIC

    async def _read(self, program: Program) -> None:
        await self._is_made.wait()
        await self.read_all(program, _TOPIC, _GROUP)

    async def _write_all(self, program: Program) -> None:
        await self.make_topic(program, _TOPIC)
        self._is_made.set()
        while self._number < _WRITES:
            number = self._number
            try:
                await self._write(program, number)
                self._number += 1
            except GantryError as e:
                self.scene.history.fail(self.scene.now(), program.name, e)
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(self.chance.uniform(0, 8))
        self.has_sent = True

    def _kill_soon(self, program: Program) -> None:
        """Kills the writer in the next milliseconds, and starts it again."""
        process = program.host.process
        assert process is not None
        loop = self.scene.world.loop

        def kill() -> None:
            self.scene.history.note(self.scene.now(), f"{program.name} is killed in write {self._number}")
            process.kill()
            loop.call_later(1.0, program.start, context=Context())

        loop.call_later(self.chance.uniform(0, _PART_S), kill, context=Context())

    async def _write(self, program: Program, number: int) -> None:
        """Makes one attempt of a write."""
        # Imported here, because the import of pyarrow takes as long as a short run.
        import pyarrow as pa

        from gantrymq.arrow.cluster_client import ClusterClient
        from gantrymq.arrow.idempotent_sender import IdempotentSender, find_write_queues, queues_of_earlier_attempt
        from gantrymq.arrow.options import WriteOptions
        from gantrymq.arrow.row_messages import RowEncoder

        options = WriteOptions(self.scene.names.split(";"), topic=_TOPIC, retry_timeout_ms=_RETRY_MS, exactly_once=True)
        write_id = f"{_WRITER}-{number}"
        names = [_name(number, row) for row in range(_ROWS)]
        for name in names:
            self.scene.ask(Sent(name, _TOPIC, asked_at=self.scene.now()))
        self.scene.history.note(self.scene.now(), f"an attempt of write {number}")
        # Without in-place reception, which the simulated network does not have.
        remoting = RemotingClient(hooks=rpc_hooks(access_control.credentials()))
        cluster = ClusterClient(options.name_servers, _RETRY_MS, remoting=remoting)
        try:
            queues = await find_write_queues(cluster, options)
            queues = list(await queues_of_earlier_attempt(cluster, queues, write_id, 0))
            sender = IdempotentSender(cluster, queues, 0)
            encoder = RowEncoder(options, f"{write_id}-0")
            for first in range(0, _ROWS, _ROWS // _PARTS):
                if number not in self._was_killed and self.chance.random() < _KILLED_SHARE:
                    self._was_killed.add(number)
                    self._kill_soon(program)
                part = names[first : first + _ROWS // _PARTS]
                keys = [f"key-{row % _KEYS}" for row in range(first, first + len(part))]
                columns = {"body": [name.encode() for name in part], "shardingKey": keys}
                await sender.send(encoder.encode(pa.RecordBatch.from_pydict(columns)))
            sender.finish()
        finally:
            await remoting.close()
        for name in names:
            self.scene.stored(name)

    def problems(self) -> Iterator[str]:
        kinds = {fault.kind for fault in self.scene.plan.faults}
        if kinds & set(_LOSSES) or self.scene.plan.mode not in ("", CONTROLLED):
            return
        places: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for one in self.scene.history.received:
            if one.group == _GROUP:
                places[one.name].add((one.broker, one.queue, one.offset))
        for name, found in sorted(places.items()):
            if len(found) > 1:
                yield f"row {name} is stored {len(found)} times: {sorted(found)}"
        yield from self._unordered({name: min(found) for name, found in places.items()})

    def _unordered(self, places: dict[str, tuple[str, int, int]]) -> Iterator[str]:
        """Yields rows of a write that are behind a later row with the same key."""
        for number in range(_WRITES):
            for key in range(_KEYS):
                names = [_name(number, row) for row in range(key, _ROWS, _KEYS)]
                found = [places[name] for name in names if name in places]
                if found != sorted(found) or len({place[:2] for place in found}) > 1:
                    yield f"write {number} has the rows of one key at {found}"


def _name(number: int, row: int) -> str:
    return f"{_WRITER}.{number}.{row}"
