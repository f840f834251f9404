"""Clusters of Apache's servers and of this project's, in all four combinations, and of Apache's earlier version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from coverage_matrix import Recorder, coverage_of
from servers import (
    Server,
    build,
    gantry_broker,
    gantry_namesrv,
    java_broker,
    java_broker_5_4,
    java_namesrv,
    java_namesrv_5_4,
    missing_tools,
)


@dataclass(frozen=True)
class Cluster:
    """A NameServer and a broker registered with it."""

    namesrv: Server
    broker: Server

    @property
    def address(self) -> str:
        return self.namesrv.address


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--matrix", type=Path, metavar="FILE", help="write the outcomes of interop/ to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop(feature, clients, servers, version): what a test covers")
    if path := config.getoption("--matrix"):
        config.pluginmanager.register(Recorder(path))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            # Raises an error if the marker is missing.
            coverage_of(item)


@pytest.fixture(scope="session", autouse=True)
def java(pytestconfig: pytest.Config) -> None:
    """Builds the Java side once. Skips all tests if this is not possible.

    With `--matrix`, tools/interop_matrix.py has built it for all modules.
    """
    missing = missing_tools()
    if missing:
        pytest.skip(f"interoperability tests need Java and Maven: {missing}")
    if not pytestconfig.getoption("--matrix"):
        build()


#: NameServer and broker of each combination. The first one is all Java. It is the control: it tests the test programs.
COMBINATIONS = {
    "java-java": (java_namesrv, java_broker),
    "gantry-gantry": (gantry_namesrv, gantry_broker),
    "java-gantry": (java_namesrv, gantry_broker),
    "gantry-java": (gantry_namesrv, java_broker),
}
#: Apache's servers of an earlier version.
EARLIER = {"java-java@5.4": (java_namesrv_5_4, java_broker_5_4)}


#: For tests of this project's clients: all combinations, and Apache's earlier versions.
ALL_VERSIONS = pytest.mark.parametrize("cluster", [*COMBINATIONS, *EARLIER], indirect=True)
#: For tests that do not need all combinations: Apache's cluster as the control, and this project's.
ONE_KIND = pytest.mark.parametrize("cluster", ["java-java", "gantry-gantry"], indirect=True)


@pytest.fixture(scope="session", params=COMBINATIONS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yields each combination in turn. Its name is NAMESERVER-BROKER, with @VERSION if it is not the newest one."""
    with running(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@contextmanager
def running(combination: str, directory: Path) -> Iterator[Cluster]:
    """Runs a cluster of this combination, with its files in `directory`."""
    start_namesrv, start_broker = {**COMBINATIONS, **EARLIER}[combination]
    namesrv = start_namesrv(directory / "namesrv")
    try:
        broker = start_broker(directory / "broker", namesrv.address)
        try:
            yield Cluster(namesrv, broker)
        finally:
            broker.kill()
    finally:
        namesrv.kill()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Returns a unique topic for each test, because tests in several files have the same name."""
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{request.path.stem}_{request.node.name}").strip("_")[:120]
