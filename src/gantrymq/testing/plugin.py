"""pytest plugin: a fixture for tests that need a cluster.

pytest loads this module in every project where gantrymq is installed, so it imports the servers only on use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gantrymq.testing.embedded import EmbeddedCluster


class PlainImports(MetaPathFinder):
    """Imports the modules of gantrymq without pytest's assertion rewriting.

    pytest rewrites the asserts of all packages in a distribution that has a plugin. For gantrymq, this would delay the
    first test by more than a second. Python uses the first finder that finds a module, so this one precedes pytest's.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("gantrymq.") else None


_plain_imports = PlainImports()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    # Before conftest.py, which can import gantrymq.
    sys.meta_path.insert(0, _plain_imports)


def pytest_unconfigure() -> None:
    if _plain_imports in sys.meta_path:
        sys.meta_path.remove(_plain_imports)


@pytest.fixture
def gantry_cluster() -> Iterator[EmbeddedCluster]:
    """A running EmbeddedCluster with one broker for one test. Pass `gantry_cluster.name_server` to clients."""
    from gantrymq.background.collector import without_collections

    # The imports create many objects but no garbage. Garbage collection would take 30 ms of their 220 ms.
    with without_collections():
        from gantrymq.testing.embedded import EmbeddedCluster

    with EmbeddedCluster() as cluster:
        yield cluster
