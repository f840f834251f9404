"""Tests that the commands of docs/broker.md run, its files are valid, and its tables are complete."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from ports import free_port
from wait_until import wait_until

from gantrymq.auth.config import AuthConfig
from gantrymq.auth.plain_acl import parse_plain_acl
from gantrymq.broker.admin.broker_config import READ_AT_START
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import parse_properties, property_key, to_properties
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig
from gantrymq.testing.embedded import EmbeddedCluster

DOCUMENT = Path(__file__).parent.parent / "docs" / "broker.md"
TEXT = DOCUMENT.read_text()
#: The address in the examples.
ADDRESS = "127.0.0.1:9876"
ADMIN_FILE = "admin.yml"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def run(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    assert arguments[0] == "gantry"
    command = [sys.executable, "-m", "gantrymq.cli", *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=directory)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker_conf = tmp_path_factory.mktemp("broker") / "broker.conf"
    broker_conf.touch()
    with EmbeddedCluster(broker_name="broker-a", broker_config_path=broker_conf, enable_lmq=True) as cluster:
        yield cluster.name_server


@pytest.fixture(scope="module")
def guarded_address() -> Iterator[str]:
    """Runs a cluster with the access control of the example and yields its address."""
    [text] = [block for block in blocks("properties") if "initAuthenticationUser" in block]
    properties = parse_properties(text, source="example")
    auth = AuthConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=properties["initAuthenticationUser"],
    )
    with EmbeddedCluster(auth=auth) as cluster:
        yield cluster.name_server


def admin_commands(*, guarded: bool) -> list[list[str]]:
    return [command for command in commands() if command[1] == "admin" and (ADMIN_FILE in command) == guarded]


def test_commands_of_administration_run(address: str, tmp_path: Path) -> None:
    chosen = [command for command in admin_commands(guarded=False) if "GROUP" not in command]
    assert len(chosen) >= 7
    for command in chosen:
        done = run([address if part == ADDRESS else part for part in command], tmp_path)
        assert done.returncode == 0, (command, done.stdout + done.stderr)


def test_signed_commands_run(guarded_address: str, tmp_path: Path) -> None:
    [keys] = [block for block in blocks("yaml") if ADMIN_FILE in block]
    (tmp_path / ADMIN_FILE).write_text(keys)
    (tmp_path / "shop.password").write_text("shop-secret\n")
    chosen = admin_commands(guarded=True)
    assert len(chosen) >= 3
    for command in chosen:
        command = [guarded_address if part == ADDRESS else part for part in command]
        done = run(command, tmp_path)
        assert done.returncode == 0, (command, done.stdout + done.stderr)
        unsigned = run(command[: command.index("--acl-config")], tmp_path)
        assert unsigned.returncode == 1, unsigned.stdout
    assert "User:shop" in done.stdout
    assert "Topic:orders" in done.stdout


@pytest.mark.parametrize("text", blocks("properties"))
def test_configuration_is_known(text: str, tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(text)
    done = run(["gantry", "broker", "-c", "broker.conf", "-p"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not used here" not in done.stderr
    shown = parse_properties(done.stdout, source="-p")
    for key, value in parse_properties(text, source="example").items():
        if key != "initAuthenticationUser":
            assert shown[key] == value


def test_options_of_the_servers_are_known(tmp_path: Path) -> None:
    chosen = [command for command in commands() if command[1] in ("up", "broker")]
    assert len(chosen) >= 4
    for command in chosen:
        options = {part for part in command if part.startswith("-")}
        help_text = run([*command[:2], "--help"], tmp_path).stdout
        for option in options:
            assert re.search(rf"(?<![\w-]){option}\b", help_text), command


def test_accounts_are_read() -> None:
    [text] = [block for block in blocks("yaml") if "accounts:" in block]
    acl = parse_plain_acl(text.encode(), "plain_acl.yml")
    assert set(acl.accounts) == {"administrator", "shop-app"}


# -- tables -----------------------------------------------------------------------------------------------------


def key_rows() -> dict[str, tuple[str, str]]:
    """Returns {key: (default, when it is read)} of the table of all keys."""
    table = TEXT.partition("## All keys")[2]
    rows = re.findall(r"^\| `([^`]+)` \| (.*?) \| (.*?) \| .* \|$", table, re.MULTILINE)
    assert len(rows) == len({key for key, _, _ in rows})
    return {key: (default, when) for key, default, when in rows}


def defaults() -> dict[str, str | None]:
    """Returns {key: text of its default}. The text is None if it depends on the machine."""
    values: dict[str, str | None] = {}
    configs: list[Any] = [BrokerConfig(), ReplicationConfig(), StoreConfig(Path("store")), AuthConfig()]
    for config in configs:
        text = to_properties(config)
        for field in fields(config):
            key = property_key(field)
            if field.name not in ("store", "replication", "auth"):
                varies = key == "brokerName" or (field.default is MISSING and field.default_factory is MISSING)
                values[key] = None if varies else text.get(key, "")
    return values


def test_the_table_has_all_keys_with_their_defaults() -> None:
    rows = key_rows()
    expected = defaults()
    assert rows.keys() == expected.keys()
    for key, value in expected.items():
        default, when = rows[key]
        if value:
            assert default == f"`{value}`", key
        else:
            # The key has no default, or the table describes it in words.
            assert "`" not in default.replace("`-c`", ""), key
        assert (when == "*start*") == (key in READ_AT_START), key


def test_the_table_has_all_metrics(tmp_path: Path) -> None:
    listed = set(re.findall(r"`((?:rocketmq|gantry)_\w+)`", TEXT.partition("## Metrics")[2].partition("\n## ")[0]))
    port = free_port()

    def told() -> set[str]:
        page = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        return set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))

    tier = str(tmp_path / "tier")
    with EmbeddedCluster(metrics_port=port, bind_address="127.0.0.1", tiered_store_file_path=tier):
        # The broker reads the tier in the background.
        wait_until(lambda: "gantry_tier_segments" in told())
        assert told() == listed
