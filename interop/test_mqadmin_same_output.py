"""mqadmin prints the same for this project's NameServer as for Apache's. One Java broker is registered with both."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from programs import mqadmin
from servers import Server, gantry_namesrv, java_broker, java_namesrv

pytestmark = pytest.mark.interop(feature="mqadmin", clients="java", servers="java gantry")


class NameServers(NamedTuple):
    """Two NameServers with the same broker."""

    java: Server
    gantry: Server
    broker: Server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServers]:
    directory: Path = tmp_path_factory.mktemp("both")
    started: list[Server] = []
    try:
        started.append(java := java_namesrv(directory / "java"))
        started.append(gantry := gantry_namesrv(directory / "gantry"))
        started.append(broker := java_broker(directory / "broker", f"{java.address};{gantry.address}"))
        yield NameServers(java, gantry, broker)
    finally:
        for server in reversed(started):
            server.kill()


def both(servers: NameServers, command: str, *args: str) -> tuple[list[str], list[str]]:
    """Returns mqadmin's lines for each NameServer, without the NameServer's own address."""
    return printed(servers.java, command, *args), printed(servers.gantry, command, *args)


def printed(server: Server, command: str, *args: str) -> list[str]:
    text = mqadmin(server.address, command, *args).replace(server.address, "NAMESERVER")
    # mqadmin warns about its missing ACL configuration, with the current time.
    return [line.rstrip() for line in text.splitlines() if line.strip() and "RocketmqCommon" not in line]


def unordered(lines: list[str]) -> list[list[str]]:
    """Splits lines into words and sorts both, because Java's maps have no order."""
    return sorted(sorted(re.split(r"[\s,{}\[\]]+", line)) for line in lines)


def test_topic_list(servers: NameServers) -> None:
    java, gantry = both(servers, "topicList")
    assert sorted(java) == sorted(gantry)
    assert "TBW102" in java


def test_topic_list_with_clusters(servers: NameServers) -> None:
    java, gantry = both(servers, "topicList", "-c")
    assert unordered(java) == unordered(gantry)


@pytest.mark.parametrize("topic", ["TBW102", "broker-a", "there-is-none"])
def test_topic_route(servers: NameServers, topic: str) -> None:
    java, gantry = both(servers, "topicRoute", "-t", topic)
    if topic == "there-is-none":
        problem = "No topic route info in name server for the topic: there-is-none"
        assert problem in " ".join(java)
        assert problem in " ".join(gantry)
    else:
        assert unordered(java) == unordered(gantry)


def test_cluster_list(servers: NameServers) -> None:
    java, gantry = both(servers, "clusterList")
    # The columns from the sixth on have the broker's rates and clock, which change between calls.
    assert [line.split()[:5] for line in java] == [line.split()[:5] for line in gantry]
    assert any("broker-a" in line for line in java)


def test_update_and_delete_topic(servers: NameServers) -> None:
    java, gantry = both(servers, "updateTopic", "-c", "DefaultCluster", "-t", "made", "-r", "3", "-w", "2")
    assert unordered(java) == unordered(gantry)
    java, gantry = both(servers, "topicRoute", "-t", "made")
    assert unordered(java) == unordered(gantry)
    assert '"readQueueNums":3' in "".join(java)
    java, gantry = both(servers, "deleteTopic", "-c", "DefaultCluster", "-t", "made")
    assert java == gantry
    assert "success" in " ".join(java)
    java, gantry = both(servers, "topicRoute", "-t", "made")
    assert "No topic route info" in " ".join(java)
    assert "No topic route info" in " ".join(gantry)


def test_wipe_and_add_write_permission(servers: NameServers) -> None:
    # A registration with changed topics resets the permissions to the broker's own, so the broker is stopped.
    servers.broker.process.send_signal(signal.SIGSTOP)
    try:
        for command in ("wipeWritePerm", "addWritePerm"):
            java, gantry = both(servers, command, "-b", "broker-a")
            assert java == gantry
            java, gantry = both(servers, "topicRoute", "-t", "TBW102")
            assert unordered(java) == unordered(gantry)
    finally:
        servers.broker.process.send_signal(signal.SIGCONT)


def test_kv_config(servers: NameServers) -> None:
    for command, args in (
        ("updateKvConfig", ("-s", "space", "-k", "key", "-v", "value")),
        ("deleteKvConfig", ("-s", "space", "-k", "key")),
    ):
        java, gantry = both(servers, command, *args)
        assert java == gantry
        assert "success" in " ".join(java)


def test_namesrv_config(servers: NameServers) -> None:
    def settings(lines: list[str]) -> dict[str, str]:
        pairs = (re.match(r"(\S+)\s+=\s+(.*)", line) for line in lines)
        return {pair[1]: pair[2] for pair in pairs if pair}

    java, gantry = map(settings, both(servers, "getNamesrvConfig"))
    # Each has keys that the other lacks. Common keys must have the same values, except for ports and paths.
    shared = java.keys() & gantry.keys() - {"listenPort", "kvConfigPath", "configStorePath"}
    assert {"scanNotActiveBrokerInterval", "returnOrderTopicConfigToBroker", "supportActingMaster"} <= shared
    assert {key: java[key] for key in shared} == {key: gantry[key] for key in shared}
