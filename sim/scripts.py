"""What goes wrong in several steps, and hits who is master by then: what faults by chance alone would rarely come to.

A script is a class here with `play`, and its name in `SCRIPTS`; `replicas_plan.py` draws it. Its fault names any broker
of the name that it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from random import Random

from gantrymq.controller.broker_set import BrokerSet
from gantrymq.errors import StoreError
from sim.cluster import Program, store_config
from sim.faults import End, Full, Kill, Kind, Power, Script, Site, Stop
from sim.loop import TURN_S
from sim.plan import Fault, broker_name
from sim.replica_faults import HandOver, Wreck

#: So long a master isn't there at least, and by the fault's strength up to so much longer, s.
_AWAY_S, _LONGER_S = 2.0, 10.0
#: A slave that was away is in sync again within, s.
_IN_SYNC_S = 30.0
#: So long after a controller's lease its requests go on, and so long before that a broker dies, s.
_OVER_S, _ASKED_S = 0.1, 2.0
#: How often a master's place is handed over, and how long a turn of a busy loop takes, s.
HANDOVERS, _BUSY_TURN_S = 5, 0.004
#: Number of planned changes of master in `Relieved`.
RELIEFS = 4
#: Who comes back with less of its log stays away until no controller has it as in sync, s.
_MISSED_S = 15.0
#: How often an operator looks, and for how long, s.
_LOOK_S, _OPERATOR_S = 2.0, 40.0
#: A slave that was cut off has what it lacked after, s.
_CAUGHT_UP_S = 10.0


class Isolated:
    """The master reaches neither controllers nor slaves, and its clients do reach it."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        slaves = _slaves(site, master)
        others = [program.host.address for program in site.servers.controllers]
        if fault.strength < 0.5:
            others += [program.host.address for program in site.servers.name_servers]
        # That the slaves are gone it notices at once, or when nothing comes any more.
        with _apart(site, master, slaves, lost=fault.strength > 0.3), _apart(site, master, others):
            await asyncio.sleep(fault.lasts)


class Unconfirmed:
    """The master reaches no controller, but its clients and slaves reach the master. Another one is elected."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        with _apart(site, master, [program.host.address for program in site.servers.controllers]):
            await asyncio.sleep(fault.lasts)


class Torn:
    """The slaves hear no more of their master; then this dies, loses its power or is stopped, and they can be heard."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        kinds: tuple[Kind, ...] = (Kill(), Stop(), Power()) if site.servers.is_synced else (Kill(), Stop())
        kind = kinds[int(fault.strength * 100) % len(kinds)]
        with _apart(site, master, _slaves(site, master), lost=fault.strength > 0.5):
            await asyncio.sleep(fault.lasts)
            kind.begin(site, master, fault.strength)
        await asyncio.sleep(_AWAY_S + _LONGER_S * fault.strength)
        kind.end(site, master)


class Ambush:
    """As soon as the controllers have another one in sync the master hears nothing of it, nor of that one."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        addresses = _slaves(site, master)
        slave = next(one for one in site.servers.brokers if one.host.address == addresses[0])
        others = [program.host.address for program in site.servers.controllers]
        is_met = asyncio.Event()
        with ExitStack() as stack:

            def changed(name: str, before: bytes, after: bytes) -> None:
                known = BrokerSet.decode(before).sync_state_set if before else frozenset[int]()
                grows = known < BrokerSet.decode(after).sync_state_set
                if name == broker_name(fault.whom) and grows and not is_met.is_set():
                    is_met.set()
                    stack.enter_context(_apart(site, master, others))
                    stack.enter_context(_apart(site, master, addresses, lost=True))

            Kill().begin(site, slave, 0.0)
            await asyncio.sleep(_AWAY_S * fault.strength)
            site.servers.etcd.watchers.append(changed)
            Kill().end(site, slave)
            with suppress(TimeoutError):
                async with asyncio.timeout(_IN_SYNC_S):
                    await is_met.wait()
                await asyncio.sleep(fault.lasts)
            site.servers.etcd.watchers.remove(changed)


class Stalled:
    """What the leading controller asks of its store takes until its lease has just ended; meanwhile a broker dies."""

    async def play(self, site: Site, fault: Fault) -> None:
        master, held, loop = _master(site, fault), site.servers.etcd.held, site.world.loop
        if master is None or held is None:
            return
        store = site.servers.stores[held.leader.controller_id]
        store.stands_until = held.until + _OVER_S
        # Late enough for somebody to wait for the answer still.
        await asyncio.sleep(max(store.stands_until - _ASKED_S - loop.time(), 0.0))
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        victim = master if fault.strength < 0.3 else slaves[0]
        Kill().begin(site, victim, 0.0)
        await asyncio.sleep(fault.lasts)
        Kill().end(site, victim)


class Handed:
    """An administrator hands the master's place from one to the other, and all machines have much else to do."""

    async def play(self, site: Site, fault: Fault) -> None:
        loop = site.world.loop
        loop.turn_s = _BUSY_TURN_S * (0.2 + fault.strength)
        for _ in range(HANDOVERS):
            master = _master(site, fault)
            others = [one for one in site.servers.replicas()[broker_name(fault.whom)] if one is not master]
            HandOver().begin(site, others[0], 0.0)
            await asyncio.sleep(fault.lasts / HANDOVERS)
        loop.turn_s = TURN_S


