"""Provides one cluster for all tests of the package. Each test has its own topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running
