"""Tests that docs/compatibility.md describes each request as the servers handle it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gantrymq.controller.config import ControllerConfig
from gantrymq.controller.server import Controller
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand
from gantrymq.remoting.client import RemotingClient
from gantrymq.testing.embedded import EmbeddedCluster

TEXT = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
#: Requests for broker containers. The document covers them in one sentence.
NOT_LISTED = {RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER}


def documented(heading: str) -> dict[RequestCode, str]:
    """Returns {code: state} of the table under a heading.

    tests/client/test_answered_requests.py checks the table of requests to clients.
    """
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([^|]+) \|$", section, re.MULTILINE)
    assert all(RequestCode(int(code)).name == name for code, name, _ in rows)
    return {RequestCode(int(code)): state for code, _, state in rows}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster with light queues. Without them, brokers refuse the requests about lite topics."""
    with EmbeddedCluster(enable_lmq=True) as cluster:
        yield cluster


async def test_what_a_controller_answers_is_documented(tmp_path: Path) -> None:
    config = ControllerConfig(bind_address="127.0.0.1", listen_port=0, controller_store_path=tmp_path)
    controller = Controller(config)
    await controller.stop()
    assert documented("Requests to a controller") == dict.fromkeys(controller.request_codes, "served")


@pytest.mark.parametrize("server", ["NameServer", "broker"])
async def test_what_a_server_answers_is_documented(server: str, cluster: EmbeddedCluster) -> None:
    table = documented(f"Requests to a {server}")
    address = cluster.name_server if server == "NameServer" else cluster.brokers[0]
    client = RemotingClient()
    actual = {}
    for code in RequestCode:
        # A request without header and body has no effect. A server rejects an unknown code before it checks them.
        answer = await client.invoke(address, RemotingCommand.request(code), 10_000)
        actual[code] = "not supported" if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED else "served"
    await client.close()
    wrong = {code.name: actual[code] for code, state in table.items() if actual[code] != state}
    assert not wrong, f"docs/compatibility.md, requests to a {server}: these are {wrong}"
    missing = {code.name for code, state in actual.items() if state == "served" and code not in table}
    assert not missing, f"docs/compatibility.md, requests to a {server}: these are served, too: {missing}"


def test_every_request_is_documented() -> None:
    servers = ("NameServer", "controller", "broker")
    tables = (*(f"Requests to a {server}" for server in servers), "Requests of a broker to its clients")
    listed = {code for heading in tables for code in documented(heading)}
    assert listed | NOT_LISTED == set(RequestCode)
