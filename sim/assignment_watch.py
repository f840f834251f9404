"""Checks that each queue has exactly one consumer of each group, also while NameServers restart.

The check applies to plans whose only server fault is a restart of NameServers. A NameServer that has just started
returns partial routes. A consumer that acts on such a route releases queues that no other consumer takes over, or takes
queues that another consumer reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from gantrymq.client.routes import REFRESH_INTERVAL_S
from gantrymq.protocol.awaited_brokers import REGISTRATION_PERIOD_MS
from sim.cluster import Program
from sim.plan import QUEUES, TOPIC, Plan, broker_name
from sim.scene import Queue, Scene

#: Longest time for which a moving queue may have no consumer or two, in seconds.
_MOVES_S = 8.0
#: Checked groups. In an orderly group, locks delay the moves of queues.
_GROUPS = ("push", "lite")
#: Kinds of faults of NameServers and clients with which the assignment is checked.
_KINDS = ("kill", "end", "young")


class AssignmentWatch:
    """Checks the consumers of each queue. The run calls `look` every few seconds."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._is_on = _is_looked_at(scene.plan)
        names = sorted({broker_name(program) for program in scene.plan.broker_programs})
        self._queues = [(name, TOPIC, queue_id) for name in names for queue_id in range(QUEUES)]
        #: Groups that already had a consumer for each of their queues.
        self._complete: set[str] = set()
        #: Time in seconds from which on a queue of a group has had no consumer, or several.
        self._wrong_since: dict[tuple[str, Queue], float] = {}
        #: Whether the restarted NameServers returned partial routes that clients must take for complete.
        self._had_partial_routes = False
        #: Whether the routes were partial at the last `look`.
        self._were_partial = False

    def look(self) -> Iterator[str]:
        """Yields the problems."""
        if not self._is_on:
            return
        are_partial = not self._are_routes_complete()
        if self._scene.name_servers_at > 0 and not self._is_route_awaited() and (are_partial or self._were_partial):
            # The missing broker can register between the end of the registration period and this look.
            self._had_partial_routes = True
        self._were_partial = are_partial
        for group in _GROUPS:
            if self._scene.plan.consumers[group]:
                for queue in self._queues:
                    yield from self._look_at(group, queue)
                if all(self._scene.readers[group].get(queue) for queue in self._queues):
                    self._complete.add(group)

    def _look_at(self, group: str, queue: Queue) -> Iterator[str]:
        now, readers = self._scene.now(), sorted(self._scene.readers[group].get(queue, ()))
        if len(readers) == 1 or not self._is_judged(group, is_read=bool(readers)):
            self._wrong_since.pop((group, queue), None)
            return
        since = self._wrong_since.setdefault((group, queue), now)
        # A client keeps a partial route that it must take for complete until it requests routes again.
        is_partial = self._had_partial_routes or self._scene.has_new_name_servers
        most_s = _MOVES_S + (REFRESH_INTERVAL_S if is_partial else 0.0)
        if now - since > most_s:
            self._wrong_since[group, queue] = inf
            who = " and ".join(readers) if readers else f"no consumer of {group}"
            yield f"at {now:.0f} s {who} read queue {queue[2]} of {queue[0]}, for {now - since:.0f} s"

    def _is_judged(self, group: str, *, is_read: bool) -> bool:
        """Returns true if a queue must have exactly one consumer now."""
        scene = self._scene
        if group not in self._complete or not scene.members[group]:
            return False
        if self._are_routes_complete():
            return True
        # A new consumer joins the group when its route is complete. If there are no others, nobody reads until then.
        return self._is_route_awaited() and (is_read or not self._are_all_new(group))

    def _are_all_new(self, group: str) -> bool:
        """Returns true if no consumer of the group has a route from before the NameServers' restart."""
        return all(at > self._scene.name_servers_at - _MOVES_S for at in self._scene.members[group].values())

    def _is_route_awaited(self) -> bool:
        """Returns true if the NameServers kept their disks and have run for less than a registration period."""
        scene = self._scene
        return not scene.has_new_name_servers and scene.now() < scene.name_servers_at + REGISTRATION_PERIOD_MS / 1000

    def _are_routes_complete(self) -> bool:
        return all(self._has_all_brokers(program) for program in self._scene.servers.name_servers)

    def _has_all_brokers(self, program: Program) -> bool:
        servers = self._scene.servers
        running = dict(servers.name_servers_looked_into()).get(program)
        return running is not None and all(
            servers.address_of(broker) in running.table.broker_addresses(broker_name(broker.name)).values()
            for broker in servers.brokers
        )


def _is_looked_at(plan: Plan) -> bool:
    if "comings" in plan.extras:
        return False
    for fault in plan.faults:
        is_of_name_server = fault.kind == "young" or fault.whom.startswith("ns-")
        if fault.kind not in _KINDS or not (is_of_name_server or fault.whom in plan.clients):
            return False
    return True
