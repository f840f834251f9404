"""Faults of brokers with replicas, in addition to the faults of faults.py."""

from __future__ import annotations

from random import Random

from gantrymq.client.admin.client import AdminClient
from gantrymq.controller.broker_set import BrokerSet
from gantrymq.errors import GantryError
from sim.cluster import CONTROLLER_PORT, Program
from sim.disk import Disk
from sim.faults import Kill, Kind, Site
from sim.plan import broker_name
from sim.replicas_plan import CONTROLLED

#: Directory with all data that a slave copies from its master.
_STORE = "/store"


class Wreck:
    """Destroys a machine with its disk.

    A new, empty machine replaces it, and an operator copies a slave's store to a master.

    In controller mode, the replacement is a new broker, and the controller assigns an id to it.
    """

    def begin(self, site: Site, program: Program, strength: float) -> None:
        # A kill resets connections, so controllers notice it. Otherwise they could elect the lost broker, alone in its
        # in-sync set.
        Kill().begin(site, program, strength)
        if self._is_last(site, program):
            return
        program.is_away = True
        site.clients.scene.lost_disks.add(program.name)
        address = program.host.address
        site.world.disks[address] = Disk(Random(f"{site.world.seed} new disk of {program.name}"))

    def end(self, site: Site, program: Program) -> None:
        if program.is_away and site.clients.scene.plan.mode != CONTROLLED:
            self._restore(site, program)
        program.is_away = False
        Kill().end(site, program)

    def _is_last(self, site: Site, program: Program) -> bool:
        """Returns true if no other broker is in the in-sync set of the controllers."""
        kept = site.servers.etcd.sets().get(broker_name(program.name))
        known = BrokerSet.decode(kept[0]) if kept is not None else None
        address = site.servers.address_of(program)
        return known is not None and {known.address_of(one) for one in known.sync_state_set} == {address}

    def _restore(self, site: Site, program: Program) -> None:
        slaves = [one for one in site.servers.replicas()[broker_name(program.name)] if one is not program]
        best = max(slaves, key=lambda one: site.servers.running[one.name].store.max_physical_offset)
        Kill().begin(site, best, 0.0)
        site.world.disks[program.host.address].copy(site.world.disks[best.host.address], _STORE)
        best.start()


class Garble:
    """Flips bits at random in the replicated log bytes on the links to the other brokers of the name."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        self._set(site, program, strength / 4)

    def end(self, site: Site, program: Program) -> None:
        self._set(site, program, 0.0)

    def _set(self, site: Site, program: Program, share: float) -> None:
        own = program.host.address
        for other in site.servers.replicas()[broker_name(program.name)]:
            for link in (
                site.world.loop.network.link(own, other.host.address),
                site.world.loop.network.link(other.host.address, own),
            ):
                link.garbled = share


class Trouble:
    """Makes requests of a controller to its state store fail: they are lost, delayed, or executed without a
    response.
    """

    def begin(self, site: Site, program: Program, strength: float) -> None:
        self._set(site, program, strength / 3)

    def end(self, site: Site, program: Program) -> None:
        self._set(site, program, 0.0)

    def _set(self, site: Site, program: Program, share: float) -> None:
        if (store := site.servers.stores.get(program.name)) is not None:
            store.trouble = share


class HandOver:
    """Elects the broker as master, as an administrator. This works only if it is in sync."""

    def begin(self, site: Site, program: Program, strength: float) -> None:
        site.operate(lambda: self._elect(site, program))

    def end(self, site: Site, program: Program) -> None:
        """Does nothing: the broker stays master."""

    async def _elect(self, site: Site, program: Program) -> None:
        broker = site.servers.running.get(program.name)
        broker_id = (
            broker.replicas_manager._identity.broker_id if broker is not None and broker.replicas_manager else None
        )
        if broker is None or broker_id is None:
            return
        async with AdminClient(site.servers.addresses) as admin:
            for controller in site.servers.controllers:
                try:
                    address = f"{controller.host.address}:{CONTROLLER_PORT}"
                    await admin.elect_master(
                        address, broker.config.broker_cluster_name, broker.config.broker_name, broker_id
                    )
                    return
                except GantryError as e:
                    site.history.note(site.world.loop.time(), f"{program.name} isn't made master: {e}")


KINDS: dict[str, Kind] = {"wreck": Wreck(), "garble": Garble(), "trouble": Trouble(), "hand-over": HandOver()}
