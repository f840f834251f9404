"""Seeds that failed once, and never are to again: a line each, and it is a test (tests/sim/test_sim_regressions.py).

What it was, and the seed; or the plan that `./dev sim --seed K --shrink` prints, which means the same when plan.py has
learned something new.
"""

from __future__ import annotations

REGRESSIONS: dict[str, str] = {
    "planted: a delay level is early": '{"seed": "13", "name_servers": 1, "brokers": 1, "producers": 3, "consumers": {"push": 1, "orderly": 1, "pop": 0, "lite": 0}, "is_synced": true, "messages": 20, "pause_s": 0.5, "ordered": 0.6, "delayed": 0.2, "batches": 0.0, "transactions": 0.0, "failures": 0.0, "tiny_reads": 0.0, "extras": [], "faults": []}',  # noqa: E501
}
