"""Members of an etcd cluster as processes, if etcd is installed (Debian: etcd-server)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port

#: Skips all tests of a file if etcd is missing.
needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed")


class Member:
    """A member of a cluster, on its own ports. It keeps its data when it is restarted."""

    def __init__(self, directory: Path, name: str, port: int, peer_port: int) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._cluster = ""

    def start(self, cluster: str) -> None:
        self._cluster = cluster
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("etcd", "--name", self.name, "--data-dir", str(self._directory / self.name)),
                    *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
                    *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
                    *("--initial-cluster", cluster, "--heartbeat-interval", "50", "--election-timeout", "500"),
                ],
                stdout=log,
                stderr=log,
            )

    def start_again(self) -> None:
        self.start(self._cluster)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def etcd(directory: Path, members: int = 1) -> Iterator[list[Member]]:
    """Starts a cluster and yields its members. They can still be starting."""
    directory.mkdir()
    ports = [free_port() for _ in range(2 * members)]
    made = [Member(directory, f"m{i}", ports[2 * i], ports[2 * i + 1]) for i in range(members)]
    cluster = cluster_of(made)
    try:
        for member in made:
            member.start(cluster)
        yield made
    finally:
        for member in made:
            member.kill()


def cluster_of(members: list[Member]) -> str:
    return ",".join(f"{member.name}={member.peer_url}" for member in members)
