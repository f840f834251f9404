"""Tests of the common parts of all `gantry admin` commands: names, options, errors, output."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from admin_support import CLUSTER, Admin, admin, cluster

from gantrymq.cli.admin.app import MqadminGroup, app
from gantrymq.cli.admin.examples import EXAMPLES
from gantrymq.cli.admin.output import human_time
from gantrymq.cli.admin.values import parse_attributes, parse_time
from gantrymq.cli.lazy import load
from gantrymq.cli.main import run
from gantrymq.cli.target import find_target
from gantrymq.protocol.unsupported_features import UNSUPPORTED_FEATURES
from gantrymq.protocol.version_name import version_name
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["admin", "cluster"]

ROOT = Path(__file__).parents[2]
COMPATIBILITY = ROOT / "docs" / "compatibility.md"
#: Number of commands that MQAdminStartup registers.
MQADMIN_COMMANDS = 96
#: Commands that are registered, and print the reason why they are refused.
UNSUPPORTED = {name for feature in UNSUPPORTED_FEATURES for name in feature.commands}
#: Commands that mqadmin does not have.
OWN_COMMANDS = {"givenUpTransactions", "resendDlq"}


def documented(state: str) -> set[str]:
    """Returns the mqadmin commands that docs/compatibility.md lists with this state."""
    section = COMPATIBILITY.read_text().partition("## mqadmin")[2].partition("\n## ")[0]
    return set(re.findall(rf"^\| `(\w+)` \| {state}", section, re.MULTILINE))


def commands() -> set[str]:
    group = typer.main.get_group(app)
    return set(group.list_commands(typer.Context(group)))


def test_every_command_of_mqadmin_is_there_and_documented() -> None:
    assert len(commands() - OWN_COMMANDS) == MQADMIN_COMMANDS
    assert documented("own") == OWN_COMMANDS
    assert documented("not supported") == UNSUPPORTED
    assert documented("served") == commands() - UNSUPPORTED - OWN_COMMANDS
    for readme in ("README.md", "README.zh-CN.md"):
        (line,) = re.findall(r"^.*mqadmin.*", (ROOT / readme).read_text(), re.MULTILINE)
        assert {str(MQADMIN_COMMANDS), str(len(documented("served")))} <= set(re.findall(r"\d+", line)), readme


@pytest.mark.parametrize("name", sorted(commands() - UNSUPPORTED))
def test_each_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", name, "-h"]) == 0
    out = capsys.readouterr().out
    assert "--namesrvAddr" in out
    assert "--json" in out


def test_a_brokers_address_in_place_of_a_name_servers(
    cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", "topicList", "-n", cluster.brokers[0]]) == 1
    err = capsys.readouterr().err
    assert f"{cluster.brokers[0]} answered code 3: request type 206 not supported; so answers a server" in err


@pytest.mark.parametrize("name", ["topicList", "topic-list", "topiclist", "TOPICLIST"])
def test_names_are_found_as_in_mqadmin_and_in_kebab_case(
    name: str, cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", name, "-n", cluster.name_server]) == 0
    assert "BenchmarkTest\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["topicLst", "topic-lst", "TOPICLST"])
def test_a_misspelt_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", name]) == 2
    assert f"No such command '{name}'. Did you mean 'topicList'" in capsys.readouterr().err


def test_a_name_without_admin(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("topicList", "topic-list", "topicLst"):
        assert run([name]) == 2
        assert f"No such command '{name}'. Did you mean 'gantry admin topicList'?" in capsys.readouterr().err
    assert run(["prodce"]) == 2
    assert "Did you mean 'produce'?" in capsys.readouterr().err
    for arguments in (["xyz"], ["admin", "xyz"]):
        assert run(arguments) == 2
        assert "No such command 'xyz'." in capsys.readouterr().err


def test_a_name_like_that_of_an_unsupported_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["admin", "startMonitorin"], ["startMonitorin"]):
        assert run(arguments) == 2
        assert "startMonitoring" not in capsys.readouterr().err


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_valid_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = load(MqadminGroup.table[name].module, name)
    command.make_context(name, shlex.split(EXAMPLES[name]))
    assert run(["admin", name, "-h"]) == 0
    assert f"Example: gantry admin {name}" in capsys.readouterr().out


def test_every_command_has_an_example_and_a_heading() -> None:
    served = {name: lazy for name, lazy in MqadminGroup.table.items() if not lazy.hidden}
    assert served.keys() == EXAMPLES.keys()
    assert all(lazy.panel for lazy in served.values())


def test_the_list_has_headings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "--help"]) == 0
    out = capsys.readouterr().out
    topics, _, groups = out.partition("Consumer groups")
    assert "deleteTopic" in topics
    assert "deleteSubGroup" in groups
    assert "gantry admin queryMsgByKey -t orders -k order-17" in out


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "update-static-topic",
            "updateStaticTopic: static topics are not supported: create the topic on further brokers",
        ),
        (
            "start-monitoring",
            "startMonitoring: monitoring commands are not supported: 'gantry doctor' checks a cluster once",
        ),
        (
            "switchTimerEngine",
            "switchTimerEngine: other timer engines are not supported: the broker's only timer engine",
        ),
    ],
)
def test_what_is_not_supported_says_why(name: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", name, "-n", "127.0.0.1:1", "--whatever", "x"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"gantry: {reason}")
    assert err.count("\n") == 1


def test_a_name_server_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "clusterList", "-n", "127.0.0.1:1"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gantry: can't connect to 127.0.0.1:1: ")
    assert err.count("\n") == 1


def test_an_unknown_topic_is_named(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("topicRoute", "topicStatus", "topicClusterList"):
        assert run(["admin", command, "-n", cluster.name_server, "-t", "Lost"]) == 1
        err = capsys.readouterr().err
        assert "'Lost'" in err
        assert err.count("\n") == 1


def test_an_unknown_group_is_named(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("consumerProgress", "consumerConnection"):
        assert run(["admin", command, "-n", cluster.name_server, "-g", "nobody"]) == 1
        err = capsys.readouterr().err
        assert f"{cluster.name_server} answers, and knows no consumer group 'nobody'" in err
        assert err.count("\n") == 1


def test_an_unknown_cluster_is_named(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "updateTopic", "-n", cluster.name_server, "-c", "Nowhere", "-t", "T"]) == 1
    assert f"no cluster 'Nowhere' at {cluster.name_server}, which knows {CLUSTER}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["topicRoute", "-n", "127.0.0.1:1"], "--topic"),
        (["updateTopic", "-n", "127.0.0.1:1", "-t", "T"], "-b"),
        (["updateTopic", "-n", "127.0.0.1:1", "-t", "T", "-b", "a:1", "-c", "C"], "-c"),
        (["updateTopic", "-n", "127.0.0.1:1", "-t", "T", "-c", "C", "-o", "maybe"], "maybe"),
        (["updateTopic", "-n", "127.0.0.1:1", "-t", "T", "-c", "C", "-r", "0"], "-r"),
        (["updateTopic", "-n", "127.0.0.1:1", "-t", "T", "-c", "C", "-a", "name=value"], "name=value"),
        (["updateTopicPerm", "-n", "127.0.0.1:1", "-t", "T", "-c", "C", "-p", "8"], "-p"),
        (["updateOrderConf", "-n", "127.0.0.1:1", "-t", "T", "-m", "put"], "--orderConf"),
        (["updateOrderConf", "-n", "127.0.0.1:1", "-t", "T", "-m", "post"], "--method"),
        (["setConsumeMode", "-n", "127.0.0.1:1", "-t", "T", "-g", "G", "-m", "PUSH", "-c", "C"], "--mode"),
        (["updateSubGroup", "-n", "127.0.0.1:1", "-g", "G", "-c", "C", "-p", "{"], "--groupRetryPolicy"),
        (["resetOffsetByTime", "-n", "127.0.0.1:1", "-t", "T", "-g", "G", "-s", "yesterday"], "yesterday"),
        (["resetOffsetByTime", "-n", "127.0.0.1:1", "-t", "T", "-g", "G", "-s", "0", "-q", "1"], "-q"),
        (["consumeMessage", "-n", "127.0.0.1:1", "-t", "T", "-i", "1"], "-i"),
        (["sendMessage", "-n", "127.0.0.1:1", "-t", "T", "-p", "x", "-i", "1"], "--broker"),
        (["queryMsgById", "-n", "127.0.0.1:1", "-t", "T", "-i", "x", "-f", "klingon"], "klingon"),
        (["topicList", "--nonsense"], "--nonsense"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["admin", *arguments]) == 2
    assert named in capsys.readouterr().err


def test_the_name_servers_come_from_the_environment(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:1;{cluster.name_server}")
    assert run(["admin", "topicList"]) == 0


def test_without_any_it_is_this_machine_as_for_all_commands() -> None:
    # Port 9876 can be in use on the test machine, so the test sends no request.
    assert find_target().name_servers == "127.0.0.1:9876"


def test_a_broker_needs_no_name_server(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    (broker,) = cluster.brokers
    assert run(["admin", "getBrokerConfig", "-n", "127.0.0.1:1", "-b", broker, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[broker]["brokerName"] == "broker-a"


def test_a_table_for_people(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "clusterList", "-n", cluster.name_server]) == 0
    out, err = capsys.readouterr()
    heading, _, row = out.strip().splitlines()
    assert heading.split("  ")[0] == "Cluster Name"
    assert row.split()[:4] == [CLUSTER, "broker-a", "0", cluster.brokers[0]]
    assert err == ""


def test_json_is_one_document(admin: Admin) -> None:
    assert "BenchmarkTest" in admin("topicList")


def test_a_tls_configuration_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["admin", "topicList", "-n", "127.0.0.1:1", "--tls-config", "/nowhere/tls.properties"]) == 1
    assert "/nowhere/tls.properties" in capsys.readouterr().err


def test_times() -> None:
    assert parse_time("1700000000000", "-b") == 1700000000000
    assert parse_time("-1", "-b") == -1
    ms = parse_time("2024-05-31#23:59:59:123", "-b")
    assert human_time(ms) == "2024-05-31 23:59:59,123"
    for text in ("2024-05-31T23:59:59.123", "2024-05-31 23:59:59.123"):
        assert parse_time(text, "-b") == ms
    assert parse_time("1970-01-02T00:00Z", "-b") == 86_400_000
    assert parse_time("1970-01-02T01:00+01:00", "-b") == 86_400_000
    assert parse_time("2024-05-31", "-b") == parse_time("2024-05-31#00:00:00:000", "-b")
    with pytest.raises(typer.BadParameter, match="'noon' is no time: ISO 8601"):
        parse_time("noon", "-b")
    assert human_time(0) == ""


def test_attributes() -> None:
    assert parse_attributes("") == {}
    assert parse_attributes("+a=b, -c,+d=e=f") == {"+a": "b", "-c": "", "+d": "e=f"}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (513, "V5_5_0"),
        (479, "V5_3_3"),
        (413, "V5_0_0"),
        (400, "V4_9_4_SNAPSHOT"),
        (611, "V5_9_9"),
        (37, "37"),
        (9999, "V5_9_9"),
    ],
)
def test_versions_have_names(version: int, name: str) -> None:
    assert version_name(version) == name
