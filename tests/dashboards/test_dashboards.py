"""Tests of dashboards/: Grafana's files and the alert rules, with the metrics of real servers.

The expressions run on Debian's Prometheus. Without promtool and prometheus (`apt-get install prometheus`), the tests
that need them are skipped. Grafana is not used: its dashboards are read as JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from ports import free_port
from wait_until import until

from gantrymq.broker.broker import Broker
from gantrymq.broker.config import BrokerConfig
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.consuming.push_consumer import PushConsumer
from gantrymq.client.producing.producer import Producer
from gantrymq.client.producing.transaction_producer import LocalTransactionState, TransactionProducer
from gantrymq.console.app import Console
from gantrymq.console.settings import Settings
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.metrics import MetricsServer
from gantrymq.metrics_export import MetricsExporterType
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.namesrv.server import NameServer
from gantrymq.protocol.message import Message, MessageExt
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.proxy import Proxy
from gantrymq.store.config import StoreConfig

HERE = Path(__file__).parents[2] / "dashboards"
DASHBOARDS = sorted(HERE.glob("*.json"))
HOST = "127.0.0.1"
#: Names of metrics in an expression. Functions, labels and keywords of PromQL do not start like this.
_METRIC = re.compile(r"\b(?:rocketmq|gantry)_\w+")
#: Panels that are empty while the cluster is healthy.
_ONLY_WHEN_BAD = re.compile(r"> 0$")
#: Metrics that need Spark or a gRPC call, which this test does not make. It only checks that the query is valid.
_NOT_HERE = re.compile(r"gantry_spark_|gantry_proxy_call|gantry_proxy_clients|gantry_proxy_remoting_requests_total")

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus isn't there: apt-get install prometheus",
)


def panels_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_bytes())["panels"]
    return found


def expressions() -> list[tuple[str, str]]:
    """Returns (panel, expression) pairs, with values for the dashboards' variables."""
    found = []
    for path in DASHBOARDS:
        for panel in panels_of(path):
            for target in panel.get("targets", ()):
                text = target["expr"]
                for name, value in (("$__rate_interval", "10s"), ("$cluster", ".*"), ("$node", ".*"), ("$group", ".*")):
                    text = text.replace(name, value)
                assert "$" not in text, text
                found.append((f"{path.name}: {panel['title']}", text))
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((HERE / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


# -- files ----------------------------------------------------------------------------------------------------------


def test_dashboards_are_what_grafana_takes() -> None:
    assert len(DASHBOARDS) >= 4
    assert len({json.loads(path.read_bytes())["uid"] for path in DASHBOARDS}) == len(DASHBOARDS)
    for path in DASHBOARDS:
        board = json.loads(path.read_bytes())
        assert board["title"]
        assert isinstance(board["schemaVersion"], int)
        variables = {variable["name"] for variable in board["templating"]["list"]}
        assert "datasource" in variables
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in board["panels"]:
            if panel["type"] == "row":
                continue
            assert panel["type"] in ("timeseries", "stat", "table")
            assert panel["title"]
            assert panel["targets"]
            for target in panel["targets"]:
                assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
                used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
                assert used <= variables, panel["title"]
        for one, other in combinations(board["panels"], 2):
            assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
            assert one["gridPos"]["x"] + one["gridPos"]["w"] <= 24


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def test_every_alert_says_what_it_means() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    tests = (HERE / "alerts_test.yml").read_text()
    for rule in rules():
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert f'alertname="{rule["alert"]}"' in tests, rule["alert"]


@needs_prometheus
def test_promtool_takes_the_rules() -> None:
    for arguments in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        done = subprocess.run(["promtool", *arguments], cwd=HERE, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


# -- metrics of servers ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """Runs a NameServer, a controller, two brokers and a proxy.

    Yields the NameServer's address and the metrics address of each server.
    """
    ports = {name: free_port() for name in ("namesrv", "controller", "broker-1", "broker-2")}
    async with AsyncExitStack() as stack:
        name_server = NameServer(
            NamesrvConfig(
                bind_address=HOST,
                listen_port=0,
                metrics_port=ports["namesrv"],
                kv_config_path=directory / "kvConfig.json",
                config_store_path=directory / "namesrv.properties",
            )
        )
        await name_server.start()
        stack.push_async_callback(name_server.stop)
        controller = Controller(
            ControllerConfig(
                bind_address=HOST,
                listen_port=0,
                metrics_port=ports["controller"],
                controller_store_path=directory / "controller",
                config_store_path=directory / "controller.properties",
            )
        )
        await controller.start()
        stack.push_async_callback(controller.stop)
        for number in (1, 2):
            broker = Broker(
                BrokerConfig(
                    broker_name="broker-a",
                    broker_ip1=HOST,
                    bind_address=HOST,
                    listen_port=0,
                    metrics_port=ports[f"broker-{number}"],
                    namesrv_addr=[name_server.address],
                    enable_controller_mode=True,
                    controller_addr=[controller.address],
                    store=StoreConfig(
                        store_path_root_dir=directory / f"store-{number}", mapped_file_size_commit_log=16 * 1024 * 1024
                    ),
                )
            )
            await broker.start()
            stack.push_async_callback(broker.stop)
        proxy = Proxy(
            ProxyConfig(
                namesrv_addr=name_server.address,
                bind_address=HOST,
                grpc_server_port=0,
                remoting_listen_port=0,
                metrics_exporter_type=MetricsExporterType.PROM,
                metrics_prom_exporter_port=0,
            )
        )
        await proxy.start()
        stack.push_async_callback(proxy.stop)
        where = {name: f"{HOST}:{port}" for name, port in ports.items()}
        where["proxy"] = f"{HOST}:{proxy.metrics_port}"
        yield name_server.address, where


class _Open:
    """Transactions that do not end."""

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


@asynccontextmanager
async def load(name_server: str) -> AsyncIterator[None]:
    """Sends messages, some of them delayed or in open transactions; one of two groups consumes them."""
    async with AdminClient(name_server) as admin:

        async def made() -> bool:
            with suppress(Exception):
                await admin.ensure_topic("orders", queues=2)
                return True
            return False

        await until(made)
    seen: list[Any] = []

    async def consume(message: Message) -> None:
        seen.append(message)

    consumer = PushConsumer(name_server, "billing", consume, start_from="earliest")
    consumer.subscribe("orders")
    async with Producer(name_server, "shop") as producer, consumer:
        await producer.send(Message("orders", b"later", properties={"TIMER_DELAY_MS": "600000"}))
        async with TransactionProducer(name_server, "payments", _Open()) as transactions:
            await transactions.send_in_transaction(Message("orders", b"open"))

        async def send() -> None:
            while True:
                await producer.send(Message("orders", b"x" * 100))
                await asyncio.sleep(0.01)

        sending = asyncio.ensure_future(send())
        try:
            await until(lambda: len(seen) > 10)
            yield
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending


async def metrics_told(where: dict[str, str]) -> set[str]:
    """Returns the names of all metrics that the servers export, with or without a value."""
    from gantrymq.spark.query_metrics import QueryMetrics

    figures = QueryMetrics()
    figures.started("id", "query")
    spark = MetricsServer(figures.metrics, host=HOST, port=0)
    await spark.start()
    found: set[str] = set()
    try:
        async with httpx.AsyncClient() as client:
            for address in (*where.values(), f"{HOST}:{spark.port}"):
                text = (await client.get(f"http://{address}/metrics")).text
                for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
                    found |= (
                        {f"{name}_{part}" for part in ("bucket", "sum", "count")} if kind == "histogram" else {name}
                    )
    finally:
        await spark.stop()
    return found


@asynccontextmanager
async def prometheus(directory: Path, where: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """Runs Debian's Prometheus, which scrapes these servers every second."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(HERE / "alerts.yml")],
        "scrape_configs": [{"job_name": "rocketmq", "static_configs": [{"targets": list(where.values())}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"{HOST}:{free_port()}"
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address={address}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=20) as client:

            async def ready() -> bool:
                assert process.returncode is None, (directory / "prometheus.log").read_text()
                with suppress(httpx.HTTPError):
                    return (await client.get("/-/ready")).status_code == 200
                return False

            await until(ready)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def ask(client: httpx.AsyncClient, expression: str) -> list[Any]:
    answer = (await client.get("/api/v1/query", params={"query": expression})).json()
    assert answer["status"] == "success", (expression, answer)
    found: list[Any] = answer["data"]["result"]
    return found


async def test_every_metric_is_told_by_a_server(tmp_path: Path) -> None:
    used = {name: where for where, text in expressions() for name in _METRIC.findall(text)}
    used |= {name: rule["alert"] for rule in rules() for name in _METRIC.findall(rule["expr"])}
    async with cluster(tmp_path) as (_, where):
        told = await metrics_told(where)
    assert len(used) > 40
    assert {name: used[name] for name in sorted(used.keys() - told)} == {}


@pytest.mark.slow
@needs_prometheus
async def test_every_expression_on_prometheus(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (name_server, where), load(name_server), prometheus(tmp_path, where) as client:

        async def all_asked() -> bool:
            return len(await ask(client, "count_over_time(up[1m]) > 3")) == len(where)

        await until(all_asked)
        assert {found["metric"]["instance"] for found in await ask(client, "up == 1")} == set(where.values())
        for place, expression in expressions():
            found = await ask(client, expression)
            if not _ONLY_WHEN_BAD.search(expression) and not _NOT_HERE.search(expression):
                assert found, f"{place} shows nothing: {expression}"
        for rule in rules():
            await ask(client, rule["expr"])
        await _see_charts(name_server, str(client.base_url))
        healthy = await ask(client, 'ALERTS{alertstate="firing", severity="critical"}')
        assert healthy == []


async def _see_charts(name_server: str, url: str) -> None:
    """Checks the console's charts, with this Prometheus instead of the console's own history."""
    app = Console(Settings(name_server, prometheus=url)).app
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=20) as visitor,
    ):
        for arguments, figures in (({}, 4), ({"broker": "broker-a"}, 3), ({"group": "billing"}, 3)):

            async def drawn(arguments: dict[str, str] = arguments, figures: int = figures) -> bool:
                page = (await visitor.get("/api/v1/history", params={"span": "15m", **arguments})).json()
                return sum(chart["last"] is not None for chart in page["charts"]) == figures

            # A new point appears every 15 s.
            await until(drawn, 60)
