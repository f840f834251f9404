"""Permissions of a user with their reasons, changes of permission entries, and a broker's configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from console_support import CLUSTER, browser, html_of, json_of
from test_console_access import SECRET, USERS, change

from gantrymq.auth.policy import Resource
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.client.producing.producer import Producer
from gantrymq.console.queries.rights import ACTIONS, verdict
from gantrymq.console.settings import Settings
from gantrymq.errors import GantryError
from gantrymq.protocol.bodies.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from gantrymq.protocol.message import Message
from gantrymq.testing.embedded import EmbeddedCluster

ROOT = Credentials("root", SECRET)
ALICE = UserInfo("alice", "alicepass", "Normal", "enable")


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Starts a cluster with two brokers and users. The user alice has no permissions yet."""
    with EmbeddedCluster(2, auth=USERS) as cluster:
        yield cluster


@pytest.fixture
async def root(cluster: EmbeddedCluster) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a visitor of a console that signs as root."""
    async with AdminClient(cluster.name_server, credentials=ROOT) as admin:
        for address in cluster.brokers:
            if await admin.user(address, "alice") is None:
                await admin.create_user([address], ALICE)
    async with browser(Settings(cluster.name_server, credentials=ROOT, tables_fresh_s=0.1)) as visitor:
        yield visitor


async def verdicts(visitor: httpx.AsyncClient, user: str, resource: str, **more: str) -> dict[tuple[str, str], Any]:
    page = await json_of(visitor, "rights", user=user, resource=resource, **more)
    return {(one["broker"], one["action"]): one for one in page["verdicts"]}


async def test_what_a_user_may_do_and_why(root: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server, credentials=ROOT) as admin:
        await admin.ensure_topic("allowed-a", queues=1)
    found = await verdicts(root, "alice", "Topic:allowed-a")
    assert set(found) == {(broker, action) for broker in ("broker-a", "broker-b") for action in ACTIONS}
    assert {(one["may"], one["why"]) for one in found.values()} == {(False, "none")}
    assert {one["why"] for one in (await verdicts(root, "root", "Topic:allowed-a")).values()} == {"super"}
    assert {one["why"] for one in (await verdicts(root, "nobody", "Topic:allowed-a")).values()} == {"unknown"}

    form = {"cluster": CLUSTER, "username": "alice", "resource": "Topic:allowed-*", "actions": "Pub, Get"}
    answer = await change(root, "save-right", **form, source_ips="127.0.0.0/8")
    assert answer.status_code == 200, answer.text
    found = await verdicts(root, "alice", "Topic:allowed-a")
    assert {action for (_, action), one in found.items() if one["may"]} == {"Pub", "Get"}
    entry = found["broker-b", "Pub"]
    assert entry["why"] == "entry"
    assert entry["entry"] == "Allow Topic:allowed-*: Pub, Get from 127.0.0.0/8"
    elsewhere = await verdicts(root, "alice", "Topic:allowed-a", ip="10.0.0.1")
    assert not any(one["may"] for one in elsewhere.values())
    assert "Allow Topic:allowed-*" in await html_of(root, "rights", user="alice", resource="Topic:allowed-a")

    # The broker makes the same decision.
    async with Producer(
        cluster.name_server, "p", credentials=Credentials("alice", "alicepass"), retry_times=0
    ) as producer:
        await producer.send(Message("allowed-a", b"x"))
        answer = await change(root, "save-right", **form | {"actions": "Pub", "decision": "Deny"})
        assert answer.status_code == 200, answer.text
        with pytest.raises(GantryError, match="no permission"):
            await producer.send(Message("allowed-a", b"x"))
    denied = (await verdicts(root, "alice", "Topic:allowed-a"))["broker-a", "Pub"]
    assert (denied["may"], denied["why"], denied["entry"]) == (False, "entry", "Deny Topic:allowed-*: Pub")

    answer = await change(root, "delete-right", cluster=CLUSTER, username="alice", resource="Topic:allowed-*")
    assert answer.status_code == 200, answer.text
    assert {one["why"] for one in (await verdicts(root, "alice", "Topic:allowed-a")).values()} == {"none"}


async def test_entries_that_make_no_sense(root: httpx.AsyncClient) -> None:
    form = {"cluster": CLUSTER, "username": "alice", "resource": "Topic:a", "actions": "Pub"}
    for wrong in ({"resource": "Thing:a"}, {"actions": "Fly"}, {"decision": "Perhaps"}, {"source_ips": "somewhere"}):
        assert (await change(root, "save-right", **form | wrong)).status_code == 400
    for wrong in ({"resource": "Thing:a"}, {"resource": "*"}, {"ip": "somewhere"}):
        answer = await root.get("/rights", params={"user": "alice", "resource": "Topic:a", **wrong})
        assert answer.status_code == 400
    assert (await json_of(root, "rights"))["verdicts"] == []


def test_which_entry_decides() -> None:
    acl = AclInfo(
        "User:alice",
        [
            PolicyInfo(
                "Custom",
                [
                    PolicyEntryInfo("Topic:a*", ["All"], [], "Allow"),
                    PolicyEntryInfo("Topic:ab", ["Pub"], [], "Deny"),
                ],
            )
        ],
    )
    assert verdict(ALICE, acl, Resource.parse("Topic:ab"), "Pub", "::1") == (False, "entry", "Deny Topic:ab: Pub")
    assert verdict(ALICE, acl, Resource.parse("Topic:ab"), "Sub", "::1") == (True, "entry", "Allow Topic:a*: All")
    assert verdict(ALICE, acl, Resource.parse("Group:ab"), "Sub", "::1") == (False, "none", "")
    off = UserInfo("alice", None, "Super", "disable")
    assert verdict(off, acl, Resource.parse("Topic:ab"), "Sub", "::1") == (False, "disabled", "")
    assert verdict(ALICE, acl_of("User:a", ["Topic:*"], ["Pub"], [], "Allow"), Resource.parse("Topic:x"), "Pub", "::1")[
        0
    ]


# -- configuration --------------------------------------------------------------------------------------------------


async def test_a_key_is_changed(root: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    address = cluster.brokers[1]
    page = await json_of(root, "broker", address=address)
    assert page["is_gantry"]
    assert "brokerName" in page["read_at_start"]
    assert "maxMessageSize" not in page["read_at_start"]
    answer = await change(root, "set-config", address=address, key="maxMessageSize", value="1048576")
    assert answer.json()["done"] == f"maxMessageSize=1048576 on broker {address}"
    assert (await json_of(root, "broker", address=address))["config"]["maxMessageSize"] == "1048576"
    html = await html_of(root, "broker", address=address)
    assert "at the next start, from the configuration file" in html
    for key, value, told in (
        ("brokerName", "other", "start anew"),
        ("thereIsNoSuchKey", "1", "may not support the key"),
        ("maxMessageSize", "many", "maxMessageSize"),
    ):
        answer = await change(root, "set-config", address=address, key=key, value=value)
        assert answer.status_code in (403, 502), answer.text
        assert told in answer.text
    for form in (
        {"address": address, "key": "a\nb", "value": "1"},
        {"address": address, "key": "initAuthenticationUser", "value": "x"},
    ):
        assert (await change(root, "set-config", **form)).status_code == 400
    answer = await change(root, "set-config", address="127.0.0.1:1", key="maxMessageSize", value="1")
    assert "no broker at" in answer.text
