"""Faults of a run. Each kind of fault has a begin and, after its duration, an end.

To add a kind, write a class with `begin` and `end` here and add its name in plan.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from math import inf
from random import Random
from typing import Any, Protocol

from gantrymq.broker.broker import Broker
from gantrymq.protocol.record import BODY_AT_V4, offset_of
from gantrymq.protocol.topic_name import SCHEDULE_TOPIC
from gantrymq.store.message_store import MessageStore
from sim.clients import Clients
from sim.cluster import ETCD_ADDRESS, Program, Servers, store_config
from sim.history import History, Outage
from sim.machine import Host, State
from sim.plan import QUEUES, TOPIC, Fault, broker_name
from sim.system import World

#: With ASYNC_FLUSH (two syncs per second), messages acknowledged in this time before a crash can be lost. In seconds.
_UNSYNCED_S = 3.0
#: Faults after which a broker recovers its log.
_CRASHES = ("kill", "kill-all", "power", "power-at-sync", "sync-error")
#: After these faults, a broker repeats no deliveries and no commits.
_ORDERLY = (
    "end",
    "end-all",
    "hand-over",
    "handed",
    "relieved",
    "rot",
    "rot-unread",
    "clock",
    "far-clock",
    "drift",
    "young",
)
#: The power fails before one of the next `_SYNCS` syncs. A sync in a thread first lets the event loop run `_TURNS`
#: times.
_SYNCS, _TURNS = 20, 5
#: Largest error of a clock, in seconds.
_FAR_S = 3600.0


class Site:
    """Gives faults access to all parts of a run."""

    def __init__(self, world: World, servers: Servers, clients: Clients, history: History) -> None:
        self.world = world
        self.servers = servers
        self.clients = clients
        self.history = history
        self.programs = {program.name: program for program in servers.all + clients.all}
        self._operator: Host | None = None

    def addresses_but(self, program: Program) -> list[str]:
        others = [other.host.address for other in self.programs.values() if other is not program]
        return [*others, ETCD_ADDRESS] if program in self.servers.controllers else others

    def died(self, program: Program) -> None:
        self.clients.died(program)

    def operate(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `work` as an operator on a host of its own. Kills the operator's previous work."""
        host = self._operator
        if host is None:
            host = self._operator = self.world.host("operator", "10.0.17.1")
        if host.process is not None:
            host.process.kill()
        host.start(work)


def far_clock_s(strength: float) -> float:
    """Returns the error of a clock, in seconds. Small errors are as frequent as large ones."""
    share = 2 * strength - 1
    return _FAR_S * share * abs(share)


class Kind(Protocol):
    """Interface of a kind of fault."""

    def begin(self, site: Site, program: Program, strength: float) -> None: ...

    def end(self, site: Site, program: Program) -> None: ...


class Script(Protocol):
    """Interface of a fault with several steps (scripts.py)."""

    async def play(self, site: Site, fault: Fault) -> None: ...


class Kill:
    """Kills the program (SIGKILL). The end starts it again."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        if program.host.process is not None:
            program.host.process.kill()
        site.world.disks[program.host.address].process_died()
        site.died(program)

    def end(self, site: Site, program: Program) -> None:
        program.start()


class Power:
    """Switches the machine off; unsynced data of its disk is lost. The end switches it on again."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        site.world.disks[program.host.address].power_failed()
        self.goes(site, program)
        self.keep_log(site, program)

    def goes(self, site: Site, program: Program) -> None:
        """Does everything except the loss of data on the disk."""
        if program.host.process is not None:
            program.host.process.kill(machine=True)
        site.world.loop.network.without_power.add(program.host.address)
        site.died(program)
        site.clients.scene.lost_power(program)
        if not site.servers.is_synced:
            now = site.world.loop.time()
            site.clients.scene.excuses.append(
                lambda sent: sent.stored_at is not None and now - _UNSYNCED_S <= sent.stored_at <= now
            )

    def keep_log(self, site: Site, program: Program) -> None:
        """Records what the disk has of a broker's log, for the checker."""
        if program not in site.servers.brokers or not site.servers.is_synced:
            return
        config = store_config(site.clients.scene.plan)
        directory, log = f"{config.commit_log_directories[0]}/", dict[int, bytes]()
        for path, inode in site.world.disks[program.host.address].files():
            name = path.removeprefix(directory)
            if name.isdigit():
                log[int(name)] = inode.read(0, inode.size)
        size = config.mapped_file_size_commit_log
        site.history.outages.append(Outage(program.name, site.world.loop.time(), size, log))

    def end(self, site: Site, program: Program) -> None:
        site.world.loop.network.without_power.discard(program.host.address)
        program.start()


