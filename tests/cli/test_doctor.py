"""Tests of the doctor's findings about real clusters, and about some that are hard to set up."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_support import CLUSTER, create, name_server, register
from ports import free_port
from wait_until import until

from gantrymq.cli.main import run
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.doctor.checks import CLOCK_TOLERANCE_S
from gantrymq.client.doctor.diagnosis import diagnose, judge
from gantrymq.client.doctor.finding import Finding, Severity
from gantrymq.client.doctor.observation import BrokerSeen, NameServerSeen, Observation, clock_ahead_s, named
from gantrymq.errors import ClientError, ConnectFailed, NoRouteInfo
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.bodies.topic_config import TopicConfig
from gantrymq.protocol.codes import RequestCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.protocol.headers.offset import UpdateConsumerOffsetRequestHeader
from gantrymq.remoting.client import RemotingClient
from gantrymq.remoting.tls import TlsMode
from gantrymq.system.clock import now_ms
from gantrymq.testing.embedded import EmbeddedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers that create topics automatically."""
    with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strict_cluster() -> Iterator[EmbeddedCluster]:
    """One broker that does not create topics automatically."""
    with EmbeddedCluster(auto_create_topic_enable=False) as cluster:
        yield cluster


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient()
    yield client
    await client.close()


def complaints(findings: list[Finding]) -> list[Finding]:
    for finding in findings:
        assert finding.what
        assert bool(finding.why) is bool(finding.remedy) is (finding.severity is not Severity.OK)
    return [finding for finding in findings if finding.severity is not Severity.OK]


def only(findings: list[Finding], severity: Severity) -> Finding:
    """Returns the only finding that is not OK, and checks its severity."""
    (finding,) = complaints(findings)
    assert finding.severity is severity
    return finding


# -- NameServers ----------------------------------------------------------------------------------------------------


async def test_a_healthy_cluster(cluster: EmbeddedCluster) -> None:
    findings = await diagnose(cluster.name_server)
    assert complaints(findings) == []
    text = "\n".join(finding.what for finding in findings)
    for part in (f"NameServer {cluster.name_server} answers; brokers: 2", *cluster.brokers, "broker-a", "broker-b"):
        assert part in text
    assert "brokers create topics automatically (autoCreateTopicEnable): broker-a, broker-b" in text


@pytest.mark.parametrize(
    ("address", "why", "remedy"),
    [
        ("127.0.0.1:1", "nobody listens", "Start the NameServer, or correct the port in -n"),
        ("nowhere.invalid:9876", "can't resolve the host name", "Correct the name in -n"),
        ("127.0.0.1", "an address is HOST:PORT", "Correct -n"),
    ],
)
async def test_a_name_server_that_can_t_be_reached(address: str, why: str, remedy: str) -> None:
    finding = only(await diagnose([address]), Severity.PROBLEM)
    assert finding.what.startswith(f"NameServer {address} can't be used")
    assert why in finding.why
    assert finding.remedy.startswith(remedy)


async def test_a_broker_s_address_in_the_place_of_a_name_server_s(cluster: EmbeddedCluster) -> None:
    finding = only(await diagnose([cluster.brokers[0]]), Severity.PROBLEM)
    assert "it is a broker" in finding.why


async def test_one_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        finding = only(await diagnose([address], timeout_ms=50), Severity.PROBLEM)
    # Connecting used a part of the 50 ms.
    assert re.search(r"did not answer in [1-5]?\d ms", finding.what)
    assert "a server that hangs" in finding.why


async def test_something_else_listens() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    finding = only(await diagnose([f"127.0.0.1:{server.sockets[0].getsockname()[1]}"]), Severity.PROBLEM)
    server.close()
    assert "no NameServer or broker, or one that takes TLS" in finding.why


async def test_one_of_two_is_enough_to_go_on(cluster: EmbeddedCluster) -> None:
    findings = await diagnose(f"127.0.0.1:1;{cluster.name_server};{cluster.name_server}")
    assert only(findings, Severity.PROBLEM).what.startswith("NameServer 127.0.0.1:1 ")
    assert sum(f"NameServer {cluster.name_server} answers" in finding.what for finding in findings) == 1