class Relieved:
    """The master changes several times as planned, by an election or by an orderly restart."""

    async def play(self, site: Site, fault: Fault) -> None:
        chance = Random(f"{site.world.seed} relieved {fault.strength}")
        for _ in range(RELIEFS):
            await asyncio.sleep(fault.lasts / RELIEFS)
            master = _master(site, fault)
            if master is None:
                continue
            if chance.random() < fault.strength:
                End().begin(site, master, 0.0)
                await site.clients.scene.until(lambda: not master.is_alive)  # noqa: B023
                await asyncio.sleep(_AWAY_S)
                End().end(site, master)
            else:
                others = [one for one in site.servers.replicas()[broker_name(fault.whom)] if one is not master]
                HandOver().begin(site, chance.choice(others), 0.0)


class Filled:
    """The disk of the master is full, or that of a slave."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        victim = master if fault.strength > 0.3 else slaves[0]
        # After some 10 messages more.
        Full().begin(site, victim, fault.strength / 10)
        await asyncio.sleep(fault.lasts)
        Full().end(site, victim)


class Disaster:
    """All brokers of a name lose their power at once, and the master its disk: what was acknowledged others have."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        for slave in slaves:
            Power().begin(site, slave, 0.0)
        wreck = Wreck()
        wreck.begin(site, master, 0.0)
        await asyncio.sleep(fault.lasts)
        for slave in slaves:
            Power().end(site, slave)
        await asyncio.sleep(fault.lasts)
        wreck.end(site, master)


class Lying:
    """Syncs of a broker's log say that they had brought it to the disk, and haven't; at last its power goes.

    What was acknowledged the others have, so nothing is lost, if it stays away until it isn't counted on any more.
    Where a file is missing it says so and ends, and its operator has it begin anew.
    """

    async def play(self, site: Site, fault: Fault) -> None:
        master, scene = _master(site, fault), site.clients.scene
        if master is None:
            return
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        # Without a controller nobody takes a master's place, which would come back with less than its slaves have.
        victim = master if site.servers.controllers and fault.strength < 0.5 else slaves[0]
        faults = site.world.disks[victim.host.address].faults
        faults.sync_lies, faults.lies_below = 1.0, f"{store_config(scene.plan).commit_log_directory}/"
        scene.lied_until[victim.name] = inf
        await asyncio.sleep(fault.lasts)
        faults.sync_lies = 0.0
        Power().begin(site, victim, fault.strength)
        await asyncio.sleep(_MISSED_S)
        Power().end(site, victim)
        await asyncio.sleep(_LOOK_S)
        if isinstance(victim.failure, StoreError):
            victim.failure = None
            Wreck().begin(site, victim, fault.strength)
            victim.is_away = False
            victim.start()


