"""Generates the pages of the reference that describe configuration keys, metrics and errors.

The texts come from the code: docstrings, `#:` comments and the descriptions of metrics. The meaning of a broker's key
comes from the table in docs/broker.md, which a test compares with the code.
"""

from __future__ import annotations

import inspect
import queue
import re
import socket
import time
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.request import urlopen

import site_findings

from gantrymq import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SyncProducer,
    SyncPushConsumer,
    SyncTransactionProducer,
    TransactionProducer,
    errors,
)
from gantrymq.auth.config import AuthConfig
from gantrymq.background.jobs import Jobs
from gantrymq.broker.admin.broker_config import READ_AT_START
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import property_key
from gantrymq.controller.config import FIXED_KEYS as CONTROLLER_FIXED_KEYS
from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.live_brokers import LiveBrokers
from gantrymq.controller.metrics import collect as collect_controller
from gantrymq.controller.replicas import Replicas
from gantrymq.metrics import Metric, render
from gantrymq.namesrv.config import FIXED_KEYS, NamesrvConfig
from gantrymq.namesrv.metrics import collect
from gantrymq.namesrv.route_table import RouteTable
from gantrymq.protocol.codes import ResponseCode
from gantrymq.proxy.clients import Clients
from gantrymq.proxy.config import ProxyConfig
from gantrymq.proxy.metrics import CallFigures
from gantrymq.proxy.metrics import collect as collect_proxy
from gantrymq.remoting.request_counts import RequestCounts
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Path(__file__).parent.parent
#: The classes whose keys are in one configuration file, as in Java.
_BROKER_CLASSES: tuple[Any, ...] = (BrokerConfig, ReplicationConfig, StoreConfig, AuthConfig)
#: Keys that a NameServer reads at its start. As in Java, it accepts a change but uses it only after a restart.
_NAMESRV_READ_AT_START = {"listenPort", "bindAddress", "metricsPort", "serverChannelMaxIdleTimeSeconds"}
#: The same for a controller.
_CONTROLLER_READ_AT_START = _NAMESRV_READ_AT_START | {
    *("controllerDLegerGroup", "controllerDLegerSelfId", "controllerDLegerPeers", "controllerStorePath"),
    "etcdEndpoints",
}
#: Remedies for the response codes that users see. The names of the other codes explain them.
CODES = {
    ResponseCode.SYSTEM_ERROR: "the remark says what failed; the server's log has more",
    ResponseCode.SYSTEM_BUSY: "too much waits, or the disk is too full: send less at a time, or later",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server has no such request; see Compatibility",
    ResponseCode.FLUSH_DISK_TIMEOUT: "stored, but not on the disk in time (`syncFlushTimeout`)",
    ResponseCode.MESSAGE_ILLEGAL: "change the message: body or properties are too long, or the topic is the system's",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker starts or stops, or its disk takes nothing: the remark says which",
    ResponseCode.NO_PERMISSION: "the topic, the broker or the user may not: `gantry doctor TOPIC --acl-config FILE`",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic on this broker: `gantry admin updateTopic`",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the filter; the remark has the place",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "the broker hasn't had the consumer's heartbeat yet: it is tried again",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "give all members of the group the same subscriptions",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group: `gantry admin updateSubGroup`",
    ResponseCode.INVALID_PARAMETER: "correct the argument that the remark names",
    ResponseCode.CONSUMER_NOT_ONLINE: "no consumer of the group is connected; start one",
    ResponseCode.POLLING_FULL: "too many wait (`popPollingSize`, `maxPopPollingSize`): fewer workers, or larger limits",
    ResponseCode.USER_NOT_EXIST: "create the user: `gantry admin createUser`",
    ResponseCode.POLICY_NOT_EXIST: "create the policy: `gantry admin createAcl`",
}
_METRIC = re.compile(r"# HELP (\S+) (.*)\n# TYPE \S+ (\w+)\n((?:[^#\n].*\n)*)")


def pages(language: str) -> dict[str, str]:
    """Returns the Markdown of each page by its path. In Chinese, the texts from the code stay English."""
    title = {page: names[language] for page, names in _TITLES.items()}
    note = _NOTE[language]
    return {
        "reference/configuration.md": f"# {title['configuration']}\n\n{note}\n\n{_configuration(language)}",
        "reference/metrics.md": f"# {title['metrics']}\n\n{note}\n\n{_metrics(language)}",
        "reference/errors.md": f"# {title['errors']}\n\n{note}\n\n{_errors(language)}",
    }