async def test_without_any() -> None:
    with pytest.raises(ClientError, match="no NameServer given"):
        await diagnose("")


async def test_name_servers_that_disagree(cluster: EmbeddedCluster, client: RemotingClient, tmp_path: Path) -> None:
    async with name_server(tmp_path) as other:
        await register(client, other, "broker-a", cluster.brokers[0])
        findings = await diagnose([cluster.name_server, other.address], "TBW102")
        other_address = other.address
    first, second = complaints(findings)
    assert first.severity is second.severity is Severity.PROBLEM
    assert first.what == (
        f"broker broker-b (id 0) is registered with {cluster.name_server}, but not with {other_address}"
    )
    assert f"namesrvAddr={';'.join(sorted([cluster.name_server, other_address]))}" in first.remedy
    assert second.what == (f"NameServer {other_address} has no route for topic TBW102, {cluster.name_server} has")


async def test_topics_that_only_one_name_server_knows(
    cluster: EmbeddedCluster, client: RemotingClient, tmp_path: Path
) -> None:
    directories = [tmp_path / "1", tmp_path / "2"]
    async with name_server(directories[0]) as one, name_server(directories[1]) as two:
        for server in (one, two):
            await register(client, server, "broker-a", cluster.brokers[0])
        findings = await diagnose([one.address, two.address])
        assert complaints(findings) == []
        assert "the 2 NameServers agree" in [finding.what for finding in findings]
        await register(client, one, "broker-a", cluster.brokers[0], TopicConfig("new"))
        finding = only(await diagnose([one.address, two.address]), Severity.WARNING)
        assert finding.what == f"NameServer {two.address} doesn't know 1 topics that others do: new"


async def test_the_same_broker_at_two_addresses(
    cluster: EmbeddedCluster, client: RemotingClient, tmp_path: Path
) -> None:
    directories = [tmp_path / "1", tmp_path / "2"]
    async with name_server(directories[0]) as one, name_server(directories[1]) as two:
        await register(client, one, "broker-a", cluster.brokers[0])
        await register(client, two, "broker-a", cluster.brokers[1])
        findings = await diagnose([one.address, two.address])
    whats = [finding.what for finding in complaints(findings)]
    assert any(what.startswith("broker broker-a (id 0) has several addresses: ") for what in whats)


# -- brokers --------------------------------------------------------------------------------------------------------


async def test_no_broker(tmp_path: Path) -> None:
    async with name_server(tmp_path) as server:
        finding = only(await diagnose([server.address], "orders"), Severity.PROBLEM)
        assert finding.what == "no broker is registered"
        assert f"gantry broker -n {server.address}" in finding.remedy


async def test_a_broker_that_isn_t_where_it_says(client: RemotingClient, tmp_path: Path) -> None:
    port = free_port()
    async with name_server(tmp_path) as server:
        await register(client, server, "broker-a", f"127.0.0.1:{port}")
        finding = only(await diagnose([server.address]), Severity.PROBLEM)
        await register(client, server, "broker-a", f"127.0.0.1:{port}", broker_id=1)
        findings = complaints(await diagnose([server.address]))
    assert finding.what.startswith(f"broker broker-a (master) can't be reached at 127.0.0.1:{port}, the address")
    assert "the NameServers send every client there; the machine is there, but nobody listens" in finding.why
    assert "brokerIP1 and listenPort" in finding.remedy
    # The broker has registered again at the same address, as a slave.
    assert [(finding.severity, finding.what.partition(")")[0]) for finding in findings] == [
        (Severity.PROBLEM, f"broker broker-a has no master, only 127.0.0.1:{port}"),
        (Severity.WARNING, "broker broker-a (slave 1"),
    ]


async def test_an_address_that_leads_to_another_broker(
    cluster: EmbeddedCluster, client: RemotingClient, tmp_path: Path
) -> None:
    async with name_server(tmp_path) as server:
        await register(client, server, "broker-z", cluster.brokers[0])
        finding = only(await diagnose([server.address]), Severity.PROBLEM)
    assert finding.what == (
        f"at {cluster.brokers[0]}, the address of broker broker-z (master), broker broker-a answers"
    )


