"""What seeds mean: plans that can be carried out."""

from __future__ import annotations

from sim.shrink import plan_of


def test_faults_hit_programs_that_there_are() -> None:
    """One that lies may have had all poppers left out (seed 6601)."""
    for seed in range(7000):
        plan = plan_of(str(seed))
        known = {*plan.servers, *plan.clients}
        assert not [str(fault) for fault in plan.faults if fault.whom not in known], seed