class PowerAtSync(Power):
    """Cuts the power before one of the next syncs, in the middle of an event-loop iteration.

    The rest of the iteration belongs to a dead program: its messages reach no host, and its changes to the disk are
    discarded.
    """

    def begin(self, site: Site, program: Program, strength: float) -> None:
        world, disk, left = site.world, site.world.disks[program.host.address], 1 + int(strength * _SYNCS)

        def before_sync() -> None:
            nonlocal left
            left -= 1
            process = program.host.process
            if left > 0 or process is None or process.state is not State.RUNNING:
                return
            disk.before_sync = None
            if world.is_in_worker:
                # Without these iterations, a client with a premature response would receive it only after the sync.
                for _ in range(_TURNS):
                    world.loop.go_on(process)
            lose = disk.power_fails()

            def failed() -> None:
                lose()
                self.keep_log(site, program)

            world.loop.call_soon(failed, context=Context())
            site.history.note(world.loop.time(), f"the power of {program.name} goes before a sync")
            Context().run(self.goes, site, program)

        disk.before_sync = before_sync

    def end(self, site: Site, program: Program) -> None:
        site.world.disks[program.host.address].before_sync = None
        super().end(site, program)


class End:
    """Stops the program with SIGTERM. The end starts it again."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        if program.ending is not None and program.host.process is not None:
            program.ending.set()
            site.clients.scene.ends(program)

    def end(self, site: Site, program: Program) -> None:
        process = program.host.process
        if process is not None and process.state is not State.DEAD and program.ending is not None:
            if not program.ending.is_set():
                return
            # The program has not finished its shutdown in time, so it is killed.
            site.history.crashes.append((site.world.loop.time(), site.world.loop.time()))
            process.kill()
            site.world.disks[program.host.address].process_died()
        # This also applies if the program has finished by itself.
        site.died(program)
        program.start()


class Stop:
    """Suspends the program (SIGSTOP). The end resumes it (SIGCONT)."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        if program.host.process is not None:
            program.host.process.stop()

    def end(self, site: Site, program: Program) -> None:
        if program.host.process is not None:
            program.host.process.go_on()


class Cut:
    """Cuts the links from the program to some of the others, in one or both directions."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        own = program.host.address
        chance = Random(f"{own} {strength}")
        for other in site.addresses_but(program):
            if chance.random() < 0.3 + strength:
                site.world.loop.network.cut(own, other)
                if chance.random() < 0.7:
                    site.world.loop.network.cut(other, own)

    def end(self, site: Site, program: Program) -> None:
        own = program.host.address
        for other in site.addresses_but(program):
            site.world.loop.network.mend(own, other, reset_share=0.3)
            site.world.loop.network.mend(other, own, reset_share=0.3)


class Slow:
    """Delays the bytes from and to the program."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        self._set(site, program, strength, 2 * strength)

    def end(self, site: Site, program: Program) -> None:
        self._set(site, program, 0.0002, 0.0005)

    def _set(self, site: Site, program: Program, delay_s: float, jitter_s: float) -> None:
        own = program.host.address
        for other in site.addresses_but(program):
            for link in (site.world.loop.network.link(own, other), site.world.loop.network.link(other, own)):
                link.delay_s, link.jitter_s = delay_s, jitter_s


class Reset:
    """Resets a share of all connections, not only those of one program."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        site.world.loop.network.reset_some(strength)

    def end(self, site: Site, program: Program) -> None:
        """Does nothing: the fault is over at once."""


class ClockJump:
    """Sets the wall clock of the host wrong by up to 10 s."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        program.host.clock_ahead_s = 20 * (strength - 0.5)

    def end(self, site: Site, program: Program) -> None:
        program.host.clock_ahead_s = 0.0


class FarClock:
    """Sets the wall clock of the host wrong by up to an hour, ahead or behind."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        program.host.clock_ahead_s = far_clock_s(strength)

    def end(self, site: Site, program: Program) -> None:
        program.host.clock_ahead_s = 0.0


class ClockDrift:
    """Makes the wall clock run up to 5 % too fast or too slow. The end corrects it."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        program.host.clock_drift = (strength - 0.5) / 10

    def end(self, site: Site, program: Program) -> None:
        program.host.clock_drift = 0.0


