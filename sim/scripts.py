"""Scripts: faults with several steps that act on the current master. Random faults would rarely reach these states.

A script is a class with `play`, and has a name in `SCRIPTS`. `replicas_plan.py` selects them, and `plan.py` selects
`young`. The fault of a script can name any broker of the broker name that it affects.
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
from sim.disk import Disk
from sim.faults import End, Full, Kill, Kind, Power, Script, Site, Stop
from sim.loop import SLICE_S
from sim.plan import Fault, broker_name
from sim.replica_faults import HandOver, Wreck

#: Shortest absence of a master, and the largest addition to it by the strength of the fault, in seconds.
_AWAY_S, _LONGER_S = 2.0, 10.0
#: Longest time until a restarted slave is in sync again, in seconds.
_IN_SYNC_S = 30.0
#: A request of the controller continues this long after the end of its lease; a broker dies this long before that. In
#: seconds.
_OVER_S, _ASKED_S = 0.1, 2.0
#: Number of handovers, and duration of an iteration of a busy loop in seconds.
HANDOVERS, _BUSY_SLICE_S = 5, 0.004
#: Number of planned changes of master in `Relieved`.
RELIEFS = 4
#: Time after which no controller has the absent broker as in sync, in seconds.
_MISSED_S = 15.0
#: Interval and longest duration of an operator's checks, in seconds.
_LOOK_S, _OPERATOR_S = 2.0, 40.0
#: The NameServers of `Young` have new disks if the strength is below this.
_NEW_DISKS_BELOW = 0.3
#: Times in seconds: until a group has reassigned the queues of a killed consumer; from the restart of the NameServers
#: to the start of a consumer.
_REBALANCED_S, _JOINS_S = 10.0, 2.0
#: Time in which a reconnected slave catches up, in seconds.
_CAUGHT_UP_S = 10.0


class Isolated:
    """Cuts the master off from controllers and slaves. Its clients still reach it."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        slaves = _slaves(site, master)
        others = [program.host.address for program in site.servers.controllers]
        if fault.strength < 0.5:
            others += [program.host.address for program in site.servers.name_servers]
        # With lost connections, the master notices at once that the slaves are gone; otherwise only after a timeout.
        with _apart(site, master, slaves, lost=fault.strength > 0.3), _apart(site, master, others):
            await asyncio.sleep(fault.lasts)


class Unconfirmed:
    """Cuts the master off from the controllers only, so that another one is elected.

    Clients and slaves still reach it.
    """

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        with _apart(site, master, [program.host.address for program in site.servers.controllers]):
            await asyncio.sleep(fault.lasts)


class Torn:
    """Cuts the slaves off from the master before the master fails.

    The master is killed or stopped, or loses its power. After that, the links are restored.
    """

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
    """Cuts the master off from controllers and slaves as soon as another slave joins the in-sync set."""

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
    """Delays the state store requests of the leading controller beyond its lease. Meanwhile, a broker dies."""

    async def play(self, site: Site, fault: Fault) -> None:
        master, held, loop = _master(site, fault), site.servers.etcd.held, site.world.loop
        if master is None or held is None:
            return
        store = site.servers.stores[held.leader.controller_id]
        store.stands_until = held.until + _OVER_S
        # Late enough that a client still waits for the response.
        await asyncio.sleep(max(store.stands_until - _ASKED_S - loop.time(), 0.0))
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        victim = master if fault.strength < 0.3 else slaves[0]
        Kill().begin(site, victim, 0.0)
        await asyncio.sleep(fault.lasts)
        Kill().end(site, victim)


class Handed:
    """Hands over the master role repeatedly, as an administrator, while all machines are busy."""

    async def play(self, site: Site, fault: Fault) -> None:
        loop = site.world.loop
        loop.turn_s = _BUSY_SLICE_S * (0.2 + fault.strength)
        for _ in range(HANDOVERS):
            master = _master(site, fault)
            others = [one for one in site.servers.replicas()[broker_name(fault.whom)] if one is not master]
            HandOver().begin(site, others[0], 0.0)
            await asyncio.sleep(fault.lasts / HANDOVERS)
        loop.turn_s = SLICE_S


class Relieved:
    """Changes the master several times as planned: by an election or by an orderly restart."""

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
    """Fills the disk of the master or of a slave."""

    async def play(self, site: Site, fault: Fault) -> None:
        master = _master(site, fault)
        if master is None:
            return
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        victim = master if fault.strength > 0.3 else slaves[0]
        # Leaves space for about 10 more messages.
        Full().begin(site, victim, fault.strength / 10)
        await asyncio.sleep(fault.lasts)
        Full().end(site, victim)


