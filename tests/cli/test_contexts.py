"""Tests of `gantry context`: target cluster by -n, by context, by environment and by default."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantrymq.cli.main import run
from gantrymq.cli.target import find_target
from gantrymq.contexts import Contexts, contexts_path
from gantrymq.errors import ConfigError
from gantrymq.testing.embedded import EmbeddedCluster

Gantry = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def gantry(capsys: pytest.CaptureFixture[str]) -> Gantry:
    """Runs a command and returns its exit code, its output and its error output."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return (run(arguments), *capsys.readouterr())

    return call


def shown(gantry: Gantry, *arguments: str) -> Any:
    code, out, _ = gantry("context", "show", "--json", *arguments)
    assert code == 0
    return json.loads(out)


def test_a_context_from_begin_to_end(cluster: EmbeddedCluster, gantry: Gantry) -> None:
    assert "no context yet" in gantry("context", "list")[1]
    assert gantry("context", "add", "here", "-n", cluster.name_server)[0] == 0
    assert gantry("context", "add", "prod", "-n", "10.0.0.1:9876; 10.0.0.2:9876")[0] == 0
    assert gantry("admin", "topicList", "--context", "here")[0] == 0
    assert gantry("context", "use", "here")[0] == 0
    for command in (["admin", "topicList"], ["doctor"], ["topology", "--once"]):
        code, out, err = gantry(*command)
        assert (code, err) == (0, ""), out
    _, out, _ = gantry("context", "list")
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["*", "here"],
        ["prod", "10.0.0.1:9876;10.0.0.2:9876"],
    ]
    assert [one["name"] for one in json.loads(gantry("context", "list", "--json")[1])] == ["here", "prod"]
    assert shown(gantry)["namesrvAddr"] == cluster.name_server
    assert shown(gantry, "prod")["namesrvAddr"] == "10.0.0.1:9876;10.0.0.2:9876"
    assert "no context is current" in gantry("context", "remove", "here")[1]
    assert shown(gantry)["namesrvAddr"] == "127.0.0.1:9876"


def test_who_says_where_a_command_goes(gantry: Gantry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: a\nsecretKey: b\n")
    for name in ("one", "two", "three"):
        assert gantry("context", "add", name, "-n", f"{name}:1", "--acl-config", str(keys))[0] == 0
    assert find_target().name_servers == "127.0.0.1:9876"
    gantry("context", "use", "one")
    assert (find_target().name_servers, find_target().acl_config) == ("one:1", keys)
    # The keys belong to the context, so they are not used for the cluster of NAMESRV_ADDR.
    monkeypatch.setenv("NAMESRV_ADDR", "env:1")
    assert (find_target().name_servers, find_target().acl_config) == ("env:1", None)
    monkeypatch.setenv("GANTRY_CONTEXT", "two")
    assert (find_target().name_servers, find_target().acl_config) == ("two:1", keys)
    assert find_target(context="three").name_servers == "three:1"
    given = find_target("given:1")
    assert (given.name_servers, given.acl_config, given.origin) == ("given:1", None, "-n")
    both = find_target("given:1", "three")
    assert (both.name_servers, both.acl_config) == ("given:1", keys)
    assert find_target(context="three", acl_config=Path("other.yml")).acl_config == Path("other.yml")


def test_only_the_user_reads_and_writes_the_file(gantry: Gantry, no_contexts: Path) -> None:
    gantry("context", "add", "prod", "-n", "10.0.0.1:9876")
    assert contexts_path() == no_contexts / "gantrymq" / "contexts.json"
    assert stat.S_IMODE(contexts_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(contexts_path().parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["add", "prod", "-n", "10.0.0.1:9876"], 1, "gantry context remove prod"),
        (["add", "a b", "-n", "10.0.0.1:9876"], 1, "can't be a context's name"),
        (["add", "other", "-n", "10.0.0.1"], 2, "10.0.0.1"),
        (["add", "other", "-n", " ; "], 2, "at least one"),
        (["add", "other"], 2, "--namesrvAddr"),
        (["add", "other", "-n", "a:1", "--acl-config", "/nowhere/tools.yml"], 1, "/nowhere/tools.yml"),
        (["add", "other", "-n", "a:1", "--tls-config", "/nowhere/tls"], 1, "/nowhere/tls"),
        (["use", "prd"], 1, "there is no context 'prd'; known: prod"),
        (["show", "prd"], 1, "there is no context 'prd'"),
        (["remove", "prd"], 1, "there is no context 'prd'"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], code: int, named: str, gantry: Gantry) -> None:
    gantry("context", "add", "prod", "-n", "10.0.0.1:9876")
    assert gantry("context", *arguments)[0] == code
    assert named in gantry("context", *arguments)[2]


def test_a_context_that_is_not_there_stops_every_command(gantry: Gantry, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = (
        ["admin", "topicList"],
        ["doctor"],
        ["topology"],
        ["produce", "T"],
        ["consume", "T"],
        ["bench", "produce"],
    )
    for command in commands:
        code, _, err = gantry(*command, "--context", "lost")
        assert (code, "there is no context 'lost'; known: none yet" in err) == (1, True), command
    monkeypatch.setenv("GANTRY_CONTEXT", "lost")
    assert gantry("admin", "topicList")[0] == 1


def test_a_file_that_cannot_be_read_is_named(gantry: Gantry) -> None:
    contexts_path().parent.mkdir(parents=True)
    for content in (b"{", b"\xff", b'{"contexts": {"a": {}}}', b'{"contexts": {"a": {"namesrvAddr": "a:1", "x": 1}}}'):
        contexts_path().write_bytes(content)
        with pytest.raises(ConfigError, match=r"contexts\.json can't be read: .*; correct or delete"):
            Contexts()
    code, _, err = gantry("admin", "topicList")
    assert code == 1
    assert str(contexts_path()) in err


@pytest.mark.parametrize(
    "command",
    [
        ["consume", "orders"],
        ["produce", "orders"],
        ["request", "orders", "hello"],
        ["topology", "--once"],
        ["admin", "topicRoute", "-t", "orders"],
    ],
)
def test_an_address_without_a_port_names_its_origin(
    command: list[str], gantry: Gantry, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = gantry(*command, "-n", "somewhere")
    assert (code, err) == (
        1,
        "gantry: -n: 'somewhere' is not HOST:PORT; a NameServer listens on port 9876 by default\n",
    )
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2")
    code, _, err = gantry(*command)
    assert code == 1
    assert err.startswith("gantry: NAMESRV_ADDR: '10.0.0.2' is not HOST:PORT")
