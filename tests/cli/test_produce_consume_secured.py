"""Tests of `gantry produce`, `consume` and `bench` with access control and with a TLS configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.auth.config import AuthConfig
from gantrymq.cli.main import run
from gantrymq.testing.embedded import EmbeddedCluster

USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(auth=USERS) as cluster:
        yield cluster


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: root\nsecretKey: rootpass\n")
    return ["--acl-config", str(file)]


def test_with_keys(
    cluster: EmbeddedCluster, keys: list[str], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "line").write_bytes(b"signed\n")
    common = ["-n", cluster.name_server, *keys]
    assert run(["produce", "secured", str(tmp_path / "line"), *common]) == 0
    assert run(["consume", "secured", "-e", *common]) == 0
    assert run(["consume", "secured", "-e", "-g", "secured", *common]) == 0
    assert capsysbinary.readouterr() == (b"signed\n" * 2, b"")
    assert run(["bench", "produce", "-t", "secured", "-q", "10", *common]) == 0
    assert run(["bench", "consume", "-t", "secured", "-q", "10", "--fromFirst", *common]) == 0


def test_without_keys(cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "line").write_bytes(b"not signed\n")
    assert run(["produce", "refused", str(tmp_path / "line"), "-n", cluster.name_server]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"gantry: {cluster.brokers[0]} answered code 16: ")
    assert "The request has no access key: give --acl-config FILE, or credentials=Credentials(" in err
    assert "0 of 1 messages acknowledged" in err


@pytest.mark.parametrize("command", [["produce", "t"], ["consume", "t"], ["bench", "produce"], ["bench", "consume"]])
@pytest.mark.parametrize("option", ["--tls-config", "--acl-config"])
def test_a_configuration_that_is_not_there(command: list[str], option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "-n", "127.0.0.1:1", option, "/nowhere/file"]) == 1
    assert "/nowhere/file" in capsys.readouterr().err
