"""The in-sync set of a broker set, requested from its controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.controller import ReplicasInfo


class SyncStateSetSeen(NamedTuple):
    """In-sync set of one broker set. `info` is None if the controllers do not have it, or if all have failed."""

    controllers: list[str]
    leader: str | None = None
    info: ReplicasInfo | None = None
    error: GantryError | None = None


async def sync_state_set(admin: AdminClient, broker_name: str, config: Mapping[str, str]) -> SyncStateSetSeen | None:
    """Requests the in-sync set from a broker's controllers, until one responds. Returns None without controllers."""
    controllers = [address.strip() for address in config.get("controllerAddr", "").split(";") if address.strip()]
    if config.get("enableControllerMode") != "true" or not controllers:
        return None
    problem: GantryError | None = None
    for controller in controllers:
        try:
            leader = (await admin.controller_metadata(controller)).controller_leader_address
            sets = await admin.sync_state_sets(controller, [broker_name])
        except GantryError as e:
            problem = problem or e
        else:
            return SyncStateSetSeen(controllers, leader, sets.get(broker_name))
    return SyncStateSetSeen(controllers, error=problem)
