"""The time at which a controller replaces inactive masters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from controller_support import CLUSTER, NAME, Brokers, address

from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.elections import Elections
from gantrymq.controller.former_leases import MAX_LEASE_MS
from gantrymq.controller.live_brokers import BrokerIdentity, LiveBrokers
from gantrymq.system.clock import monotonic


async def test_a_master_is_replaced_when_its_lease_of_the_previous_leader_has_ended() -> None:
    """The next check depends on the lease, and not on `scanInactiveMasterInterval`."""
    brokers, live = Brokers(2), LiveBrokers()
    brokers.elect(1)
    unused: Any = None
    leadership: Any = SimpleNamespace(is_leader=True)
    elections = Elections(ControllerConfig(), brokers.replicas, live, leadership, unused, unused)
    assert brokers.now.master == 1
    began = monotonic()
    elections.begin()
    live.heartbeat(BrokerIdentity(CLUSTER, NAME, 2), address(2), object(), int(monotonic() * 1000))
    next_s = elections.look()
    assert next_s is not None
    waited_s = monotonic() - began
    assert MAX_LEASE_MS / 1000 - waited_s - 0.01 <= next_s <= MAX_LEASE_MS / 1000
    leadership.is_leader = False
    assert elections.look() is None