_TITLES = {
    "configuration": {"en": "Configuration keys", "zh": "配置项"},
    "metrics": {"en": "Metrics", "zh": "监控指标"},
    "errors": {"en": "Errors", "zh": "错误"},
}
_NOTE = {
    "en": "This page is made from the code.",
    "zh": "本页由代码生成，说明文字取自代码，因此部分为英文。",
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |\n" for line in lines)


# -- configuration ----------------------------------------------------------------------------------------------


def broker_keys() -> Iterator[Field[Any]]:
    for cls in _BROKER_CLASSES:
        yield from (each for each in fields(cls) if each.name not in ("replication", "store", "auth"))


def comments(cls: type) -> dict[str, str]:
    """Returns the `#:` comment above each field by the name of the field, including those of base classes."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        text: list[str] = []
        for line in inspect.getsource(base).splitlines():
            stripped = line.strip()
            if stripped.startswith("#:"):
                text.append(stripped.removeprefix("#:").strip())
            elif match := re.match(r"    (\w+): .*", line):
                if text:
                    found[match[1]] = " ".join(text)
                text = []
            elif not line.startswith("     "):
                text = []
    return found


class Row(NamedTuple):
    """The row of a key in the table of broker.md, without links."""

    default: str
    meaning: str


def broker_rows(language: str) -> dict[str, Row]:
    """Returns the row of each key of a broker."""
    found = {}
    # If a key has no Chinese row, its English row is used.
    for directory in ("docs", "docs/zh") if language == "zh" else ("docs",):
        text = (ROOT / directory / "broker.md").read_text(encoding="utf-8")
        for key, default, meaning in re.findall(r"^\| `([^`]+)` \| (.*?) \| .*? \| (.*) \|$", text, re.MULTILINE):
            found[key] = Row(default, re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", meaning))
    return found


def _configuration(language: str) -> str:
    said = broker_rows(language)
    broker = [_key_row(each, said.get(property_key(each), Row("", "")), READ_AT_START) for each in broker_keys()]
    name_server = _server_rows(NamesrvConfig, said, FIXED_KEYS | _NAMESRV_READ_AT_START)
    controller = _server_rows(ControllerConfig, said, CONTROLLER_FIXED_KEYS | _CONTROLLER_READ_AT_START)
    if language == "zh":
        head = ["键", "类型", "默认值", "取值范围", "运行中可改", "含义"]
        texts = (
            "## Broker",
            "## NameServer",
            "文件为 Java 的 `.properties` 格式。大小以字节计，时间未注明单位时以毫秒计。",
        )
    else:
        head = ["key", "type", "default", "bounds", "may change while it runs", "meaning"]
        texts = (
            "## Broker",
            "## NameServer",
            "Files are Java's `.properties`. Sizes are in bytes, times in ms unless a name or text has another unit.",
        )
    tables = f"{texts[0]}\n\n{_table(head, broker)}\n{texts[1]}\n\n{_table(head, name_server)}"
    proxy = _server_rows(ProxyConfig, said, [property_key(each) for each in fields(ProxyConfig)])
    return f"{texts[2]}\n\n{tables}\n## Controller\n\n{_table(head, controller)}\n## Proxy\n\n{_table(head, proxy)}"


def _server_rows(cls: type, said: Mapping[str, Row], fixed: Collection[str]) -> list[list[str]]:
    """Returns a row for each key. Its meaning is the comment above it, or that of the broker's key of the same name."""
    own = comments(cls)
    found = []
    for each in fields(cls):
        row = said.get(property_key(each), Row("", ""))
        found.append(_key_row(each, row._replace(meaning=own.get(each.name, row.meaning)), fixed))
    return found


def _key_row(each: Field[Any], row: Row, fixed: Collection[str]) -> list[str]:
    key = property_key(each)
    low, high = each.metadata.get("minimum"), each.metadata.get("maximum")
    bounds = f"{'' if low is None else low} … {'' if high is None else high}" if (low, high) != (None, None) else ""
    return [f"`{key}`", _type(each), _default(each) or row.default, bounds, "" if key in fixed else "✓", row.meaning]


def _type(each: Field[Any]) -> str:
    owner = next(
        cls
        for cls in (*_BROKER_CLASSES, NamesrvConfig, ControllerConfig, ProxyConfig)
        if each.name in cls.__dataclass_fields__
    )
    hint = typing.get_type_hints(owner)[each.name]
    if isinstance(hint, types.UnionType):
        (hint,) = [part for part in typing.get_args(hint) if part is not types.NoneType]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " ".join(f"`{member.value}`" for member in hint)
    return "list" if typing.get_origin(hint) is list else str(hint.__name__).lower()


def _default(each: Field[Any]) -> str:
    """Returns the default of a key. It is empty if there is none, or if it depends on the machine."""
    if each.name == "broker_name":
        return ""
    value = each.default if each.default_factory is MISSING else each.default_factory()
    if value is MISSING or value is None or value == [] or value == "":
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, list):
        value = ";".join(value)
    return f"`{str(value).replace(str(Path.home()), '~')}`"


