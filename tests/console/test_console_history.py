"""The console's history: samples, thinning, size and charts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from console_support import browser, cluster, html_of, json_of, producer, visitor
from wait_until import until

from gantrymq.console.cluster_view import ClusterView
from gantrymq.console.history import FILE_NAME, MAX_POINTS, SAMPLE_S, History
from gantrymq.console.prometheus import expression_of
from gantrymq.console.request_limits import RequestLimits
from gantrymq.console.sampler import Sampler
from gantrymq.console.settings import Settings
from gantrymq.errors import ConfigError, GantryError
from gantrymq.protocol.message import Message
from gantrymq.sync import SyncProducer
from gantrymq.system.clock import time
from gantrymq.testing.embedded import EmbeddedCluster

__all__ = ["cluster", "producer", "visitor"]

DAY = 86400
#: A multiple of a quarter of an hour.
BEGIN = 1_800_000_000 // 900 * 900


async def test_values_come_back() -> None:
    history = History(None)
    for n in range(10):
        await history.add(BEGIN + n * SAMPLE_S + 3, {"in": n, "out": 2 * n})
    points = await history.points(["in", "out", "unknown"], BEGIN, BEGIN + 900)
    assert points.times == [BEGIN + n * SAMPLE_S for n in range(10)]
    assert points.values["in"] == list(range(10))
    assert points.values["out"] == list(range(0, 20, 2))
    assert points.values["unknown"] == [None] * 10
    await history.close()


async def test_gaps_are_gaps() -> None:
    history = History(None)
    await history.add(BEGIN, {"a": 1.0})
    await history.add(BEGIN + SAMPLE_S, {"b": 2.0})
    points = await history.points(["a", "b"], BEGIN, BEGIN + 60)
    assert points.values == {"a": [1.0, None], "b": [None, 2.0]}
    await history.close()


async def test_old_values_are_thinned_and_go() -> None:
    history = History(None)
    for n in range(120):
        await history.add(BEGIN + n * SAMPLE_S, {"in": n})

    async def times() -> list[int]:
        return (await history.points(["in"], BEGIN, BEGIN + 1800)).times

    assert len(await times()) == 120
    await history.thin(BEGIN + DAY + 900)
    assert await times() == [*range(BEGIN, BEGIN + 900, 60), *range(BEGIN + 900, BEGIN + 1800, SAMPLE_S)]
    first = (await history.points(["in"], BEGIN, BEGIN + 60)).values["in"][0]
    assert first == 1.5
    # Thinning again has no effect.
    await history.thin(BEGIN + DAY + 900)
    assert (await history.points(["in"], BEGIN, BEGIN + 60)).values["in"][0] == 1.5
    await history.thin(BEGIN + 15 * DAY)
    await history.thin(BEGIN + 15 * DAY)
    assert await times() == [BEGIN, BEGIN + 900]
    assert (await history.points(["in"], BEGIN, BEGIN + 900)).values["in"] == [29.5, 89.5]
    await history.thin(BEGIN + 80 * DAY)
    assert await times() == []
    await history.close()


async def test_it_stays_within_its_size(tmp_path: Path) -> None:
    limit = 400_000
    history = History(tmp_path, max_bytes=limit)
    for n in range(200):
        await history.add(BEGIN + n * SAMPLE_S, {f"group/{g}/lag": n for g in range(100)})
        if not n % 20:
            await history.thin(BEGIN + n * SAMPLE_S)
    await history.thin(BEGIN + 200 * SAMPLE_S)
    points = await history.points(["group/7/lag"], BEGIN, BEGIN + 3600)
    assert points.times[-1] == BEGIN + 199 * SAMPLE_S
    assert len(points.times) < 200
    await history.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 2.5 * limit


async def test_a_chart_has_so_many_points() -> None:
    history = History(None)
    for n in range(2000):
        await history.add(BEGIN + n * SAMPLE_S, {"in": n})
    points = await history.points(["in"], BEGIN, BEGIN + 2000 * SAMPLE_S)
    assert MAX_POINTS / 2 < len(points.times) <= 2 * MAX_POINTS
    await history.close()


async def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    history = History(tmp_path)
    with pytest.raises(GantryError, match=FILE_NAME):
        await history.add(BEGIN, {"in": 1.0})
    await history.close()


async def test_closed_while_a_cancelled_write_goes_on(tmp_path: Path) -> None:
    for _ in range(20):
        history = History(tmp_path)
        adding = asyncio.ensure_future(history.add(BEGIN, {f"group/{n}/lag": 1.0 for n in range(2000)}))
        await asyncio.sleep(0)
        adding.cancel()
        await history.close()
        with pytest.raises(GantryError, match="closed"):
            await history.thin(BEGIN)


async def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    history = History(tmp_path)
    await history.add(BEGIN, {"in": 1.0})
    await history.close()
    history = History(tmp_path)
    assert (await history.points(["in"], BEGIN, BEGIN + 60)).values["in"] == [1.0]
    await history.close()


async def test_samples_of_a_cluster(cluster: EmbeddedCluster, producer: SyncProducer) -> None:
    producer.send(Message("sampled", b"x"))
    history = History(None)
    view = ClusterView(Settings(cluster.name_server), RequestLimits(), None)
    await Sampler(view, history).sample()
    points = await history.points(["in", "lag", "disk", "broker/broker-a/disk", "broker/broker-b/log"], 0, 2e9)
    assert len(points.times) == 1
    assert all(values[0] is not None for values in points.values.values())
    await view.close()
    await history.close()


async def test_the_page(visitor: httpx.AsyncClient) -> None:
    async def sampled() -> Any:
        page = await json_of(visitor, "history", span="15m")
        return page if page["times"] else None

    page = await until(sampled)
    assert [chart["series"] for chart in page["charts"]] == ["in", "out", "lag", "disk"]
    html = await html_of(visitor, "history")
    assert "data-series" in html
    assert "<script>" not in await html_of(visitor, "history", group="<script>")
    disk = await json_of(visitor, "history", broker="broker-a", span="1mo")
    assert 0 < disk["charts"][2]["last"] <= 1
    assert (await visitor.get("/history", params={"span": "ever"})).status_code == 400


async def test_a_user_of_the_cluster_sees_what_it_may_ask_for() -> None:
    from test_console_access import USERS, log_in

    from gantrymq.client.admin.client import AdminClient
    from gantrymq.client.credentials import Credentials
    from gantrymq.protocol.bodies.auth import UserInfo

    with EmbeddedCluster(auth=USERS) as secured:
        credentials = Credentials("root", "rootpass")
        async with AdminClient(secured.name_server, credentials=credentials) as admin:
            await admin.create_user(secured.brokers, UserInfo("alice", "alicepass"))
        async with browser(Settings(secured.name_server, credentials=credentials, login="cluster")) as alice:
            assert (await log_in(alice, "alice", "alicepass")).status_code == 303
            for arguments in ({}, {"group": "any"}, {"broker": "broker-a"}):
                answer = await alice.get("/api/v1/history", params=arguments)
                assert answer.status_code >= 400, answer.text
        async with browser(Settings(secured.name_server, credentials=credentials, login="cluster")) as root:
            assert (await log_in(root, "root", "rootpass")).status_code == 303
            assert (await root.get("/api/v1/history")).status_code == 200


# -- Prometheus -------------------------------------------------------------------------------------------------------


def test_series_in_promql() -> None:
    def text(name: str) -> str | None:
        return expression_of(name, ["a.b", 'c"'], 60)

    assert text("in") == (
        r"sum(max by (cluster, node_id, topic, message_type) "
        r'(rate(rocketmq_messages_in_total{cluster=~"a\\.b|c\\\""}[60s])))'
    )
    assert text("broker/broker-a/disk") == (
        r'max(gantry_disk_used_ratio{cluster=~"a\\.b|c\\\"", node_id="broker-a", files="commitLog"})'
    )
    assert text("broker/broker-a/log") is None
    found = text('group/a/b"c/lag')
    assert found is not None
    assert r'consumer_group="a/b\"c"' in found


@asynccontextmanager
async def answering(body: bytes, status: str = "200 OK") -> AsyncIterator[tuple[str, list[str]]]:
    """Starts a server with one response for all requests. Yields its URL and the list of requested paths."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode().split(" ")[1])
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_charts_from_prometheus(cluster: EmbeddedCluster) -> None:
    now = int(time()) // 15 * 15
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [{"values": [[now - 15, "1.5"]]}]}}
    async with (
        answering(json.dumps(answer).encode()) as (url, asked),
        browser(Settings(cluster.name_server, prometheus=url)) as visitor,
    ):
        page = await json_of(visitor, "history", group="g", span="15m")
        assert page["times"] == [now - 15]
        assert [chart["values"] for chart in page["charts"]] == [[1.5]] * 3
        assert all(path.startswith("/api/v1/query_range?query=") for path in asked)
        assert len(asked) == 3
    for body, status in ((b"<html>", "200 OK"), (b"{}", "500 Oh"), (b'{"status":"error","error":"bad"}', "200 OK")):
        async with (
            answering(body, status) as (url, _),
            browser(Settings(cluster.name_server, prometheus=url)) as visitor,
        ):
            failed = await visitor.get("/history")
            assert failed.status_code == 502
            assert "Prometheus at http://127.0.0.1" in failed.text
    async with browser(Settings(cluster.name_server, prometheus="http://127.0.0.1:1")) as visitor:
        assert (await visitor.get("/history")).status_code == 502
    with pytest.raises(ConfigError, match="prometheus"):
        Settings(cluster.name_server, prometheus="file:///etc/passwd").check()