def seen_broker(address: str = "10.0.0.5:10911", name: str = "broker-a", **fields: Any) -> BrokerSeen:
    return BrokerSeen(CLUSTER, name, 0, address, **fields)


def seen(
    *brokers: BrokerSeen, name_servers: tuple[str, ...] = ("10.0.0.1:9876",), topic: str | None = None
) -> Observation:
    info = ClusterInfo({b.name: BrokerData(b.cluster, b.name, {b.broker_id: b.address}) for b in brokers})
    return Observation(topic, [NameServerSeen(address, cluster=info) for address in name_servers], list(brokers))


def refused(address: str, cause: Exception) -> ConnectFailed:
    error = ConnectFailed(f"can't connect to {address}", address)
    error.__cause__ = cause
    return error


def test_two_brokers_that_advertise_one_address() -> None:
    finding = only(judge(seen(seen_broker(), seen_broker(name="broker-z"))), Severity.PROBLEM)
    assert (
        finding.what
        == "broker broker-a (master) and broker broker-z (master) advertise the same address, 10.0.0.5:10911"
    )


def test_a_container_s_own_address() -> None:
    broker = seen_broker("172.17.0.2:10911", error=refused("172.17.0.2:10911", TimeoutError()))
    finding = only(judge(seen(broker)), Severity.PROBLEM)
    assert "a container's port that isn't published" in finding.why
    assert "In a container the broker advertises the container's address unless brokerIP1" in finding.remedy


@pytest.mark.parametrize("address", ["127.0.0.1:10911", "localhost:10911", "[::1]:10911"])
def test_a_broker_that_advertises_its_own_loopback(address: str) -> None:
    finding = only(judge(seen(seen_broker(address))), Severity.WARNING)
    assert finding.what == f"broker broker-a (master) advertises {address}"
    error = refused(address, ConnectionRefusedError())
    finding = only(judge(seen(seen_broker(address, error=error))), Severity.PROBLEM)
    assert "leads to this machine" in finding.why
    assert finding.remedy.startswith("Set brokerIP1 to an address that clients reach")
    assert complaints(judge(seen(seen_broker(address), name_servers=("127.0.0.1:9876",)))) == []


@pytest.mark.parametrize(("ahead_s", "text"), [(3600.0, "3600 s ahead of"), (-61.0, "61 s behind")])
def test_clocks_that_differ(ahead_s: float, text: str) -> None:
    finding = only(judge(seen(seen_broker(clock_ahead_s=ahead_s))), Severity.WARNING)
    assert finding.what == f"the clock of broker broker-a (master) is {text} this one"
    assert complaints(judge(seen(seen_broker(clock_ahead_s=CLOCK_TOLERANCE_S - 1)))) == []


async def test_a_clock_is_seen(cluster: EmbeddedCluster) -> None:
    async with AdminClient() as admin:
        runtime = await admin.runtime_info(cluster.brokers[0])
    ahead_s = clock_ahead_s(runtime, time.time())
    assert ahead_s is not None
    assert abs(ahead_s) < 3


@pytest.mark.parametrize(
    ("runtime", "ahead_s"),
    [
        ({"bootTimestamp": "1000000", "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"}, 90_061.0),
        ({"bootTimestamp": "1000000"}, None),
        ({"runtime": "[ 0 days, 0 hours, 0 minutes, 5 seconds ]"}, None),
        ({"bootTimestamp": "soon", "runtime": "[ 0 days, 0 hours, 0 minutes, 5 seconds ]"}, None),
        ({"bootTimestamp": "9" * 4000, "runtime": "[ 0 days, 0 hours, 0 minutes, 5 seconds ]"}, None),
        ({"bootTimestamp": "1", "runtime": f"[ {'9' * 400} days, 0 hours, 0 minutes, 5 seconds ]"}, None),
        ({"bootTimestamp": "1000000", "runtime": "a while"}, None),
    ],
)
def test_what_a_clock_is_seen_by(runtime: dict[str, str], ahead_s: float | None) -> None:
    assert clock_ahead_s(runtime, 1000.0) == ahead_s


