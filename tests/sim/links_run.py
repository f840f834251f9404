"""Simulated faults of a master and a slave: two stores without brokers.

Machines are killed, lose power or get disconnected.

`python tests/sim/links_run.py SEED...` prints a line for each run. The same seed gives the same run. With `--planted`,
the slave has a bug. Bytes that a slave has acknowledged must be there after its restart. At the end, both logs and all
queues must be equal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from sim import system  # noqa: E402

system.install()

from sim.cluster import Program  # noqa: E402
from sim.machine import State  # noqa: E402

from gantrymq.errors import StoreBusy  # noqa: E402
from gantrymq.protocol.record import encode_host  # noqa: E402
from gantrymq.remoting.listener import ListenOptions  # noqa: E402
from gantrymq.replication.config import ReplicationConfig  # noqa: E402
from gantrymq.replication.master import HaMaster  # noqa: E402
from gantrymq.replication.slave import HaSlave  # noqa: E402
from gantrymq.store.config import SYNC_FLUSH, StoreConfig  # noqa: E402
from gantrymq.store.message_store import MessageStore  # noqa: E402

HOST = encode_host("10.0.0.1", 1)
PORT = 10912
#: Duration of the faults, and timeout for the stores to become equal afterwards; each in seconds.
FAULTS_S = 60.0
TIMING = {"ha_send_heartbeat_interval": 500, "ha_housekeeping_interval": 2000}


class Links:
    """One run."""

    def __init__(self, seed: str) -> None:
        self.world = system.begin(seed)
        self.chance = Random(f"{seed} links")
        self.master = Program(self.world.host("master", "10.0.0.1"), self._master)
        self.slave = Program(self.world.host("slave", "10.0.0.2"), self._slave)
        self.stores: dict[str, MessageStore] = {}
        self.acknowledged = 0
        self.problems: list[str] = []
        self.faults = 0
        self.refusals: set[str] = set()

    def execute(self) -> str:
        """Runs the simulation. Returns its result in one line."""
        self.world.loop.network.tiny_reads = self.chance.choice([0.0, 0.2])
        for program in (self.master, self.slave):
            program.start()
        self.world.loop.run_until_complete(self._run())
        return f"{self.faults} faults, {self.acknowledged} bytes, {', '.join(self.problems) or 'equal'}"

    async def _run(self) -> None:
        while self.world.loop.time() < FAULTS_S:
            await asyncio.sleep(self.chance.uniform(0.2, 3))
            await self.chance.choice([self._kill, self._power, self._cut, self._reset])()
            self.faults += 1
        digests: list[str] = ["", "?"]
        for _ in range(int(FAULTS_S)):
            await asyncio.sleep(1)
            digests = [program.look(lambda name=program.name: digest(self.stores[name])) for program in self._all]
            if digests[0] == digests[1]:
                break
        else:
            self.problems.append(f"the logs differ {self.refusals or ''}")
        self._check()

    def _check(self) -> None:
        """Hook for further checks at the end."""

    @property
    def _all(self) -> list[Program]:
        return [self.master, self.slave]

    async def _kill(self) -> None:
        program = self.chance.choice(self._all)
        await self._restarted(program, machine=False)

    async def _power(self) -> None:
        await self._restarted(self.slave, machine=True)

    async def _restarted(self, program: Program, *, machine: bool) -> None:
        process, disk = program.host.process, self.world.disks[program.host.address]
        assert process is not None
        process.kill(machine=machine)
        if machine:
            disk.power_failed()
        else:
            disk.process_died()
        await asyncio.sleep(self.chance.uniform(0, 3))
        program.start()

    async def _cut(self) -> None:
        network = self.world.loop.network
        ways = self.chance.choice([[(0, 1)], [(1, 0)], [(0, 1), (1, 0)]])
        names = [program.host.address for program in self._all]
        for one, other in ways:
            network.cut(names[one], names[other])
        await asyncio.sleep(self.chance.uniform(0.1, 6))
        for one, other in ways:
            network.mend(names[one], names[other], reset_share=0.5)

    async def _reset(self) -> None:
        self.world.loop.network.reset_some(1.0)

    # -- programs -----------------------------------------------------------------------------------------------

    def _open(self, program: Program) -> MessageStore:
        config = StoreConfig(
            Path("/store"),
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=100,
            max_index_num=400,
            flush_disk_type=SYNC_FLUSH,
        )
        store = MessageStore(config, HOST, waits=False)
        store.open()
        self.stores[program.name] = store
        return store

    async def _master(self, program: Program) -> None:
        store = self._open(program)
        config = ReplicationConfig(ha_listen_port=PORT, ha_transfer_batch_size=625, **TIMING)

        def acknowledged() -> None:
            self.acknowledged = max(self.acknowledged, master.slaves.replicated(2))

        master = HaMaster(
            store, config, ListenOptions(program.host.address, config.ha_listen_port), on_acknowledged=acknowledged
        )
        await master.start()
        chance = Random(f"{self.world.seed} {self.world.loop.time()}")
        while True:
            await asyncio.sleep(0.02)
            if self.world.loop.time() < FAULTS_S:
                with suppress(StoreBusy):
                    for _ in range(chance.randrange(6)):
                        queue = store.queue("orders", chance.randrange(3))
                        store.append(queue, 0, 0, 1, HOST, 0, chance.randbytes(chance.randrange(900)), b"", 0)
                if chance.random() < 0.5:
                    master.log_grew()

    async def _slave(self, program: Program) -> None:
        acknowledged = self.acknowledged
        store = self._open(program)
        if store.max_physical_offset < acknowledged:
            self.problems.append(f"{acknowledged} was acknowledged, {store.max_physical_offset} is there")
        store.set_slave(True)
        slave = HaSlave(store, ReplicationConfig(**TIMING), broker_id=1)
        slave.set_master(f"{self.master.host.address}:{PORT}")
        await slave.start()
        while True:
            await asyncio.sleep(0.1)
            if slave.refusal is not None:
                self.refusals.add(slave.refusal)


def digest(store: MessageStore) -> str:
    """Returns a digest of the log and the queues."""
    found, begin = sha256(), store.min_physical_offset
    while (piece := store.log_slice(begin, 1 << 20)) is not None:
        found.update(piece)
        begin += len(piece)
    for topic, ids in sorted(store.topics().items()):
        for queue_id in ids:
            queue = store.queue(topic, queue_id)
            found.update(repr([queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]).encode())
    return found.hexdigest()


def plant() -> None:
    """Plants a bug: the slave acknowledges bytes that are not on its disk yet."""
    HaSlave._flushed = lambda slave: None  # type: ignore[method-assign]


def main(kind: type[Links], plant: Callable[[], None]) -> None:
    logging.disable(logging.CRITICAL)
    failed = False
    seeds = sys.argv[1:]
    if "--planted" in seeds:
        seeds.remove("--planted")
        plant()
    for seed in seeds:
        run = kind(seed)
        print(f"{seed}: {run.execute()}", flush=True)
        failed |= bool(run.problems)
        for program in (run.master, run.slave):
            process = program.host.process
            if process is not None and process.state is not State.DEAD:
                process.kill()
    # Exit at once: a normal exit of Python would run more code of the simulated programs.
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main(Links, plant)
