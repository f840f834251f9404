"""Times at which the console queries a server that did not respond."""

from __future__ import annotations

from gantrymq.console.circuit_breakers import PROBE_EVERY_S, CircuitBreakers


def test_one_probe_at_a_time() -> None:
    breakers = CircuitBreakers()
    assert breakers.problem("a") is None
    assert not breakers.begins_probe("a", 0.0)
    breakers.failed("a", "no answer", 0.0)
    assert breakers.problem("a") == "no answer"
    assert not breakers.begins_probe("a", PROBE_EVERY_S - 1)
    assert breakers.begins_probe("a", PROBE_EVERY_S)
    assert not breakers.begins_probe("a", 2 * PROBE_EVERY_S - 1)
    breakers.failed("a", "still none", 20.0)
    assert not breakers.begins_probe("a", 20.0 + PROBE_EVERY_S - 1)
    assert breakers.begins_probe("a", 20.0 + PROBE_EVERY_S)
    breakers.answered("a")
    assert breakers.problem("a") is None
