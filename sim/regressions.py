"""Seeds that failed once, and never are to again: a line each, and it is a test (tests/sim/test_sim_regressions.py).

What it was, and the seed; or the plan that `./dev sim --seed K --shrink` prints, which means the same when plan.py has
learned something new.
"""

from __future__ import annotations

REGRESSIONS: dict[str, str] = {
    "planted: a delay level is early": '{"seed": "13", "name_servers": 1, "brokers": 1, "producers": 3, "consumers": {"push": 1, "orderly": 1, "pop": 0, "lite": 0}, "is_synced": true, "messages": 20, "pause_s": 0.5, "ordered": 0.6, "delayed": 0.2, "batches": 0.0, "transactions": 0.0, "failures": 0.0, "tiny_reads": 0.0, "extras": [], "faults": []}',  # noqa: E501
    "a new queue's directories were not on the disk": '{"seed": "81", "name_servers": 2, "brokers": 2, "producers": 1, "consumers": {"push": 1, "orderly": 2, "pop": 1, "lite": 0}, "is_synced": true, "messages": 25, "pause_s": 0.5, "ordered": 0.6, "delayed": 0.0, "batches": 0.0, "transactions": 0.0, "failures": 0.0, "tiny_reads": 0.0, "oneway": 0.0, "extras": ["retention"], "faults": [{"kind": "power", "whom": "broker-0", "at": 80.96, "lasts": 0.12, "strength": 0.22}]}',  # noqa: E501
    "a changed configuration was not on the disk": '{"seed": "142", "name_servers": 1, "brokers": 1, "producers": 1, "consumers": {"push": 1, "orderly": 1, "pop": 0, "lite": 0}, "is_synced": true, "messages": 1, "pause_s": 0.5, "ordered": 0.0, "delayed": 0.0, "batches": 0.0, "transactions": 0.0, "failures": 0.0, "tiny_reads": 0.0, "oneway": 0.0, "extras": ["configurations"], "faults": [{"kind": "power", "whom": "broker-0", "at": 80.42, "lasts": 0.2, "strength": 0.64}]}',  # noqa: E501
    "a group skipped what took the place of messages that a power failure had taken": '{"seed": "299", "name_servers": 2, "brokers": 1, "producers": 1, "consumers": {"push": 1, "orderly": 1, "pop": 0, "lite": 1}, "is_synced": false, "messages": 84, "pause_s": 0.2, "ordered": 0.6, "delayed": 0.2, "batches": 0.0, "transactions": 0.0, "failures": 0.0, "tiny_reads": 0.0, "oneway": 0.0, "extras": [], "faults": [{"kind": "power", "whom": "broker-0", "at": 16.89, "lasts": 0.15, "strength": 1.0}]}',  # noqa: E501
}
