"""Tests that a command is imported only when it runs, and that the help tables match the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from gantrymq import Message, Producer, SyncProducer
from gantrymq.cli import consume
from gantrymq.cli.admin.app import MqadminGroup
from gantrymq.cli.app import GantryGroup
from gantrymq.cli.lazy import LazyGroup, load
from gantrymq.cli.main import run
from gantrymq.cli.plain_options import parse_quickly
from gantrymq.cli.server_options import COMMANDS, ServerOptions, server_options
from gantrymq.testing.embedded import EmbeddedCluster

#: Modules that each take longer to import than the help takes to show.
HEAVY = ("asyncio", "msgspec", "pydantic", "rich", "ssl", "uvloop", "yaml", "gantrymq.client", "gantrymq.store")
#: Modules that `gantry consume` does not need to read a topic.
NOT_FOR_CONSUME = (
    *("typer", "pydantic", "rich", "yaml", "urllib.request", "importlib.metadata"),
    *("gantrymq.client.admin", "gantrymq.client.producing.transaction_producer"),
)
#: Largest number of modules, with those of the standard library, that a help and `gantry consume` import.
MOST_FOR_HELP = 240
MOST_FOR_CONSUME = 380


@pytest.mark.parametrize("arguments", [["--help"], ["admin", "--help"], ["broker", "--help"], ["--version"]])
def test_help_imports_little(arguments: list[str]) -> None:
    """Times depend on the machine, so the test checks the imported modules instead."""
    script = (
        "import sys; from gantrymq.cli.main import run\n"
        f"run({arguments!r})\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "commands = [name for name in sys.modules if name.startswith('gantrymq.cli.')]\n"
        "assert not found, found\n"
        "assert len(commands) <= 8, commands\n"
        f"assert len(sys.modules) <= {MOST_FOR_HELP}, len(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


def test_consume_imports_little(tmp_path: Path) -> None:
    with EmbeddedCluster(directory=tmp_path) as cluster:
        with SyncProducer(Producer(cluster.name_server, "makers")) as producer:
            producer.send(Message("orders", b"one"))
        script = (
            "import sys; from gantrymq.cli.main import run\n"
            f"assert run(['consume', 'orders', '-c', '1', '-n', {cluster.name_server!r}]) == 0\n"
            f"found = [name for name in {NOT_FOR_CONSUME!r} if name in sys.modules]\n"
            "assert not found, found\n"
            f"assert len(sys.modules) <= {MOST_FOR_CONSUME}, len(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
    assert done.stdout == b"one\n"


def test_helps_are_plain_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, texts in (
        (["--help"], [lazy.help for lazy in GantryGroup.table.values()]),
        (["admin", "--help"], [lazy.help for lazy in MqadminGroup.table.values() if not lazy.hidden]),
        (["context", "--help"], ["Remove a cluster."]),
    ):
        assert run(arguments) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "│" not in out
        for text in texts:
            assert text in out
    assert run(["admin", "--help"]) == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert headings[:4] == ["Options:", "Topics:", "Brokers:", "Consumer groups:"]


def test_one_command_of_admin_imports_no_other() -> None:
    script = (
        "import sys; from gantrymq.cli.main import run\n"
        "run(['admin', 'topicList', '--help'])\n"
        "found = [name for name in sys.modules if name.startswith('gantrymq.cli.admin.')]\n"
        "assert 'gantrymq.cli.admin.topics' in found and 'gantrymq.cli.admin.brokers' not in found, found\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("name", GantryGroup.table)
def test_a_shells_completion_is_that_of_gantry(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert "completion" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in (GantryGroup, MqadminGroup) for name in group.table]
)
def test_a_table_says_what_the_command_says(group: type[LazyGroup], name: str) -> None:
    lazy = group.table[name]
    command = load(lazy.module, name)
    first = " ".join((command.help or "").split("\n\n")[0].split())
    assert first.startswith(lazy.help.rstrip(".")), first
    assert (command.name, command.hidden) == (name, lazy.hidden)


def test_no_command_of_a_module_is_missing_in_the_table() -> None:
    for module in {lazy.module for lazy in MqadminGroup.table.values()}:
        commands = __import__(module, fromlist=["app"]).app.registered_commands
        assert {command.name for command in commands} <= MqadminGroup.table.keys(), module


def complete(words: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "gantrymq.cli"],
        env=os.environ
        | {"_GANTRY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=directory,
    )
    return done.stdout.split()


def test_a_shell_completes(tmp_path: Path) -> None:
    assert complete("gantry con", tmp_path) == ["consume", "console", "context", "controller"]
    assert complete("gantry admin updateTopicP", tmp_path) == ["updateTopicPerm"]
    assert complete("gantry broker --print", tmp_path) == ["--printConfig"]
    assert "--skip-bad" in complete("gantry produce t --skip", tmp_path)
    for misspelt in ("gantry topicLst ", "gantry admin topicLst "):
        complete(misspelt, tmp_path)


def test_completion_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        # The second command keeps bash from replacing itself, so Typer finds the shell among the parent processes.
        ["bash", "-c", f"{sys.executable} -m gantrymq.cli --show-completion; exit $?"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "_GANTRY_COMPLETE=complete_bash" in done.stdout, done


# -- servers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_both_parsers_of_a_server_know_the_same(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    for option in server_options(command):
        assert all(flag in out for flag in option.flags)
    arguments = ["-c", "file", "--namesrvAddr", "a:1;b:2", "-p", "--stop-on-eof"]
    values = parse_quickly(server_options(command), arguments)
    assert values is not None
    assert ServerOptions(**values) == ServerOptions(Path("file"), "a:1;b:2", True, True)
    values = parse_quickly(server_options(command), [])
    assert values is not None
    assert ServerOptions(**values) == ServerOptions()
    for unclear in (["--help"], ["-h"], ["-c"], ["--print"], ["more"]):
        assert parse_quickly(server_options(command), unclear) is None


def test_both_parsers_of_consume_know_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["consume", "--help"]) == 0
    out = capsys.readouterr().out
    for option in consume.OPTIONS:
        assert all(flag in out for flag in option.flags)
    received: list[consume.ConsumeOptions] = []
    monkeypatch.setattr(consume, "run", received.append)
    for arguments in (
        ["a"],
        ["a", "b", "-c", "3", "-o", "-5", "-f", "%k", "-e", "--json", "-p", "0", "--tls-config", "tls.properties"],
        ["-n", "h:1", "--context=x", "--tags", "A || B", "-g", "g", "a", "--decode", "json", "--sql", "a > 1"],
    ):
        assert run(["consume", *arguments]) == 0
        with pytest.raises(SystemExit):
            load(GantryGroup.table["consume"].module, "consume").main(arguments, prog_name="gantry consume")
        assert received[-2] == received[-1]
    for unclear in ([], ["a", "-c", "0"], ["a", "-c", "x"], ["a", "-p", "-1"], ["a", "--tls-config", str(tmp_path)]):
        assert parse_quickly(consume.OPTIONS, unclear) is None
        assert run(["consume", *unclear]) == 2


def test_what_only_typer_understands_runs_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "broker.properties"
    config.write_text("brokerName=broker-x\n")
    command = load(GantryGroup.table["broker"].module, "broker")
    with pytest.raises(SystemExit) as ended:
        command.main(["-p", "-c", str(config)], prog_name="gantry broker")
    assert ended.value.code == 0
    assert "brokerName=broker-x" in capsys.readouterr().out
    assert isinstance(command, typer.core.TyperCommand)