class GoneBack:
    """The controllers' state is lost, and an operator puts back a copy of it from before the last election.

    No broker believes it, for each knows of a later epoch, by its log or, when it was cut off from the others,
    by what it was told; so he has the one elected that was master last.
    """

    async def play(self, site: Site, fault: Fault) -> None:
        master, etcd = _master(site, fault), site.servers.etcd
        if master is None or not _is_whole(site, fault):
            return
        copy = etcd.sets()
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        last = slaves[-1]
        is_cut_off = fault.strength > 0.5 and len(slaves) > 1
        with _apart(site, last, _slaves(site, last) if is_cut_off else (), lost=True):
            if not await _elected(site, fault, slaves[0], but=last if is_cut_off else None):
                return
            await asyncio.sleep(fault.lasts)
            if _master(site, fault) is not slaves[0]:
                return
            for controller in site.servers.controllers:
                Kill().begin(site, controller, fault.strength)
            site.clients.scene.has_gone_back = True
            etcd.restore(copy)
            site.history.note(site.world.loop.time(), "the controllers' state goes back")
            await asyncio.sleep(_AWAY_S * fault.strength)
            for controller in site.servers.controllers:
                Kill().end(site, controller)
            await asyncio.sleep(fault.lasts)
        # Whoever lacks something has it by then.
        await asyncio.sleep(_CAUGHT_UP_S)
        await _elected(site, fault, slaves[0])


class Away:
    """A master dies, or is ended in order, and is away for long: with acting masters a slave stands in."""

    async def play(self, site: Site, fault: Fault) -> None:
        program = site.programs[broker_name(fault.whom)]
        kind: Kind = Kill() if fault.strength < 0.7 else End()
        since = site.world.loop.time()
        kind.begin(site, program, fault.strength)
        await asyncio.sleep(fault.lasts)
        site.clients.scene.absences.append((program.name, since, site.world.loop.time()))
        kind.end(site, program)


def _is_whole(site: Site, fault: Fault, but: Program | None = None) -> bool:
    """All brokers of the name, but one, run, and the controllers have each as in sync."""
    programs = [one for one in site.servers.replicas()[broker_name(fault.whom)] if one is not but]
    running = dict(site.servers.looked_into_by_name())
    known = BrokerSet.decode(site.servers.etcd.sets()[broker_name(fault.whom)][0])
    in_sync = {known.address_of(one) for one in known.sync_state_set}
    return all(one.name in running and site.servers.address_of(one) in in_sync for one in programs)


async def _elected(site: Site, fault: Fault, program: Program, *, but: Program | None = None) -> bool:
    """An operator makes it master, tries again, and looks until all, but one, are in sync with it."""
    deadline = site.world.loop.time() + _OPERATOR_S
    while site.world.loop.time() < deadline:
        if _master(site, fault) is not program:
            HandOver().begin(site, program, 0.0)
        elif _is_whole(site, fault, but):
            return True
        await asyncio.sleep(_LOOK_S)
    return False


def _master(site: Site, fault: Fault) -> Program | None:
    """The one of that name, as the controllers have it; None where they have none."""
    name = broker_name(fault.whom)
    if not site.servers.controllers:
        return site.programs[name]
    kept = site.servers.etcd.sets().get(name)
    address = BrokerSet.decode(kept[0]).master_address if kept is not None else None
    return next((one for one in site.servers.brokers if site.servers.address_of(one) == address), None)


def _slaves(site: Site, master: Program) -> list[str]:
    """Where the other brokers of its name are."""
    others = site.servers.replicas()[broker_name(master.name)]
    return [other.host.address for other in others if other is not master]


@contextmanager
def _apart(site: Site, program: Program, others: Iterable[str], *, lost: bool = False) -> Iterator[None]:
    """It and these hosts don't reach each other; with `lost` both notice that at once."""
    network, own = site.world.loop.network, program.host.address
    others = list(others)
    for other in others:
        if lost:
            network.lose(own, other)
        network.cut(own, other)
        network.cut(other, own)
    try:
        yield
    finally:
        for other in others:
            network.mend(own, other, reset_share=0.3)
            network.mend(other, own, reset_share=0.3)


SCRIPTS: dict[str, Script] = {
    "isolated": Isolated(),
    "unconfirmed": Unconfirmed(),
    "torn": Torn(),
    "ambush": Ambush(),
    "stalled": Stalled(),
    "handed": Handed(),
    "relieved": Relieved(),
    "filled": Filled(),
    "disaster": Disaster(),
    "lying": Lying(),
    "gone-back": GoneBack(),
    "away": Away(),
}
