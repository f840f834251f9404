"""What goes wrong in several steps, and hits who is master by then: what faults by chance alone would rarely come to.

A script is a class here with `play`, and its name in `SCRIPTS`; `replicas_plan.py` draws it. Its fault names any broker
of the name that it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from gantrymq.controller.broker_set import BrokerSet
from sim.cluster import Program
from sim.faults import Full, Kill, Kind, Power, Script, Site, Stop
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
_ROUNDS, _BUSY_TURN_S = 5, 0.004


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
        for _ in range(_ROUNDS):
            master = _master(site, fault)
            others = [one for one in site.servers.replicas()[broker_name(fault.whom)] if one is not master]
            HandOver().begin(site, others[0], 0.0)
            await asyncio.sleep(fault.lasts / _ROUNDS)
        loop.turn_s = TURN_S


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
    "torn": Torn(),
    "ambush": Ambush(),
    "stalled": Stalled(),
    "handed": Handed(),
    "filled": Filled(),
    "disaster": Disaster(),
}
