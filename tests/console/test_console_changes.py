"""Changes by forms, checked with an AdminClient; and the pages of delays, transactions and replicas."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from io import StringIO
from typing import Any

import argon2
import httpx
import pytest
from console_support import CLUSTER, browser, cluster, html_of, json_of, producer, visitor
from test_console_access import change, token_in
from wait_until import until

from gantrymq.client.admin.base import transport_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.console.settings import Settings
from gantrymq.protocol.bodies.subscription_group import SubscriptionGroupConfig
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]


async def filled(cluster: EmbeddedCluster, producer: SyncProducer, topic: str, count: int = 10) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic(topic, queues=1)
    for number in range(count):
        producer.send(Message(topic, b"%d" % number))


async def consumed(cluster: EmbeddedCluster, group: str, topic: str, count: int = 10) -> None:
    seen: list[bytes] = []

    async def consume(message: Message) -> None:
        seen.append(message.body)

    consumer = PushConsumer(cluster.name_server, group, consume, start_from="earliest")
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(seen) >= count)


async def lag(cluster: EmbeddedCluster, group: str) -> int:
    async with AdminClient(cluster.name_server) as admin:
        return (await admin.consume_stats(group)).total_diff


async def test_reset_offsets(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await filled(cluster, producer, "reset")
    await consumed(cluster, "resetters", "reset")
    assert await lag(cluster, "resetters") == 0
    for form, left in (
        ({"to": "earliest"}, 10),
        ({"to": "latest"}, 0),
        ({"to": "time", "time": "2020-01-01T00:00"}, 10),
        ({"to": "latest"}, 0),
        ({"to": "time", "time": "1"}, 10),
        ({"to": "latest"}, 0),
        ({"to": "time", "time": "1969-12-31T00:00"}, 10),
    ):
        answer = await change(visitor, "reset-offset", group="resetters", topic="reset", **form)
        assert answer.status_code == 200, answer.text
        assert await lag(cluster, "resetters") == left
    for form in ({"to": "time"}, {"to": "time", "time": "yesterday"}, {"to": "nowhere"}):
        answer = await change(visitor, "reset-offset", group="resetters", topic="reset", **form)
        assert answer.status_code == 400
    async with AdminClient(cluster.name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig("clones"), cluster=CLUSTER)
    answer = await change(visitor, "clone-offsets", group="resetters", target="clones", topic="reset")
    assert answer.status_code == 200, answer.text
    async with AdminClient(cluster.name_server) as admin:
        assert await admin.committed_offset(cluster.brokers[0], "clones", "reset", 0) is not None


async def test_send_a_message(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    """The page of the topic shows it. The form of a browser has CRLF, the body LF."""
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("written", queues=1)
    html = await html_of(visitor, "topic", name="written")
    assert "Send a message to topic written?" in html
    form = {"topic": "written", "body": "<b>one</b>\r\ntwo ü", "csrf": token_in(html)}
    fields = {"keys": " k1 k2", "tags": "<i>", "properties": "region=eu\r\n\r\nformula=a=b\r\nlines=1\u20282\x0b3\r\n"}
    answer = await visitor.post("/do/send-message", data={**form, **fields})
    assert (answer.status_code, answer.headers["location"]) == (303, "/topic?name=written")
    html = await html_of(visitor, "topic", name="written")
    assert re.search(r"message [0-9A-F]{32} is stored in queue 0 of broker-[ab], at offset 0<", html)
    assert "&lt;b&gt;one&lt;/b&gt;" in html
    assert "<b>" not in html
    (row,) = (await json_of(visitor, "messages", topic="written"))["rows"]
    place = {"topic": "written", "broker": row["broker"], "queue": row["queue_id"], "offset": row["offset"]}
    one = await json_of(visitor, "message", **place)
    assert one["body"]["text"] == "<b>one</b>\ntwo ü"
    sent = {name: one["properties"][name] for name in ("KEYS", "TAGS", "region", "formula", "lines")}
    assert sent == {"KEYS": "k1 k2", "TAGS": "<i>", "region": "eu", "formula": "a=b", "lines": "1\u20282\x0b3"}


@pytest.mark.parametrize(
    ("form", "status", "problem"),
    [
        ({"topic": "unwritten"}, 400, "body"),
        ({"topic": "unwritten", "body": "x"}, 404, "no route info"),
        ({"topic": "%DLQ%readers", "body": "x"}, 400, "internal"),
        ({"topic": "%RETRY%readers", "body": "x"}, 400, "internal"),
        ({"topic": "SCHEDULE_TOPIC_XXXX", "body": "x"}, 400, "internal"),
        ({"topic": "broker-a", "body": "x"}, 400, "internal"),
        ({"topic": "unwritten", "body": "x", "properties": "region"}, 400, "NAME=VALUE"),
        ({"topic": "unwritten", "body": "x", "properties": "=eu"}, 400, "NAME=VALUE"),
        ({"topic": "unwritten", "body": "x", "properties": "TRAN_MSG=true"}, 400, "'TRAN_MSG' is reserved"),
        ({"topic": "unwritten", "body": "x", "properties": "a=b\nPGROUP =g"}, 400, "'PGROUP' is reserved"),
        ({"topic": "unwritten", "body": "x", "properties": "UNIQ_KEY=0A"}, 400, "'UNIQ_KEY' is reserved"),
        ({"topic": "unwritten", "body": "x", "properties": "REAL_TOPIC=t"}, 400, "'REAL_TOPIC' is reserved"),
        ({"topic": "unwritten", "body": "x", "properties": "INNER_MULTI_DISPATCH=q"}, 400, "is reserved"),
        ({"topic": "unwritten", "body": "x", "properties": "__RMQ.TRANSIENT.X=1"}, 400, "is reserved"),
        # The delay of a message is accepted: this topic does not exist.
        ({"topic": "unwritten", "body": "x", "properties": "DELAY=1"}, 404, "no route info"),
    ],
)
async def test_messages_that_are_not_sent(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, form: dict[str, str], status: int, problem: str
) -> None:
    """In particular, no message creates its topic."""
    answer = await change(visitor, "send-message", **form)
    assert answer.status_code == status, answer.text
    assert problem in answer.json()["error"]
    async with AdminClient(cluster.name_server) as admin:
        assert "unwritten" not in await admin.topic_list()


async def test_a_property_that_cannot_be_encoded(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server) as admin:
        await admin.ensure_topic("encoded", queues=1)
    answer = await change(visitor, "send-message", topic="encoded", body="x", properties="region=e\x02u")
    assert answer.status_code == 400, answer.text


async def test_a_group_is_made_and_changed(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    answer = await change(visitor, "save-group", name="made", cluster=CLUSTER, retry_max_times=3)
    assert answer.status_code == 200, answer.text
    async with AdminClient(cluster.name_server) as admin:
        for address in cluster.brokers:
            config = await admin.group_config(address, "made")
            assert config is not None
            assert (config.retry_max_times, config.consume_enable) == (3, True)
        answer = await change(visitor, "save-group", name="made", cluster=CLUSTER, consume_enable="false")
        assert answer.status_code == 200, answer.text
        config = await admin.group_config(cluster.brokers[1], "made")
        assert config is not None
        assert (config.retry_max_times, config.consume_enable) == (3, False)
    for wrong in ({"name": "a b"}, {"retry_max_times": "-2"}, {"consume_enable": "perhaps"}):
        form = {"name": "made", "cluster": CLUSTER, **wrong}
        assert (await change(visitor, "save-group", **form)).status_code == 400
    assert "Create a group" in await html_of(visitor, "groups")


async def test_attributes_are_set_and_removed(visitor: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    form = {"name": "attributed", "cluster": CLUSTER}
    attributes = "+retention.bytes=1000000, +retention.ms=86400000"
    answer = await change(visitor, "create-topic", **form, attributes=attributes)
    assert answer.status_code == 200, answer.text
    altered = {**form, "write_queues": 8, "read_queues": 8}
    answer = await change(visitor, "alter-topic", **altered, attributes="-retention.ms")
    assert answer.status_code == 200, answer.text
    answer = await change(visitor, "save-group", **form, attributes="+priority.factor=50")
    assert answer.status_code == 200, answer.text
    async with AdminClient(cluster.name_server) as admin:
        for address in cluster.brokers:
            topic = await admin.topic_config(address, "attributed")
            assert topic.attributes == {"retention.bytes": "1000000"}
            group = await admin.group_config(address, "attributed")
            assert group is not None
            assert group.attributes == {"priority.factor": "50"}
    for name, wrong in (("alter-topic", altered), ("save-group", form)):
        answer = await change(visitor, name, **wrong, attributes="retention.ms=1")
        assert answer.status_code == 400
        assert "+name=value sets" in answer.text


async def test_a_group_is_deleted(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await filled(cluster, producer, "left")
    await consumed(cluster, "leavers", "left")
    answer = await change(visitor, "delete-group", name="leavers", cluster=CLUSTER, typed="x")
    assert answer.status_code == 400
    answer = await change(visitor, "delete-group", name="leavers", cluster=CLUSTER, typed="leavers")
    assert answer.status_code == 200
    async with AdminClient(cluster.name_server) as admin:
        assert "leavers" not in await admin.group_configs(cluster.brokers[0])


async def test_a_message_is_consumed_now(
    visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer
) -> None:
    await filled(cluster, producer, "direct", 1)
    seen: list[bytes] = []

    async def consume(message: Message) -> None:
        seen.append(message.body)

    consumer = PushConsumer(cluster.name_server, "directs", consume, start_from="earliest")
    consumer.subscribe("direct")
    async with consumer:
        await until(lambda: len(seen) == 1)

        async def member() -> Any:
            return (await json_of(visitor, "group", name="directs"))["members"]

        (one,) = await until(member)
        (row,) = (await json_of(visitor, "messages", topic="direct"))["rows"]
        place = {"topic": "direct", "broker": row["broker"], "queue": row["queue_id"], "offset": row["offset"]}
        answer = await change(visitor, "consume-directly", group="directs", client_id=one["client_id"], **place)
        assert "CR_SUCCESS" in answer.json()["done"]
        assert seen == [b"0", b"0"]
        tracks = (await json_of(visitor, "message", **place))["tracks"]
        assert [(track["group"], track["status"]) for track in tracks] == [("directs", "CONSUMED")]


async def test_an_error_is_a_page(visitor: httpx.AsyncClient) -> None:
    html = (await visitor.get("/topics")).text
    token = html.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"name": "<b>", "cluster": CLUSTER, "csrf": token}
    answer = await visitor.post("/do/create-topic", data=form)
    assert answer.status_code >= 400
    assert "<b>" not in answer.text


async def test_delays(visitor: httpx.AsyncClient, cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    await filled(cluster, producer, "late", 0)
    producer.send(Message("late", b"an hour", delay_level=17))
    page = await until(lambda: _with_levels(visitor))
    assert [level["level"] for level in page["levels"]] == [17]
    assert len(page["timers"]) == 2
    assert "17" in await html_of(visitor, "delays")


async def _with_levels(visitor: httpx.AsyncClient) -> Any:
    page = await json_of(visitor, "delays")
    return page if page["levels"] else None


async def test_transactions(visitor: httpx.AsyncClient) -> None:
    assert await json_of(visitor, "transactions") == {"given_up": [], "is_all": True}
    assert "No messages." in await html_of(visitor, "transactions")
    answer = await change(visitor, "end-given-up", how="commit")
    assert answer.json()["done"] == "0 transactions ended: commit"
    assert (await change(visitor, "end-given-up", how="perhaps")).status_code == 400


async def test_replicas() -> None:
    with EmbeddedCluster(replicas=2) as replicated:
        async with browser(Settings(replicated.name_server)) as visitor:
            page = await until(lambda: _with_slaves(visitor))
            assert [slave["broker"] for slave in page["slaves"]] == ["broker-a"]
            assert page["sets"] == []
            assert "broker-a" in await html_of(visitor, "replicas")
            brokers = (await json_of(visitor, "brokers"))["table"]["rows"]
            assert [broker["broker_id"] for broker in brokers] == [0, 1]


async def _with_slaves(visitor: httpx.AsyncClient) -> Any:
    page = await json_of(visitor, "replicas")
    return page if page["slaves"] else None


async def test_users_of_a_cluster_without(visitor: httpx.AsyncClient) -> None:
    page = await json_of(visitor, "users")
    assert page["table"]["rows"] == []


async def test_partial_answers_say_so() -> None:
    """Pages name a broker that is down but still registered, and omit its data."""
    with EmbeddedCluster(2) as two:
        settings = Settings(two.name_server, tables_fresh_s=0.1)
        async with browser(settings) as visitor, AdminClient(two.name_server) as admin:
            before = await json_of(visitor, "topics")
            assert before["unasked"] == []
            # A manual registration without a broker.
            from gantrymq.protocol.bodies.topic_config import RegisterBrokerBody, TopicConfigTable, encode_register_body
            from gantrymq.protocol.codes import RequestCode
            from gantrymq.protocol.command import RemotingCommand
            from gantrymq.protocol.headers.namesrv import RegisterBrokerRequestHeader

            header = RegisterBrokerRequestHeader(
                broker_name="ghost",
                broker_addr="127.0.0.1:1",
                cluster_name=CLUSTER,
                ha_server_addr="127.0.0.1:2",
                broker_id=0,
            )
            body = encode_register_body(RegisterBrokerBody(TopicConfigTable()))
            request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, body)
            await transport_of(admin).remoting.call(two.name_server, request)

            async def told() -> Any:
                return (await json_of(visitor, "topics"))["unasked"]

            assert [unasked["what"] for unasked in await until(told)] == ["127.0.0.1:1"]

            async def third() -> Any:
                page = await json_of(visitor, "overview")
                return page if len(page["brokers"]) == 3 else None

            overview = await until(third)
            assert "127.0.0.1:1" in {unasked["what"] for unasked in overview["unasked"]}
            assert "complete" in await html_of(visitor, "brokers")


async def test_the_command(cluster: EmbeddedCluster) -> None:
    """`gantry console` prints its address, responds there, and ends on SIGTERM."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gantrymq.cli", "console", "-n", cluster.name_server, "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        address = line.rpartition(" ")[2].strip()
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{address}overview")
            assert answer.status_code == 200
            assert "server" not in answer.headers
    finally:
        process.send_signal(signal.SIGTERM)
        assert await process.wait() in (0, -signal.SIGTERM)