class SlowDisk:
    """Slows the disk: work in threads takes up to 2 s longer."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        program.host.thread_s = 2 * strength

    def end(self, site: Site, program: Program) -> None:
        program.host.thread_s = 0.0


class IoErrors:
    """Makes a share of the reads and writes fail."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        site.world.disks[program.host.address].faults.io_errors = strength / 2

    def end(self, site: Site, program: Program) -> None:
        site.world.disks[program.host.address].faults.io_errors = 0.0


class OpenErrors:
    """Makes a share of the opens fail, because no descriptor is left."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        site.world.disks[program.host.address].faults.open_errors = strength / 2

    def end(self, site: Site, program: Program) -> None:
        site.world.disks[program.host.address].faults.open_errors = 0.0


class Full:
    """Limits the disk to its used space and at most 100,000 bytes more."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        disk = site.world.disks[program.host.address]
        disk.faults.capacity = disk.used() + int(strength * 100_000)

    def end(self, site: Site, program: Program) -> None:
        site.world.disks[program.host.address].faults.capacity = 1 << 40


class SyncError:
    """Makes syncs fail. The end kills the program and starts it again, as an operator would."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        site.world.disks[program.host.address].faults.sync_errors = strength

    def end(self, site: Site, program: Program) -> None:
        site.world.disks[program.host.address].faults.sync_errors = 0.0
        Kill().begin(site, program, 0.0)
        program.start()


class Lies:
    """Makes syncs of the commit log return success without syncing. At the end, the power fails.

    Messages acknowledged during the fault can be lost; earlier ones cannot. All other files sync correctly, so they
    can refer to messages that the log lacks.
    """

    def begin(self, site: Site, program: Program, strength: float) -> None:
        faults, scene = site.world.disks[program.host.address].faults, site.clients.scene
        (log,) = store_config(scene.plan).commit_log_directories
        faults.sync_lies, faults.lies_below = 0.3 + 0.7 * strength, f"{log}/"
        since, brokers = site.world.loop.time(), ("", broker_name(program.name))
        scene.lied_until[program.name] = inf
        scene.excuses.append(
            lambda sent: (
                sent.broker in brokers
                and sent.stored_at is not None
                and since <= sent.stored_at <= scene.lied_until[program.name]
            )
        )

    def end(self, site: Site, program: Program) -> None:
        site.world.disks[program.host.address].faults.sync_lies = 0.0
        Power().begin(site, program, 0.0)
        Power().end(site, program)
        now, scene = site.world.loop.time(), site.clients.scene
        crashes = [fault for fault in scene.plan.faults if fault.kind in _CRASHES and _is_of(fault, program)]
        # A recovery can skip a hole in the log. A later recovery that starts further back then ends at this hole.
        if all(site.clients.sending_at + fault.at < now for fault in crashes):
            scene.lied_until[program.name] = now


def _is_of(fault: Fault, broker: Program) -> bool:
    """Returns true if a fault of brokers concerns this broker."""
    return fault.whom == broker.name or (fault.kind.endswith("-all") and fault.whom.startswith("broker"))


class Rot:
    """Flips a bit of a delayed message, on the disk and in its mapping. Only this message is lost."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        broker = next((broker for one, broker in site.servers.looked_into() if one is program), None)
        found = program.look(partial(_waiting, broker.store)) if broker is not None else None
        if broker is not None and found is not None:
            _flip(site, program, broker, found, BODY_AT_V4, int(strength * 7))

    def end(self, site: Site, program: Program) -> None:
        """Does nothing: the damage is permanent."""


class RotUnread:
    """Suspends the members of a group, and flips a bit of a message that they have not read before they resume.

    The bit is in the body, in the size of the record, or in the checksum of the body.
    """

    def begin(self, site: Site, program: Program, strength: float) -> None:
        for member in self._members(site, strength):
            if member.host.process is not None:
                member.host.process.stop()

    def end(self, site: Site, program: Program) -> None:
        # Uses the strength from the plan: `begin` stopped the members that it selects, regardless of other faults.
        fault = next(one for one in site.clients.scene.plan.faults if one.kind == "rot-unread")
        members = self._members(site, fault.strength)
        group = members[0].name.partition("-")[0]
        broker = next((broker for one, broker in site.servers.looked_into() if one is program), None)
        if broker is not None:
            unread = set(site.clients.scene.lacks(group))
            found = program.look(partial(_unread, broker.store, unread))
            if found is not None:
                # Selects the last byte of the size. With one of the first bytes, the record would end behind all files.
                byte = (BODY_AT_V4, offset_of("size") + 3, offset_of("body_crc"))[int(fault.strength * 100) % 3]
                _flip(site, program, broker, found, byte, int(fault.strength * 7))
        for member in members:
            if member.host.process is not None:
                member.host.process.go_on()

    def _members(self, site: Site, strength: float) -> list[Program]:
        groups = [group for group in ("push", "orderly", "lite") if site.clients.scene.plan.consumers[group]]
        group = groups[int(strength * len(groups)) % len(groups)]
        return [one for one in site.clients.consumers if one.name.startswith(f"{group}-")]


