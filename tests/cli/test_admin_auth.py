"""Tests of mqadmin's commands for users and policies, and of signed requests."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from admin_support import CLUSTER, Admin, admin

from gantrymq.auth.config import AuthConfig
from gantrymq.cli.main import run
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin"]

USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with users."""
    with EmbeddedCluster(2, auth=USERS) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a ROCKETMQ_HOME directory, where mqadmin looks for its keys."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: rootpass\n")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    return tmp_path


def test_life_of_a_user(admin: Admin, cluster: EmbeddedCluster) -> None:
    first, second = cluster.brokers
    assert admin("createUser", "-c", CLUSTER, "-u", "alice", "-p", "secret12") == {"brokers": [first, second]}
    alice = {"username": "alice", "password": "secret12", "userType": "Normal", "userStatus": "enable"}
    assert admin("getUser", "-b", second, "-u", "alice") == [alice]
    admin("updateUser", "-b", second, "-u", "alice", "-s", "disable")
    assert admin("listUser", "-b", second, "-f", "ali") == [alice | {"userStatus": "disable"}]
    assert admin("listUser", "-c", CLUSTER, "-f", "ali") == [alice]
    copy = ["copyUser", "-f", first, "-t", second, "-u", "alice,nobody"]
    plan = admin(*copy, "--dry-run")
    assert plan["action"] == f"copy users from {first}: create none, update 'alice' on {second}"
    assert admin("listUser", "-b", second, "-f", "ali") == [alice | {"userStatus": "disable"}]
    admin(*copy)
    assert admin("getUser", "-b", second, "-u", "alice") == [alice]
    admin("deleteUser", "-c", CLUSTER, "-u", "alice")
    assert admin("listUser", "-c", CLUSTER, "-f", "ali") == []


def test_a_password_from_a_file_or_from_standard_input(
    admin: Admin, cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("from-file\n")
    admin("createUser", "-c", CLUSTER, "-u", "carol", "--passwordFile", str(file))
    assert admin("getUser", "-b", cluster.brokers[0], "-u", "carol")[0]["password"] == "from-file"
    monkeypatch.setattr("sys.stdin", StringIO("from-input\r\n"))
    admin("updateUser", "-c", CLUSTER, "-u", "carol", "--passwordFile", "-")
    assert admin("getUser", "-b", cluster.brokers[0], "-u", "carol")[0]["password"] == "from-input"
    admin("deleteUser", "-c", CLUSTER, "-u", "carol")


def test_a_password_file_that_is_no_use(
    cluster: EmbeddedCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "password"
    command = ["admin", "createUser", "-b", cluster.brokers[0], "-u", "carol", "--passwordFile", str(file)]

    def refusal(*more: str) -> str:
        assert run([*command, *more]) == 2
        # Typer prints the error in a frame.
        return " ".join(capsys.readouterr().err.replace("│", " ").split())

    assert "can't read" in refusal()
    file.write_text("\nsecret")
    assert "is empty" in refusal()
    assert "only one of the two" in refusal("-p", "secret12")


def test_life_of_a_policy(admin: Admin, cluster: EmbeddedCluster) -> None:
    first, second = cluster.brokers
    admin("createUser", "-c", CLUSTER, "-u", "bob", "-p", "secret12")
    allowed = ("-s", "User:bob", "-r", "Topic:*,Group:g*", "-a", "Pub,Sub", "-i", "127.0.0.0/8", "-d", "Allow")
    admin("createAcl", "-b", first, *allowed)
    entry = {"actions": ["Pub", "Sub"], "sourceIps": ["127.0.0.0/8"], "decision": "Allow"}
    policy = {
        "policyType": "Custom",
        "entries": [{"resource": "Topic:*", **entry}, {"resource": "Group:g*", **entry}],
    }
    bob = {"subject": "User:bob", "policies": [policy]}
    assert admin("getAcl", "-b", first, "-s", "User:bob") == [bob]
    assert admin("getAcl", "-b", second, "-s", "User:bob") == []
    copy = ["copyAcl", "-f", first, "-t", second]
    plan = admin(*copy, "--dry-run")
    assert plan["action"] == f"copy permissions from {first}: create 'User:bob', update none on {second}"
    assert admin("listAcl", "-b", second) == []
    admin(*copy)
    assert admin("listAcl", "-b", second) == [bob]
    assert "update 'User:bob'" in admin(*copy, "--dry-run")["action"]
    admin("updateAcl", "-c", CLUSTER, "-s", "User:bob", "-r", "Topic:*", "-a", "Pub", "-d", "Deny")
    changed = admin("listAcl", "-b", first, "-s", "bob", "-r", "Topic")
    assert changed[0]["policies"][0]["entries"] == [{"resource": "Topic:*", "actions": ["Pub"], "decision": "Deny"}]
    admin("deleteAcl", "-b", first, "-s", "User:bob", "-r", "Topic:*")
    assert len(admin("listAcl", "-b", first)[0]["policies"][0]["entries"]) == 1
    admin("deleteAcl", "-c", CLUSTER, "-s", "User:bob")
    assert admin("listAcl", "-c", CLUSTER) == []


def test_who_does_not_sign_is_refused(
    cluster: EmbeddedCluster, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.yml"
    keys.write_text("accessKey: root\nsecretKey: guessed\n")
    assert run(["admin", "listUser", "-b", cluster.brokers[0], "--acl-config", str(keys)]) == 1
    assert "check signature failed. User:root" in capsys.readouterr().err
    (home / "conf" / "tools.yml").unlink()
    assert run(["admin", "listUser", "-b", cluster.brokers[0]]) == 1
    assert "username cannot be null" in capsys.readouterr().err
    assert run(["admin", "updateUser", "-b", cluster.brokers[0], "-u", "root"]) == 2


def test_tables_for_people(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "listUser", "-b", cluster.brokers[0]]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["UserName", "Password", "UserType", "UserStatus"] in shown
    assert ["root", "rootpass", "Super", "enable"] in shown
    assert run(["admin", "listAcl", "-b", cluster.brokers[0]]) == 0
    assert run(["admin", "getUser", "-b", cluster.brokers[0], "-u", "nobody"]) == 0
    assert "no broker that was asked has user nobody" in capsys.readouterr().out
