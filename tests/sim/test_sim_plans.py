"""sim/plan.py: plans of seeds can be executed."""

from __future__ import annotations

from sim.shrink import plan_of


def test_faults_hit_programs_that_there_are() -> None:
    """The fault `lies` removes all pop consumers, so no fault may have one as target (seed 6601)."""
    for seed in range(7000):
        plan = plan_of(str(seed))
        known = {*plan.servers, *plan.clients}
        assert not [str(fault) for fault in plan.faults if fault.whom not in known], seed


def test_no_broker_with_a_damaged_record_is_started_again() -> None:
    """Recovery would end the log at the damaged record (seed 50274)."""
    restarts = {"kill", "end", "power", "power-at-sync", "sync-error"}
    for seed in range(50_000, 53_000):
        faults = plan_of(str(seed)).faults
        damaged = {fault.whom for fault in faults if fault.kind in ("rot", "rot-unread")}
        assert not [str(fault) for fault in faults if fault.kind in restarts and fault.whom in damaged], seed


def test_with_access_control_all_clocks_are_right_until_the_set_up() -> None:
    """A broker refuses signatures whose time differs from its clock by more than five minutes (seed 13767)."""
    for seed in range(13_000, 15_000):
        plan = plan_of(str(seed))
        assert not plan.acl or not [str(fault) for fault in plan.faults if fault.at < 0], seed