async def test_without_a_directory_the_audit_log_is_standard_error(cluster: EmbeddedCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gantrymq.cli", "console", "-n", cluster.name_server, "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        address = (await process.stdout.readline()).decode().rpartition(" ")[2].strip()
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            token = re.search(r'name="csrf" value="([^"]+)"', (await client.get("topics")).text)
            assert token is not None
            form = {"name": "audited", "cluster": CLUSTER, "csrf": token[1]}
            assert (await client.post("api/v1/do/create-topic", data=form)).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = await process.communicate()
    lines = [line for line in log.decode().splitlines() if '"change": "create-topic"' in line]
    assert len(lines) == 2, log
    assert '"outcome": "requested"' in lines[0]


def test_the_hash_of_a_password_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gantrymq.cli.main import run

    monkeypatch.setattr("sys.stdin", StringIO("secret\n"))
    assert run(["console", "--hash-password"]) == 0
    assert argon2.PasswordHasher().verify(capsys.readouterr().out.strip(), "secret")
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert run(["console", "--hash-password"]) == 2


def test_the_command_refuses_strangers() -> None:
    from gantrymq.cli.main import run

    assert run(["console", "-n", "127.0.0.1:1", "--host", "0.0.0.0"]) == 1


@pytest.mark.parametrize("field", ["size", "offset"])
async def test_numbers_that_are_none(visitor: httpx.AsyncClient, field: str) -> None:
    for value in ("x", "9" * 400, "-1", "1e9"):
        answer = await visitor.get("/messages" if field == "size" else "/message", params={"topic": "t", field: value})
        assert answer.status_code in (400, 404, 502), (field, value)
