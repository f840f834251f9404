"""The limits on peers fit together, and into the memory that a server may take."""

from __future__ import annotations

import pytest

from gantrymq.limits import LIMITS, MIB, Limit, memory_of


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_one_connection_leaves_capacity_to_others(limit: Limit) -> None:
    """A host gets half of a limit, and a connection half of its host's share."""
    assert 0 < limit.items_of_one <= limit.items // 4
    assert 0 < limit.size_of_one <= limit.size // 4


@pytest.mark.parametrize(
    ("server", "most"), [("broker", 1716), ("NameServer", 520), ("controller", 520), ("proxy", 1304)]
)
def test_the_sum_of_all_limits(server: str, most: int) -> None:
    assert memory_of(server) <= most * MIB
