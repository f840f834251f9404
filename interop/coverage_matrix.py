"""The coverage of each test in this directory: a feature, pairs of programs, and a version of Apache RocketMQ.

A module declares its coverage by a marker. A marker of a test overrides parts of it:

    pytestmark = pytest.mark.interop(feature="delayed messages", clients="java", servers="{cluster}")

- `feature` is a key of FEATURES.
- `clients` are words of CLIENTS, separated by spaces.
- `servers` are `java`, `gantry`, or both. Tests of files or links between two programs have no clients.
- `version` is a version of VERSIONS, or its short form. Default: 5.5.0.

`{name}` stands for the parameter `name` of the test. `pytest interop --matrix=FILE` writes the outcomes to a file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict

import pytest

#: The features, and their Chinese names.
FEATURES = {
    "send and receive": "发送与接收",
    "ordered messages": "顺序消息",
    "delayed messages": "延迟消息",
    "transactions": "事务消息",
    "request and reply": "请求与应答",
    "filters": "消息过滤",
    "retries and dead letters": "重试与死信",
    "POP": "POP 消费",
    "broadcasting": "广播消费",
    "consumer offsets": "消费位点",
    "compression": "压缩",
    "batches": "批量消息",
    "message traces": "消息轨迹",
    "access control": "访问控制",
    "TLS": "TLS",
    "mqadmin": "mqadmin",
    "console": "控制台",
    "doctor": "gantry doctor",
    "metrics": "指标",
    "replication": "主从复制",
    "controller": "Controller 与自动切换",
    "acting master": "代理主节点",
    "failure of a proxy": "Proxy 故障",
    "store files": "存储文件",
    "compaction topics": "压缩主题",
    "deduplication": "去重",
    "lite topics": "轻量主题",
    "priorities": "优先级消息",
    "Spark": "Spark",
    "HTTP/2 (h2spec)": "HTTP/2（h2spec）",
    "Apache's integration tests (rocketmq-test)": "Apache 的集成测试（rocketmq-test）",
}
#: The versions, and their short forms in parameters of tests.
VERSIONS = {"5.5.0": "5.5", "5.4.0": "5.4", "4.9.7": "4.9"}
#: The client programs. A gRPC client is one of Apache's. A suite sends requests as a client does.
CLIENTS = ("java", "gantry", "grpc-java", "grpc-python", "grpc-node", "grpc-rust", "grpc-go", "suite")
SERVERS = ("java", "gantry")
#: Pairs that do not consist of a client and a server: programs of both projects that work together, and tests that
#: only run Apache's programs.
TOGETHER, CONTROL = "together", "control"
#: All pairs.
PAIRS = (
    *(f"{client}>gantry" for client in CLIENTS if client not in ("gantry", "suite")),
    "gantry>java",
    "gantry>gantry",
    TOGETHER,
    "suite>gantry",
    CONTROL,
)


class Coverage(NamedTuple):
    feature: str
    pairs: tuple[str, ...]
    version: str


def coverage_of(item: pytest.Item) -> Coverage:
    """Returns the coverage of a test. Raises UsageError if its marker is missing or invalid."""
    declared: dict[str, str] = {}
    for marker in item.iter_markers("interop"):
        declared = {**marker.kwargs, **declared}
    callspec = getattr(item, "callspec", None)
    parameters = callspec.params if callspec is not None else {}
    try:
        declared = {name: value.format(**parameters) for name, value in declared.items()}
    except KeyError as missing:
        raise pytest.UsageError(f"{item.nodeid}: the marker 'interop' names {missing}, which is no parameter") from None
    feature = declared.get("feature", "")
    programs, _, version = declared.get("servers", "").partition("@")
    version = version or declared.get("version", "5.5.0")
    clients = [client.removesuffix("-tls") for client in declared.get("clients", "").split()]
    servers = [server for server in re.split(r"[-\s]+", programs) if server not in ("", "over")]
    version = next((full for full, short in VERSIONS.items() if version in (full, short)), "")
    known = {*declared} <= {"feature", "clients", "servers", "version"} and feature in FEATURES and version
    if not known or not {*clients} <= {*CLIENTS} or not {*servers} <= {*SERVERS} or not (clients or servers):
        raise pytest.UsageError(
            f"{item.nodeid}: the marker 'interop' is missing or invalid: {declared}; see interop/coverage_matrix.py"
        )
    return Coverage(feature, pairs_of(clients, servers), version)


def pairs_of(clients: list[str], servers: list[str]) -> tuple[str, ...]:
    """Returns the pairs that these programs form. A test with several servers covers a client with each of them."""
    found = {f"{client}>{server}" for client in clients for server in servers} & {*PAIRS}
    programs = servers or clients
    if {*SERVERS} <= {*programs}:
        found.add(TOGETHER)
    elif not clients and {*programs} == {"gantry"}:
        found.add("gantry>gantry")
    return tuple(sorted(found, key=PAIRS.index)) or (CONTROL,)


class Parts(TypedDict):
    """The numbers of passed and failed tests in a class of a suite, and of those that did not run by reason."""

    passed: int
    failed: int
    not_run: dict[str, int]


@dataclass
class Outcome:
    """The outcome of a test: `passed`, `failed`, or `not run` with a reason.

    If the test runs a class of a suite, `suite_class` is its name, and `parts` has the numbers of its tests.
    """

    module: str
    coverage: Coverage
    state: str = "not run"
    reason: str = "the run ended early"
    suite_class: str | None = None
    parts: Parts | None = None


class Recorder:
    """Collects the outcomes of a run, and writes them to a file at its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, Outcome] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            outcome = self._outcomes[item.nodeid] = Outcome(item.path.name, coverage_of(item))
            if (callspec := getattr(item, "callspec", None)) is not None:
                outcome.suite_class = callspec.params.get("suite_class")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = self._outcomes[report.nodeid]
        outcome.parts = dict(report.user_properties).get("parts", outcome.parts)
        if report.failed:
            outcome.state, outcome.reason = "failed", ""
        elif isinstance(report.longrepr, tuple):
            # A skipped test: path, line, reason.
            outcome.reason = report.longrepr[2].removeprefix("Skipped: ")
        elif report.when == "call" and report.passed:
            outcome.state, outcome.reason = "passed", ""

    def pytest_sessionfinish(self) -> None:
        tests = [
            {"id": name, **{field: value for field, value in vars(outcome).items() if field != "coverage"}}
            | outcome.coverage._asdict()
            for name, outcome in self._outcomes.items()
        ]
        self._path.write_text(json.dumps(tests))
