"""Tests of the `gantry` command line: help, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gantrymq import __version__, kernels
from gantrymq.cli.main import run


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("namesrv", "broker", "up", "demo"):
        assert command in out


@pytest.mark.parametrize(
    ("command", "option"),
    [("namesrv", "--printConfig"), ("broker", "--namesrvAddr"), ("up", "--brokers"), ("demo", "--fresh")],
)
def test_each_command_has_help(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert option in out
    assert f"gantry {command}" in out


@pytest.mark.parametrize(("module", "says"), [(None, "without"), (object(), "with")])
def test_version(
    module: object, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "native", module)
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"gantry {__version__} ({says} gantrymq-native)\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nonsense"], "nonsense"),
        (["broker", "--nonsense"], "--nonsense"),
        (["up", "--brokers", "0"], "--brokers"),
        (["namesrv", "-c"], "-c"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("command", ["namesrv", "broker"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listenPort=ten", "listenPort=ten: must be a whole number"),
        ("autoCreateTopicEnable=maybe\norderMessageEnable=maybe", "must be true or false"),
        ("brokerName=\\u12\nx=\\u12", "needs four hexadecimal digits"),
    ],
)
def test_a_bad_configuration_is_1_and_names_file_and_reason(
    command: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "bad.properties"
    config.write_text(text)
    assert run([command, "-c", str(config)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("gantry: ")
    assert str(config) in err
    assert message in err
    assert "Traceback" not in err


def test_a_missing_configuration_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "-c", str(tmp_path / "none")]) == 1
    assert "can't read the configuration file" in capsys.readouterr().err


def test_the_help_lists_debug_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert "  --debug " in out
    assert "gantry consume orders -e" in out


def test_debug_lets_the_error_through(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="can't read the configuration file"):
        run(["--debug", "broker", "-c", str(tmp_path / "none")])


def test_printed_configuration_can_be_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "broker.properties"
    config.write_text(
        "brokerName = broker-x\nlistenPort=12345\nflushDiskType=SYNC_FLUSH\n"
        f"storePathRootDir={tmp_path}/store\nnamesrvAddr=127.0.0.1:1\n"
    )
    assert run(["broker", "-c", str(config), "-n", "127.0.0.1:9876;127.0.0.2:9876", "-p"]) == 0
    out = capsys.readouterr().out
    for line in (
        "brokerName=broker-x",
        "listenPort=12345",
        "flushDiskType=SYNC_FLUSH",
        f"storePathRootDir={tmp_path}/store",
        "namesrvAddr=127.0.0.1:9876;127.0.0.2:9876",
    ):
        assert line in out.splitlines()
    config.write_text(out)
    assert run(["broker", "-c", str(config), "-p"]) == 0
    assert capsys.readouterr().out == out


def test_servers_start_without_what_they_do_not_need(tmp_path: Path) -> None:
    # Each of these takes longer to import than a whole broker.
    heavy = "typer", "rich", "click", "pyspark", "pyarrow", "pandas", "numpy"
    script = (
        "import sys; from gantrymq.cli.main import run\n"
        "for command in ('namesrv', 'broker'): assert run([command, '-p']) == 0\n"
        f"assert not sys.modules.keys() & {set(heavy)}, sys.modules.keys() & {set(heavy)}\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, timeout=30)