def test_versions_that_differ() -> None:
    brokers = [
        seen_broker(f"10.0.0.{number}:10911", f"broker-{number}", runtime={"brokerVersionDesc": version})
        for number, version in enumerate(["V4_9_4", "V5_5_0", "V5_5_0"])
    ]
    finding = only(judge(seen(*brokers)), Severity.WARNING)
    assert finding.what == "the brokers have different versions: V4_9_4: broker-0; V5_5_0: broker-1, broker-2"
    assert complaints(judge(seen(*brokers[1:]))) == []


def test_many_names_are_cut_short() -> None:
    assert named([str(n) for n in range(7)]) == "0, 1, 2, 3, 4 and 2 more"


# -- jobs -----------------------------------------------------------------------------------------------------------


async def complaint_of(cluster: EmbeddedCluster, severity: Severity, job: str) -> Finding:
    """Waits for a finding about the job with this severity."""

    async def said() -> Finding | None:
        findings = [finding for finding in await diagnose(cluster.name_server) if f'"{job}"' in finding.what]
        return next((finding for finding in complaints(findings) if finding.severity is severity), None)

    return await until(said)


async def test_a_job_of_a_broker_that_fails(tmp_path: Path) -> None:
    before = datetime.now().astimezone().replace(microsecond=0)
    with EmbeddedCluster(directory=tmp_path, flush_consumer_offset_interval=50) as cluster:
        async with AdminClient(cluster.name_server) as admin:
            await admin.create_group(SubscriptionGroupConfig("group"), cluster=CLUSTER)
        # A directory has the name of the temporary file, so the broker cannot write the new table of offsets.
        in_the_way = tmp_path / "broker-a" / "config" / "consumerOffset.json.tmp"
        in_the_way.mkdir(parents=True)
        remoting = RemotingClient()
        header = UpdateConsumerOffsetRequestHeader(consumer_group="group", topic="TBW102", queue_id=0, commit_offset=0)
        await remoting.call(cluster.brokers[0], RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))
        finding = await complaint_of(cluster, Severity.PROBLEM, "save tables")
        told = re.fullmatch(
            rf'broker broker-a \(master\) at {cluster.brokers[0]}: the job "save tables" failed (once|\d+ times) '
            r"since the server's start, with no success since (\S+ \S+); the last failure was at \S+ \S+: "
            r".*consumerOffset\.json.*",
            finding.what,
        )
        assert told is not None, finding.what
        assert before <= datetime.fromisoformat(told[2]) <= datetime.now().astimezone()
        assert "Remove the cause" in finding.remedy
        # The job recovers without a restart.
        in_the_way.rmdir()
        finding = await complaint_of(cluster, Severity.WARNING, "save tables")
        told = re.search(r"and works again; the last failure was at (\S+ \S+): ", finding.what)
        assert told is not None, finding.what
        assert before <= datetime.fromisoformat(told[1]) <= datetime.now().astimezone()
        await remoting.close()


def test_a_job_that_works_again_for_a_while_is_no_warning_any_more() -> None:
    now = now_ms()
    runtime = {"job_save-tables_failures": "3", "job_save-tables_failingSinceMs": "0", "job_save-tables_lastError": "E"}
    recent = seen_broker(runtime=runtime | {"job_save-tables_lastFailureMs": str(now - 60_000)})
    assert "works again" in only(judge(seen(recent)), Severity.WARNING).what
    old = seen_broker(runtime=runtime | {"job_save-tables_lastFailureMs": str(now - 3_600_000)})
    assert [finding for finding in judge(seen(old)) if "save tables" in finding.what] == []


async def test_a_job_of_a_name_server_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(table: RouteTable, now_ms: int) -> None:
        raise OSError("the clock stands still")

    monkeypatch.setattr(RouteTable, "expire", expire)
    async with name_server(tmp_path, scan_not_active_broker_interval=10) as server:
        await until(server.jobs.failing)
        findings = [f for f in complaints(await diagnose(server.address)) if "job" in f.what]
    (finding,) = findings
    assert finding.severity is Severity.PROBLEM
    assert finding.what.startswith(f'NameServer {server.address}: the job "look for silent brokers" failed')
    assert finding.what.endswith("OSError: the clock stands still")


