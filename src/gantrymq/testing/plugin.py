"""pytest plugin: a fixture for tests that need a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture
def gantry_cluster() -> Iterator[EmbeddedCluster]:
    """A running EmbeddedCluster with one broker for one test. Pass `gantry_cluster.name_server` to clients."""
    # pytest loads this module in every project where gantrymq is installed, so servers are imported only on use.
    from gantrymq.testing.embedded import EmbeddedCluster

    with EmbeddedCluster() as cluster:
        yield cluster
