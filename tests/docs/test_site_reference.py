"""tools/site_reference.py: the pages that are made from code have all that the code has."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gantrymq import errors
from gantrymq.auth.config import AuthConfig
from gantrymq.broker.config import BrokerConfig
from gantrymq.config import property_key
from gantrymq.controller.config import ControllerConfig
from gantrymq.namesrv.config import NamesrvConfig
from gantrymq.protocol.codes import ResponseCode
from gantrymq.proxy.config import ProxyConfig
from gantrymq.replication.config import ReplicationConfig
from gantrymq.store.config import StoreConfig

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pages() -> dict[str, dict[str, str]]:
    """{language: {path: text}}."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import site_reference
    finally:
        sys.path.pop(0)
    return {language: site_reference.pages(language) for language in ("en", "zh")}


def rows(text: str) -> dict[str, list[str]]:
    """{first cell without its backticks: all cells} of all tables."""
    found = {}
    for line in re.findall(r"^\| `.*\|$", text, re.MULTILINE):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        found[cells[0].strip("`")] = cells
    return found


@pytest.mark.parametrize("language", ["en", "zh"])
def test_configuration_has_all_keys(pages: dict[str, dict[str, str]], language: str) -> None:
    broker, name_server, controller, proxy = re.split(
        "## NameServer|## Controller|## Proxy", pages[language]["reference/configuration.md"]
    )
    classes = (BrokerConfig, ReplicationConfig, StoreConfig, AuthConfig)
    ours = [property_key(each) for cls in classes for each in fields(cls)]
    assert list(rows(broker)) == [key for key in ours if key not in ("replication", "store", "auth")]
    assert list(rows(name_server)) == [property_key(each) for each in fields(NamesrvConfig)]
    assert list(rows(controller)) == [property_key(each) for each in fields(ControllerConfig)]
    assert list(rows(proxy)) == [property_key(each) for each in fields(ProxyConfig)]
    for key, cells in (rows(broker) | rows(name_server) | rows(controller) | rows(proxy)).items():
        assert cells[-1], f"{key} has no meaning"
    assert rows(broker)["listenPort"][1:4] == ["int", "`10911`", "0 … 65535"]
    assert rows(broker)["fileReservedTime"][4] == "✓"
    assert rows(name_server)["kvConfigPath"][4] == ""


@pytest.mark.parametrize("language", ["en", "zh"])
def test_metrics_have_their_words(pages: dict[str, dict[str, str]], language: str) -> None:
    broker, name_server, controller, proxy = re.split(
        "## NameServer|## Controller|## Proxy", pages[language]["reference/metrics.md"]
    )
    metrics = re.compile(r"`((?:rocketmq|gantry)_\w+)`")
    documented = (ROOT / "docs" / "broker.md").read_text(encoding="utf-8").partition("## Metrics")[2]
    assert set(rows(broker)) == set(metrics.findall(documented.partition("\n## ")[0]))
    assert "rocketmq_namesrv_requests_total" in rows(name_server)
    assert "rocketmq_controller_master_epoch" in rows(controller)
    assert rows(proxy)["gantry_proxy_clients"][2].endswith("`kind`")
    for name, (_, kind, _, what) in (rows(broker) | rows(name_server) | rows(controller) | rows(proxy)).items():
        assert kind in ("gauge", "counter", "histogram")
        assert what, name
    for name, (_, _, labels, _) in rows(broker).items():
        assert "`cluster`" in labels, f"no sample of {name}"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_errors_have_their_remedies(pages: dict[str, dict[str, str]], language: str) -> None:
    text = pages[language]["reference/errors.md"]
    table = rows(text)
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.GantryError):
            _, base, what, remedy = table[cls.__name__]
            assert base
            assert what, cls
            # One that is there for those below it needs none of its own.
            assert remedy or cls.__subclasses__(), cls
            assert f"── {cls.__name__} " in text or cls is errors.GantryError
    assert "| no broker is registered |" in text
    assert len(re.findall(r"^\| a server can't be reached \| .+ \| .+ \|$", text, re.MULTILINE)) > 5
    for code in ResponseCode:
        assert f"| {int(code)} | `{code.name}` |" in text