# -- topics ---------------------------------------------------------------------------------------------------------


async def test_a_topic_that_its_first_message_will_make(cluster: EmbeddedCluster) -> None:
    finding = only(await diagnose(cluster.name_server, "not-yet"), Severity.WARNING)
    assert "Its first message makes it, on broker-a, broker-b" in finding.why
    assert finding.remedy.endswith(f"gantry admin updateTopic -n '{cluster.name_server}' -c {CLUSTER} -t not-yet")


async def test_a_topic_that_must_be_created(strict_cluster: EmbeddedCluster) -> None:
    finding = only(await diagnose(strict_cluster.name_server, "Orders"), Severity.PROBLEM)
    assert finding.what == "no NameServer has a route for topic Orders"
    assert "no broker makes topics on its own (autoCreateTopicEnable=false)" in finding.why
    async with AdminClient(strict_cluster.name_server) as admin:
        await create(admin, TopicConfig("Orders", 4, 4))
        findings = await diagnose(strict_cluster.name_server, "Orders")
        assert complaints(findings) == []
        assert "topic Orders is on broker-a (4 queues)" in [finding.what for finding in findings]
        for almost, meant in (("orders", "Orders"), ("Ordres", "Orders")):
            finding = only(await diagnose(strict_cluster.name_server, almost), Severity.PROBLEM)
            assert f"Is {meant} meant?" in finding.why


async def test_a_write_permission_that_was_wiped(strict_cluster: EmbeddedCluster) -> None:
    async with AdminClient(strict_cluster.name_server) as admin:
        await create(admin, TopicConfig("wiped", 4, 4))
        await admin.wipe_write_perm("broker-a")
        permission, verdict = complaints(await diagnose(strict_cluster.name_server, "wiped"))
        assert permission.what == "topic wiped can't be written on broker broker-a (perm 4)"
        assert "wipeWritePerm" in permission.why
        assert permission.remedy.endswith(f"gantry admin addWritePerm -n '{strict_cluster.name_server}' -b broker-a")
        assert (verdict.severity, verdict.what) == (Severity.PROBLEM, "topic wiped takes no messages")
        await admin.add_write_perm("broker-a")
    assert complaints(await diagnose(strict_cluster.name_server, "wiped")) == []


@pytest.mark.parametrize(("perm", "verdict"), [(4, "takes no messages"), (2, "can't be read")])
async def test_a_topic_without_a_permission(perm: int, verdict: str, strict_cluster: EmbeddedCluster) -> None:
    topic = f"perm-{perm}"
    async with AdminClient(strict_cluster.name_server) as admin:
        await create(admin, TopicConfig(topic, 4, 4, perm))
    permission, problem = complaints(await diagnose(strict_cluster.name_server, topic))
    assert permission.severity is Severity.WARNING
    assert f"updateTopicPerm -n '{strict_cluster.name_server}'" in permission.remedy
    assert (problem.severity, problem.what) == (Severity.PROBLEM, f"topic {topic} {verdict}")


async def test_one_of_two_brokers_takes_none(cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("half", 2, 2))
        await create(admin, TopicConfig("half", 2, 2, 4), broker=cluster.brokers[1])
    finding = only(await diagnose(cluster.name_server, "half"), Severity.WARNING)
    assert finding.what == "topic half can't be written on broker broker-b (perm 4)"


def routed(*queues: QueueData, own: TopicConfig | None = None, config: dict[str, str] | None = None) -> Observation:
    observation = seen(seen_broker(topic=own, config=config or {}), topic="orders")
    (name_server,) = observation.name_servers
    name_server.route = TopicRouteData(list(queues), list(name_server.cluster.broker_addr_table.values()))
    return observation


