"""Two stores in controller mode, one after the other the master, on simulated machines; the controller is never wrong.

`python tests/sim/failovers_run.py SEED...` prints a line for each run. A master that was deposed hears of it late, and
writes on. What both had on their disks is acknowledged: it must be in the log in the end, byte for byte. With
`--planted` slaves keep what a deposed master wrote.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from links_run import FAULTS_S, HOST, PORT, TIMING, Links, main
from sim.cluster import Program

from gantrymq.errors import ReplicationError, StoreBusy
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.master import HaMaster
from gantrymq.replication.sending import AutoSwitchSending
from gantrymq.replication.slave import HaSlave
from gantrymq.store.message_store import MessageStore

#: So late a broker hears of another master, s.
_LATE_S = 4.0


class Failovers(Links):
    """One run; `master` and `slave` are but names here."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        #: Epoch, its master, and from when on each of the two knows it.
        self.elected: list[tuple[int, str, dict[str, float]]] = [(1, "master", {})]
        #: The bytes of the log that were acknowledged.
        self.log = bytearray()

    @property
    def acknowledged(self) -> int:
        return len(self.log)

    @acknowledged.setter
    def acknowledged(self, value: int) -> None:
        """Set by `acknowledge` alone."""

    async def _power(self) -> None:
        await self._restarted(self.chance.choice(self._all), machine=True)

    async def _restarted(self, program: Program, *, machine: bool) -> None:
        if self.elected[-1][1] == program.name:
            self._elect(self.chance.choice(self._all).name)
        # Who starts asks the controller first: nobody goes on as the master that he was.
        for _, _, known in self.elected:
            known[program.name] = 0.0
        await super()._restarted(program, machine=machine)

    async def _reset(self) -> None:
        self._elect(self.chance.choice(self._all).name)

    def _elect(self, name: str) -> None:
        now = self.world.loop.time()
        known = {program.name: now + self.chance.uniform(0, _LATE_S) for program in self._all}
        self.elected.append((self.elected[-1][0] + 1, name, known))

    def _known(self, name: str) -> tuple[int, str]:
        """The last election that a broker has heard of."""
        now = self.world.loop.time()
        return next((epoch, master) for epoch, master, known in reversed(self.elected) if known.get(name, 0.0) <= now)

    def _check(self) -> None:
        for program in self._all:
            log = program.look(lambda name=program.name: self._bytes(self.stores[name], 0, len(self.log)))
            if log != self.log:
                self.problems.append(f"{program.name} lacks something that was acknowledged")

    # -- programs -----------------------------------------------------------------------------------------------

    async def _master(self, program: Program) -> None:
        await self._replica(program)

    async def _slave(self, program: Program) -> None:
        await self._replica(program)

    async def _replica(self, program: Program) -> None:
        store = self._open(program)
        file = EpochFile(Path("/store"))
        file.load(store.max_physical_offset)
        chance = Random(f"{self.world.seed} {program.name} {self.world.loop.time()}")
        known = (0, "")
        role: HaMaster | HaSlave | None = None
        while True:
            now_known = self._known(program.name)
            if now_known != known:
                known = now_known
                if role is not None:
                    await role.stop()
                role = None
                # One that was elected before another, which its log knows already, is no master.
                with suppress(ReplicationError):
                    role = self._new_role(program, store, file, *known)
                    await role.start()
            await asyncio.sleep(0.02)
            if isinstance(role, HaMaster):
                if self.world.loop.time() < FAULTS_S:
                    with suppress(StoreBusy):
                        for _ in range(chance.randrange(6)):
                            queue = store.queue("orders", chance.randrange(3))
                            store.append(queue, 0, 0, 1, HOST, 0, chance.randbytes(chance.randrange(900)), b"", 0)
                self._acknowledge(role)
            elif role is not None and role.refusal is not None:
                self.refusals.add(role.refusal)

    def _new_role(
        self, program: Program, store: MessageStore, file: EpochFile, epoch: int, master: str
    ) -> HaMaster | HaSlave:
        if master != program.name:
            store.set_slave(True)
            broker_id = self._all.index(program)
            new_link = partial(AutoSwitchLink, store, Hello(broker_id), file)
            slave = HaSlave(store, ReplicationConfig(**TIMING), broker_id=broker_id, new_link=new_link)
            address = next(each.host.address for each in self._all if each.name == master)
            slave.set_master(f"{address}:{PORT}")
            return slave
        file.begin(epoch, store.max_physical_offset)
        store.set_slave(False)
        config = ReplicationConfig(ha_listen_port=PORT, ha_transfer_batch_size=625, **TIMING)
        return HaMaster(
            store,
            config,
            host=program.host.address,
            on_acknowledged=lambda: None,
            sending=lambda: AutoSwitchSending(store, file.epochs, lambda: len(self.log)),
        )

    def _acknowledge(self, master: HaMaster) -> None:
        """What a master's clients are told: both have it on their disks."""
        end = min(master.slaves.replicated(2), master.store.flushed_offset)
        if end > len(self.log):
            self.log += self._bytes(master.store, len(self.log), end)

    @staticmethod
    def _bytes(store: MessageStore, begin: int, end: int) -> bytes:
        pieces: list[Any] = []
        while begin < min(end, store.max_physical_offset):
            piece = store.log_slice(begin, end - begin)
            assert piece is not None
            pieces.append(piece)
            begin += len(piece)
        return b"".join(pieces)


def plant() -> None:
    def keeps(link: AutoSwitchLink, master: Any) -> int:
        return link._store.max_physical_offset

    AutoSwitchLink._cut = keeps  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Failovers, plant)