# -- metrics ----------------------------------------------------------------------------------------------------


def _metrics(language: str) -> str:
    head = ["名称", "类型", "标签", "说明"] if language == "zh" else ["name", "kind", "labels", "what"]
    told = render(collect(RouteTable(NamesrvConfig()), RequestCounts(), Jobs(), 0, 0.0)).decode()
    # A metric has labels only if it has values. The NameServer has none here, so the labels come from a table.
    name_server = [
        [f"`{name}`", kind, _NAMESRV_LABELS.get(name, ""), text] for name, text, kind, _ in _METRIC.findall(told)
    ]
    broker = [
        [f"`{name}`", kind, _labels(samples) or _UNREPORTED_LABELS[name], text]
        for name, text, kind, samples in _METRIC.findall(_told())
    ]
    told = render(_controller_metrics()).decode()
    controller = [
        [f"`{name}`", kind, _CONTROLLER_LABELS.get(name, ""), text] for name, text, kind, _ in _METRIC.findall(told)
    ]
    tables = f"## Broker\n\n{_table(head, sorted(broker))}\n## NameServer\n\n{_table(head, sorted(name_server))}"
    proxy = [
        [f"`{name}`", kind, _PROXY_LABELS + _MORE_PROXY_LABELS.get(name, ""), text]
        for name, text, kind, _ in _METRIC.findall(render(_proxy_metrics()).decode())
    ]
    tables += f"\n## Controller\n\n{_table(head, sorted(controller))}"
    return f"{tables}\n## Proxy\n\n{_table(head, sorted(proxy))}"


def _proxy_metrics() -> Iterable[Metric]:
    return collect_proxy(
        {},
        CallFigures(),
        CallFigures(),
        Clients(),
        Jobs(),
        connections=0,
        remoting_connections=0,
        buffered_bytes=0,
        request_bytes=0,
        unread_bytes=0,
    )


_PROXY_LABELS = "`node_type` `cluster` `node_id` `proxy_mode`"
_MORE_PROXY_LABELS = {
    "gantry_proxy_calls_total": " `method` `result`",
    "gantry_proxy_call_seconds": " `method`",
    "gantry_proxy_remoting_requests_total": " `request` `result`",
    "gantry_proxy_remoting_request_seconds": " `request`",
    "gantry_proxy_clients": " `kind`",
}


def _controller_metrics() -> Iterable[Metric]:
    return collect_controller(
        Replicas(),
        LiveBrokers(),
        {},
        RequestCounts(),
        Jobs(),
        is_leader=True,
        now_ms=0,
        connections=0,
        uptime_s=0.0,
    )


#: Labels of metrics that the embedded broker does not report: it has neither slaves nor a controller, and neither pops
#: nor timer messages that are due.
_UNREPORTED_LABELS = {
    "rocketmq_topic_create_execution_time_milliseconds": (
        "`node_type` `cluster` `node_id` `invocation_status` `is_system`"
    ),
    "rocketmq_consumer_group_create_execution_time_milliseconds": "`node_type` `cluster` `node_id` `invocation_status`",
    **dict.fromkeys(
        ("rocketmq_half_messages", "rocketmq_finish_message_latency_milliseconds"),
        "`node_type` `cluster` `node_id` `topic`",
    ),
    "rocketmq_delay_message_latency_seconds": "`node_type` `cluster` `node_id` `storage_type` `storage_medium` `topic`",
    "gantry_deduplicated_messages_total": "`node_type` `cluster` `node_id` `topic`",
    "gantry_deduplication_ids": "`node_type` `cluster` `node_id` `topic`",
    "gantry_rate_limited_requests_total": "`node_type` `cluster` `node_id` `limit` `name`",
    "gantry_replication_epoch": "`node_type` `cluster` `node_id`",
    **dict.fromkeys(
        (f"gantry_replication_{name}" for name in ("lag_bytes", "lag_seconds", "transferred_bytes_per_second")),
        "`node_type` `cluster` `node_id` `slave`",
    ),
    "rocketmq_send_to_dlq_messages_total": "`node_type` `cluster` `node_id` `consumer_group` `topic` `is_system`",
    **dict.fromkeys(
        ("rocketmq_timer_enqueue_total", "rocketmq_timer_dequeue_total"),
        "`node_type` `cluster` `node_id` `storage_type` `storage_medium` `topic`",
    ),
    **{
        f"rocketmq_pop_revive_{name}_total": f"`node_type` `cluster` `node_id` `consumer_group` `topic` {labels}"
        for name, labels in (
            ("in_message", "`revive_message_type` `put_status`"),
            ("out_message", "`revive_message_type` `queue_id`"),
            ("retry_messages", "`put_status`"),
        )
    },
}
_NAMESRV_LABELS = {
    "rocketmq_namesrv_brokers": "`cluster` `role`",
    "rocketmq_namesrv_requests_total": "`request_code` `response_code`",
    **dict.fromkeys(
        (
            f"gantry_job_{name}"
            for name in ("runs_total", "failures_total", "failing_since_seconds", "last_duration_seconds")
        ),
        "`job`",
    ),
}
_CONTROLLER_LABELS = {
    **dict.fromkeys(
        (
            f"rocketmq_controller_{name}"
            for name in ("active_broker_num", "master_broker_id", "master_epoch", "sync_state_set_size")
        ),
        "`cluster` `broker_set`",
    ),
    "rocketmq_controller_election_total": "`election_result`",
    "rocketmq_controller_requests_total": "`request_code` `response_code`",
    **{name: labels for name, labels in _NAMESRV_LABELS.items() if name.startswith("gantry_job_")},
}