def _unread(store: MessageStore, names: set[str]) -> tuple[int, str] | None:
    """Returns the position and the name of the newest message with one of these names."""
    for queue_id in range(QUEUES):
        queue = store.queue(TOPIC, queue_id)
        for offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
            if (unit := queue.unit(offset)) is not None:
                name = store.read_record(unit[0]).body.decode().strip()
                if name in names:
                    return unit[0], name
    return None


def _flip(site: Site, program: Program, broker: Broker, found: tuple[int, str], byte: int, bit: int) -> None:
    """Flips a bit of the record at this position. Only this message is lost."""
    place, name = found
    size = broker.config.store.mapped_file_size_commit_log
    base = place // size * size
    path = f"{broker.config.store.commit_log_directories[0]}/{base:020d}"
    site.world.disks[program.host.address].flip_bit(path, place - base + byte, bit)
    site.history.note(site.world.loop.time(), f"{name} rots at {place} of {program.name}")
    site.clients.scene.rotten[program.name] = place
    site.clients.scene.excuses.append(lambda sent: sent.name == name)


def _waiting(store: MessageStore) -> tuple[int, str] | None:
    """Returns the position and the name of the last message of a delay level."""
    for level in (3, 2):
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        if queue.max_offset > queue.min_offset and (unit := queue.unit(queue.max_offset - 1)) is not None:
            return unit[0], store.read_record(unit[0]).body.decode().strip()
    return None


class All:
    """Applies a fault to all brokers or to all NameServers at once."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def begin(self, site: Site, program: Program, strength: float) -> None:
        for one in self._like(site, program):
            self._kind.begin(site, one, strength)

    def end(self, site: Site, program: Program) -> None:
        for one in self._like(site, program):
            self._kind.end(site, one)

    def _like(self, site: Site, program: Program) -> list[Program]:
        return site.servers.brokers if program in site.servers.brokers else site.servers.name_servers


KINDS: dict[str, Kind] = {
    "kill": Kill(),
    "power": Power(),
    "power-at-sync": PowerAtSync(),
    "end": End(),
    "lies": Lies(),
    "rot": Rot(),
    "rot-unread": RotUnread(),
    "kill-all": All(Kill()),
    "end-all": All(End()),
    "stop": Stop(),
    "cut": Cut(),
    "slow": Slow(),
    "reset": Reset(),
    "clock": ClockJump(),
    "far-clock": FarClock(),
    "drift": ClockDrift(),
    "slow-disk": SlowDisk(),
    "io-errors": IoErrors(),
    "open-errors": OpenErrors(),
    "full": Full(),
    "sync-error": SyncError(),
}
#: Faults of brokers that have replicas. run.py fills this dictionary.
SCRIPTS: dict[str, Script] = {}


async def happen(site: Site, fault: Fault) -> None:
    """Runs one fault. If its `at` is below 0, `run.py` begins it before the programs start."""
    await asyncio.sleep(max(fault.at, 0.0))
    site.history.note(site.world.loop.time(), f"fault {fault}")
    since = site.world.loop.time()
    program = site.programs[fault.whom]
    if fault.kind in SCRIPTS:
        await SCRIPTS[fault.kind].play(site, fault)
        site.history.note(site.world.loop.time(), f"over {fault}")
    else:
        kind = KINDS[fault.kind]
        kind.begin(site, program, fault.strength)
        await asyncio.sleep(fault.lasts)
        site.history.note(site.world.loop.time(), f"over {fault}")
        kind.end(site, program)
    until = site.world.loop.time()
    site.history.faults.append((since, until))
    is_of_clients = fault.kind not in SCRIPTS and program in site.clients.all
    if fault.kind not in _ORDERLY and not is_of_clients:
        # A script stops a master, and can start it again: it counts twice.
        site.history.crashes += [(since, until)] * (2 if fault.kind in SCRIPTS else 1)