def test_a_broker_that_takes_no_messages_at_all() -> None:
    observation = routed(QueueData("broker-a", 4, 4, 4), own=TopicConfig("orders"), config={"brokerPermission": "4"})
    permission, _ = complaints(judge(observation))
    assert permission.why.startswith("the broker says brokerPermission=4")
    assert "updateBrokerConfig -b 10.0.0.5:10911 -k brokerPermission -v 6" in permission.remedy


def test_queues_of_a_broker_that_is_gone() -> None:
    finding = only(judge(routed(QueueData("broker-a", 4, 4, 6), QueueData("broker-x", 4, 4, 6))), Severity.PROBLEM)
    assert finding.what.startswith("topic orders has queues on broker broker-x, which the NameServer doesn't know")


async def test_a_topic_that_only_the_broker_knows(
    cluster: EmbeddedCluster, client: RemotingClient, tmp_path: Path
) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await create(admin, TopicConfig("held", 2, 2))
    async with name_server(tmp_path) as server:
        await register(client, server, "broker-a", cluster.brokers[0])
        finding = only(await diagnose([server.address], "held"), Severity.PROBLEM)
    assert finding.what == "no NameServer has a route for topic held, though broker broker-a (master) has it"


async def test_a_name_server_that_still_waits(cluster: EmbeddedCluster, client: RemotingClient, tmp_path: Path) -> None:
    async with name_server(tmp_path, need_wait_for_service=True) as server:
        await register(client, server, "broker-a", cluster.brokers[0])
        finding = only(await diagnose([server.address], "orders"), Severity.PROBLEM)
    assert "has just started and waits for brokers" in finding.what
    assert "needWaitForService" in finding.why


@pytest.mark.parametrize("topic", ["or ders", "ordérs", "x" * 128, ""])
async def test_names_that_no_topic_has(topic: str, cluster: EmbeddedCluster) -> None:
    finding = only(await diagnose(cluster.name_server, topic), Severity.PROBLEM)
    assert finding.what == f"{topic!r} can't be a topic"


def test_the_error_leads_here() -> None:
    error = NoRouteInfo("orders", ["10.0.0.1:9876", "10.0.0.2:9876"])
    assert str(error).endswith("gantry doctor orders -n '10.0.0.1:9876;10.0.0.2:9876'")


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command(
    cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["doctor", "-n", cluster.name_server]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ok this is gantrymq ")
    assert out.endswith("no problems found\n")

    monkeypatch.setenv("NAMESRV_ADDR", cluster.name_server)
    assert run(["doctor", "of[bold]course"]) == 1
    out = capsys.readouterr().out
    assert "\nXX 'of[bold]course' can't be a topic\n   why:    " in out
    assert "\n   remedy: Use another name" in out
    assert out.endswith("\n1 problem\n")

    assert run(["doctor", "not-yet"]) == 3
    assert capsys.readouterr().out.endswith("\n1 warning\n")


def test_json(cluster: EmbeddedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "-n", f"{cluster.name_server};127.0.0.1:1", "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)
    assert {finding["severity"] for finding in findings} == {"ok", "problem"}
    assert all(finding.keys() == {"severity", "what", "why", "remedy"} for finding in findings)


async def test_tls(certificate: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, key = certificate
    config = tmp_path / "tls.properties"
    config.write_text(f"tls.client.authServer=true\ntls.client.trustCertPath={cert}\n")
    tls = {"tls_server_mode": TlsMode.ENFORCING, "tls_server_cert_path": cert, "tls_server_key_path": key}
    async with name_server(tmp_path, **tls) as server:
        finding = only(await diagnose(server.address), Severity.PROBLEM)
        assert "--tls-config FILE" in finding.remedy
        context = ssl.create_default_context(cafile=cert)
        assert only(await diagnose(server.address, ssl_context=context), Severity.PROBLEM).what.startswith("no broker")
        command = ["doctor", "-n", server.address, "--tls-config", str(config)]
        assert await asyncio.to_thread(run, command) == 1
        assert "XX no broker is registered" in capsys.readouterr().out
        config.write_text(f"tls.client.authServer=true\ntls.client.trustCertPath={key}\n")
        assert await asyncio.to_thread(run, command) == 1
        assert "gantry: tls.client.trustCertPath=" in capsys.readouterr().err
