"""Compares GantryMQ with the jars of Apache RocketMQ, and writes docs/missing.md and docs/zh/missing.md.

    .venv/bin/python tools/missing_features.py          # from tools/java_features.json
    .venv/bin/python tools/missing_features.py --java   # reads the jars first; needs Java and the jars of interop/

The list has the request and response codes, configuration keys, commands of mqadmin, attributes, message properties and
metrics that Java has and GantryMQ lacks. tools/missing_features.toml has a reason for each of them. A missing name
without a reason is an error, and so is a reason for which no name is missing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import site_reference
from measurements import table

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.config import BrokerConfig
from gantrymq.broker.tables.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES
from gantrymq.config import property_key
from gantrymq.controller.config import ControllerConfig
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.proxy.config import ProxyConfig
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig

ROOT = Path(__file__).parent.parent
JAVA = ROOT / "tools" / "java_features.json"
REASONS = ROOT / "tools" / "missing_features.toml"
COMPATIBILITY = ROOT / "docs" / "compatibility.md"
BEGIN, END = "<!-- missing features -->\n", "<!-- end of missing features -->\n"
PAGES = {"text": ROOT / "docs" / "missing.md", "zh": ROOT / "docs" / "zh" / "missing.md"}
#: Directories with the jars of the servers and tools, and with those of the proxy.
JARS = ("interop/target/dependency", "interop/client-grpc/target/dependency")
_KEYS = "configuration keys: "
_BROKER = (BrokerConfig, ReplicationConfig, StoreConfig, AuthConfig)
#: The classes of GantryMQ that have the keys of a class of Java.
_CONFIGS: Mapping[str, tuple[Any, ...]] = {
    "AuthConfig": _BROKER,
    "BrokerConfig": _BROKER,
    "ControllerConfig": (ControllerConfig,),
    "MessageStoreConfig": _BROKER,
    "NamesrvConfig": (NamesrvConfig,),
    "NettyClientConfig": _BROKER,
    "NettyServerConfig": (*_BROKER, NamesrvConfig, ControllerConfig),
    "ProxyConfig": (ProxyConfig,),
    "TlsSystemConfig": _BROKER,
    "tiered MessageStoreConfig": _BROKER,
}
_TITLES = {
    "request codes": "请求码",
    "response codes": "响应码",
    "commands of mqadmin": "mqadmin 命令",
    "attributes": "主题与消费组的属性",
    "message properties": "消息属性",
    "metrics": "指标",
    "configuration keys": "配置项",
}
_COLUMNS = {"text": ("Java", "reason"), "zh": ("Java", "原因")}

#: Names of each kind, with their values.
Features = Mapping[str, Mapping[str, str]]


class Reason(NamedTuple):
    """A reason for missing names of a kind. `names` are patterns of fnmatch. The first reason that matches counts."""

    kind: str
    names: tuple[str, ...]
    text: str
    zh: str


def java_features() -> Features:
    """Reads the names from the jars. Raises CalledProcessError if Java fails."""
    class_path = ":".join(str(ROOT / directory / "*") for directory in JARS)
    command = ["java", "-cp", class_path, str(ROOT / "tools" / "JavaFeatures.java")]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: Features = json.loads(done.stdout)
    return found


def stored_features() -> Features:
    found: Features = json.loads(JAVA.read_text(encoding="utf-8"))
    return found


def missing(java: Features) -> dict[str, list[str]]:
    """Returns the names of each kind that GantryMQ lacks."""
    served = served_requests()
    codes = {int(code) for code in ResponseCode}
    lacking = {
        "request codes": [f"{name} {code}" for name, code in _by_value(java["request codes"]) if code not in served],
        "response codes": [f"{name} {code}" for name, code in _by_value(java["response codes"]) if code not in codes],
        "commands of mqadmin": sorted(java["commands of mqadmin"].keys() - served_commands()),
        "attributes": [name for name in sorted(java["attributes"]) if not _has_attribute(name)],
        "message properties": sorted(name for name in java["message properties"] if f'"{name}"' not in _source()),
        "metrics": [name for name in sorted(java["metrics"]) if not _has_metric(name)],
    }
    for name, classes in _CONFIGS.items():
        own = {property_key(each) for config in classes for each in fields(config)}
        lacking[_KEYS + name] = sorted(java[_KEYS + name].keys() - own)
    return {kind: names for kind, names in lacking.items() if names}


def _by_value(codes: Mapping[str, str]) -> list[tuple[str, int]]:
    return sorted(((name, int(code)) for name, code in codes.items()), key=lambda each: each[1])


def served_requests() -> Set[int]:
    """Returns the codes that a server or client serves, according to docs/compatibility.md. Tests compare it."""
    rows = re.findall(r"^\| (\d+) \| \w+ \| ([^|]+) \|$", COMPATIBILITY.read_text(encoding="utf-8"), re.MULTILINE)
    return {int(code) for code, state in rows if state != "not supported"}


def served_commands() -> Set[str]:
    """Returns the commands that `gantry admin` has, according to docs/compatibility.md. A test compares it."""
    rows = re.findall(r"^\| `(\w+)` \| served \|", COMPATIBILITY.read_text(encoding="utf-8"), re.MULTILINE)
    return set(rows)


def _has_attribute(name: str) -> bool:
    owner, _, attribute = name.partition(" ")
    key, _, value = attribute.partition("=")
    known = (TOPIC_ATTRIBUTES if owner == "topic" else GROUP_ATTRIBUTES).get(key)
    return known is not None and (not value or not known.problem(value))


@cache
def _source() -> str:
    return "\n".join(module.read_text(encoding="utf-8") for module in (ROOT / "src" / "gantrymq").rglob("*.py"))


@cache
def _own_metrics() -> Set[str]:
    return set(re.findall(r"^\| `(\w+)` \|", site_reference.pages("en")["reference/metrics.md"], re.MULTILINE))


def _has_metric(name: str) -> bool:
    """Returns whether there is such a metric. Java's exporter adds the unit to the name."""
    return any(name + unit in _own_metrics() for unit in ("", "_milliseconds", "_seconds", "_bytes"))


