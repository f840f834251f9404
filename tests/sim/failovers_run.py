"""Simulated failovers between two stores in controller mode. The controller itself has no faults.

`python tests/sim/failovers_run.py SEED...` prints a line for each run. A deposed master is notified late and
continues to write. Bytes that both stores had on disk count as acknowledged: they must be in the final log. With
`--planted`, slaves keep the bytes that a deposed master wrote.
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
from gantrymq.remoting.listener import ListenOptions
from gantrymq.replication.autoswitch_frames import Hello
from gantrymq.replication.autoswitch_link import AutoSwitchLink
from gantrymq.replication.config import ReplicationConfig
from gantrymq.replication.epoch_file import EpochFile
from gantrymq.replication.log_transfer import AutoSwitchLogTransfer
from gantrymq.replication.master import HaMaster
from gantrymq.replication.slave import HaSlave
from gantrymq.store.message_store import MessageStore

#: Longest delay until a broker is notified of another master, in seconds.
_LATE_S = 4.0


class Failovers(Links):
    """One run. `master` and `slave` are only names here."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        #: (epoch, master, time at which each of the two is notified of it).
        self.elected: list[tuple[int, str, dict[str, float]]] = [(1, "master", {})]
        #: Acknowledged bytes of the log.
        self.log = bytearray()

    @property
    def acknowledged(self) -> int:
        return len(self.log)

    @acknowledged.setter
    def acknowledged(self, value: int) -> None:
        """Does nothing: only `acknowledge` changes the value."""

    async def _power(self) -> None:
        await self._restarted(self.chance.choice(self._all), machine=True)

    async def _restarted(self, program: Program, *, machine: bool) -> None:
        if self.elected[-1][1] == program.name:
            self._elect(self.chance.choice(self._all).name)
        # A starting broker first requests the role from the controller, so it never continues as master on its own.
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
        """Returns the last election of which the broker was notified."""
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
                # If the log has a later epoch, the broker refuses to become master of an earlier one.
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
            ListenOptions(program.host.address, config.ha_listen_port),
            on_acknowledged=lambda: None,
            log_transfer=lambda: AutoSwitchLogTransfer(store, file.epochs, lambda: len(self.log)),
        )

    def _acknowledge(self, master: HaMaster) -> None:
        """Adds the bytes that both have on disk to the acknowledged log, as a master reports them to clients."""
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
