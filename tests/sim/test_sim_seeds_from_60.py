"""Seeds 60 to 119 of the simulator. Two files share the seeds, so that two processes run them."""

from __future__ import annotations

import pytest
from seeds_run import Seeds, seeds_of_file

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

seeds = pytest.fixture(scope="module")(seeds_of_file)


@pytest.mark.parametrize("seed", range(60, 120))
def test_seed(seed: int, seeds: Seeds) -> None:
    assert seeds.problems(seed) == []