def reasons() -> list[Reason]:
    found = tomllib.loads(REASONS.read_text(encoding="utf-8"))["reason"]
    return [Reason(each["kind"], tuple(each["names"]), each["text"], each["zh"]) for each in found]


def explained(lacking: Mapping[str, Iterable[str]], known: Iterable[Reason]) -> dict[str, dict[Reason, list[str]]]:
    """Returns the missing names of each kind by reason. Raises ValueError for a missing or unused reason or pattern."""
    explained: dict[str, dict[Reason, list[str]]] = {}
    unexplained: list[str] = []
    unused = {(reason, pattern) for reason in known for pattern in reason.names}
    for kind, names in lacking.items():
        for name in names:
            matching = [
                (reason, pattern)
                for reason in known
                if kind.startswith(reason.kind)
                for pattern in reason.names
                if fnmatchcase(name, pattern)
            ]
            unused -= set(matching)
            if matching:
                explained.setdefault(kind, {}).setdefault(matching[0][0], []).append(name)
            else:
                unexplained.append(f"{kind}: {name}")
    problems = [f"no reason for {name}" for name in unexplained]
    problems += sorted(f"nothing is missing for '{pattern}' of {reason.kind}" for reason, pattern in unused)
    if problems:
        raise ValueError(f"{REASONS.name}: " + "\n".join(problems))
    return explained


def tables(language: str, java: Features, rows: Mapping[str, Mapping[Reason, list[str]]]) -> str:
    """Returns the tables of all kinds. `language` is the name of the reason's field with the text."""
    parts: list[str] = []
    title = ""
    for kind, by_reason in rows.items():
        group, _, config = kind.partition(": ")
        if group != title:
            title = group
            parts.append(f"## {_TITLES[group] if language == 'zh' else group[:1].upper() + group[1:]}\n")
        if config:
            parts.append(f"### {config}\n")
        cells = [
            [", ".join(_name(name, java[kind]) for name in names), getattr(reason, language)]
            for reason, names in by_reason.items()
        ]
        parts.append(table(_COLUMNS[language], cells))
    return "\n" + "\n".join(parts) + "\n"


def _name(name: str, java: Mapping[str, str]) -> str:
    return f"`{name}` (on)" if java.get(name) == "true" else f"`{name}`"


def rendered(language: str, page: str) -> str:
    """Returns the text of a page with the present tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    java = stored_features()
    return before + BEGIN + tables(language, java, explained(missing(java), reasons())) + END + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--java", action="store_true", help="read the names from the jars of interop/ first")
    if parser.parse_args().java:
        JAVA.write_text(json.dumps(java_features(), indent=1) + "\n", encoding="utf-8")
    try:
        for language, page in PAGES.items():
            page.write_text(rendered(language, page.read_text(encoding="utf-8")), encoding="utf-8")
    except ValueError as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