class Disaster:
    """Cuts the power of all brokers of a name and destroys the master's disk. Slaves have all acknowledged messages."""

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
    """Makes syncs of a broker's log return success without syncing. At the end, its power fails.

    No acknowledged message is lost, because the other brokers have all of them. The broker therefore stays down until
    no in-sync set contains it. If files are missing after its restart, the broker exits, and its operator starts it
    with an empty disk.
    """

    async def play(self, site: Site, fault: Fault) -> None:
        master, scene = _master(site, fault), site.clients.scene
        if master is None:
            return
        slaves = [one for one in site.servers.replicas()[broker_name(master.name)] if one is not master]
        # Without a controller, no slave replaces a master, which would restart with less log than its slaves have.
        victim = master if site.servers.controllers and fault.strength < 0.5 else slaves[0]
        faults = site.world.disks[victim.host.address].faults
        faults.sync_lies, faults.lies_below = 1.0, f"{store_config(scene.plan).commit_log_directories[0]}/"
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
    """Replaces the controllers' state by a copy from before the last election, as an operator could after a loss.

    No broker accepts this state: each has a later epoch in its log or, if it was cut off, from its last
    notification. So the operator elects the last master again.
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
        # All brokers have caught up after this time.
        await asyncio.sleep(_CAUGHT_UP_S)
        await _elected(site, fault, slaves[0])


class Away:
    """Stops a master for a long time, by a kill or in order. With acting masters, a slave takes over."""

    async def play(self, site: Site, fault: Fault) -> None:
        program = site.programs[broker_name(fault.whom)]
        kind: Kind = Kill() if fault.strength < 0.7 else End()
        since = site.world.loop.time()
        kind.begin(site, program, fault.strength)
        await asyncio.sleep(fault.lasts)
        site.clients.scene.absences.append((program.name, since, site.world.loop.time()))
        kind.end(site, program)


class Young:
    """Restarts all NameServers; one broker cannot reach them for a while.

    If the strength is below 0.3, the NameServers have new disks. Otherwise, a consumer joins its group meanwhile.
    """

    async def play(self, site: Site, fault: Fault) -> None:
        scene, servers, broker = site.clients.scene, site.servers, site.programs[fault.whom]
        has_new_disks = fault.strength < _NEW_DISKS_BELOW
        # The last member of a group is assigned queues of the reachable broker, and the other members rely on this.
        joining = [members[-1] for members in _members(site) if len(members) > 1 and not has_new_disks]
        for program in joining:
            Kill().begin(site, program, 0.0)
            program.is_away = True
        await asyncio.sleep(_REBALANCED_S)
        for program in servers.name_servers:
            Kill().begin(site, program, 0.0)
            if has_new_disks:
                address = program.host.address
                site.world.disks[address] = Disk(Random(f"{site.world.seed} new disk of {program.name}"))
        with _apart(site, broker, [program.host.address for program in servers.name_servers]):
            scene.name_servers_at, scene.has_new_name_servers = site.world.loop.time(), has_new_disks
            for program in servers.name_servers:
                Kill().end(site, program)
            await asyncio.sleep(_JOINS_S)
            for program in joining:
                program.is_away = False
                Kill().end(site, program)
            await asyncio.sleep(fault.lasts)


def _members(site: Site) -> list[list[Program]]:
    """Returns the members of each group that assigns its queues without locks."""
    groups = ("push", "lite")
    return [[one for one in site.clients.consumers if one.name.startswith(f"{group}-")] for group in groups]


def _is_whole(site: Site, fault: Fault, but: Program | None = None) -> bool:
    """Returns true if all brokers of the name, except `but`, run and are in sync according to the controllers."""
    programs = [one for one in site.servers.replicas()[broker_name(fault.whom)] if one is not but]
    running = dict(site.servers.looked_into_by_name())
    known = BrokerSet.decode(site.servers.etcd.sets()[broker_name(fault.whom)][0])
    in_sync = {known.address_of(one) for one in known.sync_state_set}
    return all(one.name in running and site.servers.address_of(one) in in_sync for one in programs)


async def _elected(site: Site, fault: Fault, program: Program, *, but: Program | None = None) -> bool:
    """Elects `program`, as an operator, until it is master and all brokers, except `but`, are in sync with it.

    Returns false if this takes longer than `_OPERATOR_S`.
    """
    deadline = site.world.loop.time() + _OPERATOR_S
    while site.world.loop.time() < deadline:
        if _master(site, fault) is not program:
            HandOver().begin(site, program, 0.0)
        elif _is_whole(site, fault, but):
            return True
        await asyncio.sleep(_LOOK_S)
    return False


def _master(site: Site, fault: Fault) -> Program | None:
    """Returns the master of the name according to the controllers, or None if there is none."""
    name = broker_name(fault.whom)
    if not site.servers.controllers:
        return site.programs[name]
    kept = site.servers.etcd.sets().get(name)
    address = BrokerSet.decode(kept[0]).master_address if kept is not None else None
    return next((one for one in site.servers.brokers if site.servers.address_of(one) == address), None)


def _slaves(site: Site, master: Program) -> list[str]:
    """Returns the addresses of the other brokers of the name."""
    others = site.servers.replicas()[broker_name(master.name)]
    return [other.host.address for other in others if other is not master]


@contextmanager
def _apart(site: Site, program: Program, others: Iterable[str], *, lost: bool = False) -> Iterator[None]:
    """Cuts the links between the program and these hosts. With `lost`, their connections are reset first."""
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
    "young": Young(),
}