@cache
def _told() -> str:
    """Returns the metrics of a broker that has values for each of its metrics."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        TemporaryDirectory() as tier,
        EmbeddedCluster(metrics_port=port, bind_address="127.0.0.1", tiered_store_file_path=tier) as cluster,
    ):
        address = cluster.name_server
        received: queue.Queue[MessageExt] = queue.Queue()
        reader = PushConsumer(address, "readers", received.put, start_from="earliest")
        reader.subscribe("orders")
        transactions = TransactionProducer(address, "payers", _Ends())
        with SyncProducer(Producer(address, "shop")) as producer, SyncTransactionProducer(transactions) as payer:
            producer.send(Message("orders", b"one"))
            producer.send(Message("orders", b"later", delay=3600))
            for state in (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE):
                payer.send_in_transaction(Message("orders", b"paid"), state)
            producer.send(Message("%DLQ%readers", b"given up"))
            with SyncPushConsumer(reader):
                received.get(timeout=30)
                deadline = time.monotonic() + 30
                # The broker finds the segments of its tier in the background.
                while "gantry_tier_segments" not in (text := _fetch(f"http://127.0.0.1:{port}/metrics")):
                    if time.monotonic() > deadline:
                        raise TimeoutError("the broker reports no metrics of its tier")
                    time.sleep(0.1)
                return text


def _fetch(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


class _Ends:
    def execute_local_transaction(self, message: Message, arg: LocalTransactionState) -> LocalTransactionState:
        return arg

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN


def _labels(samples: str) -> str:
    names = dict.fromkeys(re.findall(r'[{,](\w+)="', samples))
    return " ".join(f"`{name}`" for name in names if name != "le")


# -- errors -----------------------------------------------------------------------------------------------------


def error_classes() -> list[type[errors.GantryError]]:
    """Returns all classes of gantrymq.errors, base classes first."""
    return [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, errors.GantryError) and cls.__module__ == errors.__name__
    ]


def described(cls: type) -> tuple[str, str]:
    """Returns the meaning and the remedy of an error class, from its docstring."""
    what, _, remedy = inspect.cleandoc(cls.__doc__ or "").partition("Remedy: ")
    return " ".join(what.split()), " ".join(remedy.split())


def _errors(language: str) -> str:
    tree = (errors.__doc__ or "").partition("\n\n")[2].strip()
    classes = [
        [f"`{cls.__name__}`", ", ".join(f"`{base.__name__}`" for base in cls.__bases__), *described(cls)]
        for cls in error_classes()
    ]
    codes = [[str(int(code)), f"`{code.name}`", CODES.get(code, "")] for code in ResponseCode]
    found = [[each.what, each.why, each.remedy] for each in site_findings.findings()]
    if language == "zh":
        return f"""`gantrymq.errors` 中的所有错误都是 `GantryError`：

```text
{tree}
```

## 错误类

{_table(["错误", "上级", "含义", "处理办法"], classes)}
## 响应码

`BrokerError.code` 的取值：

{_table(["代码", "名称", "处理办法"], codes)}
## gantry doctor 的发现

{_table(["发现", "原因", "处理办法"], found)}"""
    return f"""All errors are a `GantryError` of `gantrymq.errors`:

```text
{tree}
```

## Classes

{_table(["error", "is a", "what it means", "remedy"], classes)}
## Codes of answers

What `BrokerError.code` may be:

{_table(["code", "name", "remedy"], codes)}
## What gantry doctor finds

{_table(["finding", "why", "remedy"], found)}"""
