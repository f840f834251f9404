"""Access to the console: logins, sessions, forms, changes, and the audit log."""

from __future__ import annotations

import asyncio
import re
import resource
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from console_support import CLUSTER, browser, json_of
from wait_until import until

from gantrymq.auth.config import AuthConfig
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.console.access import DELAY_S, MAX_FAILURES, MAX_KNOWN, WITHIN_S, LoginAttempts
from gantrymq.console.app import Console
from gantrymq.console.audit import Audit
from gantrymq.console.logins import hash_password
from gantrymq.console.queries.all_pages import PAGES
from gantrymq.console.sessions import COOKIE, IDLE_S, LONGEST_S, MAX_SESSIONS, Sessions
from gantrymq.console.settings import Settings
from gantrymq.errors import ConfigError, GantryError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.testing.embedded import EmbeddedCluster

USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
)
SECRET = "rootpass"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Starts a cluster with one broker and users."""
    with EmbeddedCluster(auth=USERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def open_cluster() -> Iterator[EmbeddedCluster]:
    """Starts a cluster with one broker without access control."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def stranger(cluster: EmbeddedCluster, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a visitor without a login. The console uses the cluster's users."""
    settings = Settings(cluster.name_server, login="cluster", tables_fresh_s=0.1, directory=tmp_path)
    async with browser(settings) as client:
        yield client


def token_in(html: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', html)
    assert found is not None
    return found[1]


async def log_in(client: httpx.AsyncClient, name: str, password: str) -> httpx.Response:
    token = token_in((await client.get("/login")).text)
    return await client.post("/login", data={"name": name, "password": password, "csrf": token})


async def change(client: httpx.AsyncClient, name: str, /, **form: Any) -> httpx.Response:
    """Requests a change as a page's form does."""
    token = token_in((await client.get("/topics")).text)
    return await client.post(f"/api/v1/do/{name}", data={**form, "csrf": token})


# -- strangers ----------------------------------------------------------------------------------------------------


async def test_a_stranger_sees_nothing(stranger: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    for page in PAGES:
        answer = await stranger.get(f"/{page.name}", params={"name": "x"})
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=/")
        assert (await stranger.get(f"/api/v1/{page.name}")).status_code == 401
    for path in ("/tail/stream", "/message/body", "/dead-letters/export", "/api/v1/openapi.json", "/nowhere"):
        answer = await stranger.get(path)
        assert answer.status_code in (303, 401), path
        assert cluster.name_server not in answer.text
    assert (await stranger.post("/api/v1/do/delete-topic", data={"name": "x"})).status_code == 401
    assert (await stranger.post("/logout")).status_code == 303


async def test_many_requests_without_a_login(stranger: httpx.AsyncClient) -> None:
    for number in range(500):
        assert (await stranger.get("/overview", headers={"cookie": f"{COOKIE}=made-up-{number}"})).status_code == 303
    assert (await log_in(stranger, "root", SECRET)).status_code == 303
    assert (await stranger.get("/overview")).status_code == 200


async def test_login_with_the_clusters_users(stranger: httpx.AsyncClient) -> None:
    before = (await stranger.get("/login")).cookies.get(COOKIE) or stranger.cookies[COOKIE]
    answer = await log_in(stranger, "root", SECRET)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert SECRET not in cookie
    assert stranger.cookies[COOKIE] != before
    page = await stranger.get("/overview")
    assert page.status_code == 200
    assert SECRET not in page.text
    # The session id from before the login is still invalid.
    stolen = await stranger.get("/overview", headers={"cookie": f"{COOKIE}={before}"})
    assert stolen.status_code == 303


async def test_logout(stranger: httpx.AsyncClient) -> None:
    await log_in(stranger, "root", SECRET)
    mine = stranger.cookies[COOKIE]
    html = (await stranger.get("/overview")).text
    assert (await stranger.post("/logout", data={"csrf": "wrong"})).status_code == 403
    assert (await stranger.post("/logout", data={"csrf": token_in(html)})).status_code == 303
    assert (await stranger.get("/overview", headers={"cookie": f"{COOKIE}={mine}"})).status_code == 303


@pytest.mark.parametrize(
    ("name", "password"),
    [("root", "wrong"), ("nobody", SECRET), (" ", " "), ("x" * 5000, "y")],
    ids=["wrong-password", "unknown", "blank", "long"],
)
async def test_who_doesnt_come_in(stranger: httpx.AsyncClient, name: str, password: str) -> None:
    answer = await log_in(stranger, name, password)
    assert answer.status_code == 403
    assert "wrong" in answer.text
    assert (await stranger.get("/overview")).status_code == 303


async def test_a_cluster_without_users_lets_nobody_in(open_cluster: EmbeddedCluster) -> None:
    async with browser(Settings(open_cluster.name_server, login="cluster")) as stranger:
        answer = await log_in(stranger, "root", SECRET)
        assert answer.status_code == 502
        assert "authenticationEnabled" in answer.text
        assert (await stranger.get("/overview")).status_code == 303


async def test_brokers_that_believe_every_name_let_nobody_in() -> None:
    """With authorization alone, a broker accepts the user name of a request without a check of the signature."""
    believing = AuthConfig(authorization_enabled=True, init_authentication_user=USERS.init_authentication_user)
    with EmbeddedCluster(auth=believing) as cluster:
        async with browser(Settings(cluster.name_server, login="cluster")) as stranger:
            for password in (SECRET, "wrong"):
                answer = await log_in(stranger, "root", password)
                assert answer.status_code == 502
                assert "authenticationEnabled" in answer.text
            assert (await stranger.get("/overview")).status_code == 303


async def test_login_of_a_user_that_not_every_broker_has() -> None:
    """Brokers of different names have separate users."""
    with EmbeddedCluster(2, auth=USERS) as cluster:
        async with AdminClient(cluster.name_server, credentials=Credentials("root", SECRET)) as admin:
            for number, broker in enumerate(cluster.brokers):
                await admin.create_user([broker], UserInfo(f"user-{number}", "userpass"))
        for number in range(len(cluster.brokers)):
            async with browser(Settings(cluster.name_server, login="cluster")) as visitor:
                assert (await log_in(visitor, f"user-{number}", "wrong")).status_code == 403
                assert (await log_in(visitor, f"user-{number}", "userpass")).status_code == 303


async def test_login_behind_a_reverse_proxy(stranger: httpx.AsyncClient) -> None:
    """The proxy uses HTTPS and forwards the Host header. A form of another site is rejected."""
    token = token_in((await stranger.get("/login", headers={"host": "console.example"})).text)
    form = {"name": "root", "password": SECRET, "csrf": token}
    for origin, status in (("https://elsewhere.example", 403), ("https://console.example", 303)):
        headers = {"host": "console.example", "origin": origin}
        assert (await stranger.post("/login", data=form, headers=headers)).status_code == status


async def test_guessing_is_slowed_down(stranger: httpx.AsyncClient) -> None:
    for _ in range(MAX_FAILURES):
        assert (await log_in(stranger, "root", "guess")).status_code == 403
    answer = await log_in(stranger, "root", SECRET)
    assert answer.status_code == 429
    assert "too many attempts" in answer.text


async def test_a_login_does_not_reset_the_failures_of_its_address(stranger: httpx.AsyncClient) -> None:
    for _ in range(MAX_FAILURES - 1):
        assert (await log_in(stranger, "root", "guess")).status_code == 403
    assert (await log_in(stranger, "root", SECRET)).status_code == 303
    assert (await log_in(stranger, "root", "guess")).status_code == 403
    assert (await log_in(stranger, "root", SECRET)).status_code == 429


async def test_wrong_passwords_from_elsewhere_lock_nobody_out(cluster: EmbeddedCluster) -> None:
    app = Console(Settings(cluster.name_server, login="cluster")).app

    def at(address: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app, client=(address, 1)), base_url="http://127.0.0.1", timeout=30
        )

    async with app.router.lifespan_context(app), at("10.0.0.1") as attacker, at("10.0.0.2") as admin:
        for _ in range(MAX_FAILURES):
            assert (await log_in(attacker, "root", "guess")).status_code == 403
        assert (await log_in(attacker, "root", SECRET)).status_code == 429
        began = time.monotonic()
        assert (await log_in(admin, "root", SECRET)).status_code == 303
        assert time.monotonic() - began >= DELAY_S


async def test_addresses_of_one_network_fail_together(cluster: EmbeddedCluster) -> None:
    """One owner of IPv6 addresses has 2^64 of them."""
    app = Console(Settings(cluster.name_server, login="cluster")).app
    async with app.router.lifespan_context(app):
        codes = []
        for n in range(MAX_FAILURES + 1):
            transport = httpx.ASGITransport(app=app, client=(f"2001:db8::{n:x}", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30) as attacker:
                codes.append((await log_in(attacker, f"user-{n}", "guess")).status_code)
    assert codes == [403] * MAX_FAILURES + [429]


async def test_logins_are_in_the_audit_log(stranger: httpx.AsyncClient, tmp_path: Path) -> None:
    await log_in(stranger, "root", "guess\u202e")
    await log_in(stranger, "ro\u202eot", SECRET)
    await log_in(stranger, "root", SECRET)
    text = (tmp_path / "audit.log").read_text()
    lines = [msgspec.json.decode(line) for line in text.splitlines()]
    assert [(line["change"], line["user"], line["outcome"][:6]) for line in lines] == [
        ("login", "root", "failed"),
        ("login", "ro\u202eot", "failed"),
        ("login", "root", "logged"),
    ]
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    assert "guess" not in text
    assert SECRET not in text
    assert text.isascii()


async def test_a_session_ends_when_its_user_is_removed(stranger: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    """Its live tail ends, too."""
    async with AdminClient(cluster.name_server, credentials=Credentials("root", SECRET)) as admin:
        await admin.ensure_topic("watched", queues=1)
        await admin.create_user(cluster.brokers, UserInfo("carol", "carolpass", "Super"))
        assert (await log_in(stranger, "carol", "carolpass")).status_code == 303
        assert (await stranger.get("/overview")).status_code == 200
        tail = asyncio.create_task(stranger.get("/tail/stream?topic=watched", timeout=60))
        await admin.delete_user(cluster.brokers, "carol")

        async def has_ended() -> bool:
            return (await stranger.get("/overview")).status_code == 303

        await until(has_ended)
        assert "event: over" in (await tail).text


async def test_a_live_tail_ends_with_its_session(stranger: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    async with AdminClient(cluster.name_server, credentials=Credentials("root", SECRET)) as admin:
        await admin.ensure_topic("followed", queues=1)
    await log_in(stranger, "root", SECRET)
    token = token_in((await stranger.get("/overview")).text)
    tail = asyncio.create_task(stranger.get("/tail/stream?topic=followed", timeout=60))
    await asyncio.sleep(0)
    assert (await stranger.post("/logout", data={"csrf": token})).status_code == 303
    await asyncio.wait_for(tail, 30)


async def test_next_leads_to_this_console_only(stranger: httpx.AsyncClient) -> None:
    token = token_in((await stranger.get("/login")).text)
    form = {"name": "root", "password": SECRET, "csrf": token}
    answer = await stranger.post("/login?next=//elsewhere.example", data=form)
    assert answer.headers["location"] == "/"


async def test_a_user_sees_what_it_may(stranger: httpx.AsyncClient, cluster: EmbeddedCluster) -> None:
    credentials = Credentials("root", SECRET)
    async with AdminClient(cluster.name_server, credentials=credentials) as admin:
        await admin.ensure_topic("allowed", queues=1)
        await admin.ensure_topic("denied", queues=1)
        await admin.create_user(cluster.brokers, UserInfo("alice", "alicepass"))
        await admin.create_acl(
            cluster.brokers, acl_of("User:alice", ["Topic:allowed"], ["Get", "Sub", "List"], [], "Allow")
        )
    async with browser(Settings(cluster.name_server, login="cluster")) as root:
        await log_in(root, "root", SECRET)
        users = {user["name"]: user for user in (await json_of(root, "users"))["table"]["rows"]}
        assert users["root"]["type"] == "Super"
        (right,) = users["alice"]["rights"]
        assert (right["resource"], right["decision"], right["actions"]) == (
            "Topic:allowed",
            "Allow",
            ["Get", "Sub", "List"],
        )
        assert users["alice"]["lacking"] == []
    assert (await log_in(stranger, "alice", "alicepass")).status_code == 303
    allowed = await json_of(stranger, "topic", name="allowed")
    assert allowed["queues"]
    denied = await json_of(stranger, "topic", name="denied")
    assert denied["queues"] == []
    assert any("no permission" in unasked["why"] for unasked in denied["unasked"])
    answer = await change(stranger, "send-message", topic="allowed", body="may only be read")
    assert answer.status_code == 403, answer.text
    assert "permission" in answer.json()["error"]
    assert (await json_of(stranger, "messages", topic="allowed"))["rows"] == []
    answer = await change(stranger, "delete-topic", name="denied", typed="denied", cluster=CLUSTER)
    assert answer.status_code in (403, 502)
    assert "permission" in answer.json()["error"]
    async with AdminClient(cluster.name_server, credentials=credentials) as admin:
        assert "denied" in await admin.topic_list()


# -- a file of users ------------------------------------------------------------------------------------------------


async def test_login_with_a_file(open_cluster: EmbeddedCluster, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"# who may\nann:admin:{hash_password('annpass')}\nvic:viewer:{hash_password('vicpass')}\n")
    settings = Settings(open_cluster.name_server, login="file", users_file=users, tables_fresh_s=0.1)
    async with browser(settings) as ann:
        assert (await log_in(ann, "ann", "vicpass")).status_code == 403
        assert (await log_in(ann, "nobody", "")).status_code == 403
        assert (await log_in(ann, "ann", "annpass")).status_code == 303
        assert (await ann.get("/topics")).status_code == 200
        answer = await change(ann, "create-topic", name="by-ann", cluster=CLUSTER)
        assert answer.status_code == 200, answer.text
    async with browser(settings) as vic:
        assert (await log_in(vic, "vic", "vicpass")).status_code == 303
        html = (await vic.get("/topics")).text
        assert "/do/" not in html
        answer = await change(vic, "create-topic", name="by-vic", cluster=CLUSTER)
        assert answer.status_code == 403
        html = (await vic.get("/topic", params={"name": "by-ann"})).text
        assert "by-ann" in html
        assert "/do/" not in html
        answer = await change(vic, "send-message", topic="by-ann", body="by vic")
        assert answer.status_code == 403
    async with AdminClient(open_cluster.name_server) as admin:
        topics = await admin.topic_list()
    assert "by-ann" in topics
    assert "by-vic" not in topics


@pytest.mark.parametrize("change_of", ["role", "password", "removal"])
async def test_a_session_ends_with_its_line_of_the_file(
    open_cluster: EmbeddedCluster, tmp_path: Path, change_of: str
) -> None:
    users, hashed = tmp_path / "users", hash_password("annpass")
    users.write_text(f"ann:admin:{hashed}\n")
    async with browser(Settings(open_cluster.name_server, login="file", users_file=users)) as ann:
        assert (await log_in(ann, "ann", "annpass")).status_code == 303
        assert (await ann.get("/topics")).status_code == 200
        lines = {"role": f"ann:viewer:{hashed}\n", "password": f"ann:admin:{hash_password('new')}\n", "removal": ""}
        users.write_text(lines[change_of])

        async def has_ended() -> bool:
            return (await ann.get("/topics")).status_code == 303

        await until(has_ended)


@pytest.mark.parametrize("text", ["ann:king:$argon2id$x", "ann:admin:plain", "only-a-name", "\xff"])
def test_a_users_file_that_cant_be_meant(tmp_path: Path, text: str) -> None:
    from gantrymq.console.logins import FileLogin

    (tmp_path / "users").write_bytes(text.encode("latin-1") + b"\n")
    with pytest.raises(ConfigError):
        FileLogin(tmp_path / "users", None)
    with pytest.raises(ConfigError):
        FileLogin(tmp_path / "nowhere", None)


# -- changes ------------------------------------------------------------------------------------------------------


async def test_forms_of_others_change_nothing(open_cluster: EmbeddedCluster) -> None:
    form = {"name": "forged", "cluster": CLUSTER}
    async with browser(Settings(open_cluster.name_server)) as visitor:
        token = token_in((await visitor.get("/topics")).text)
        for data, headers in (
            (form, {}),
            ({**form, "csrf": "0" * 64}, {}),
            ({**form, "csrf": token}, {"origin": "https://elsewhere.example"}),
            ({**form, "csrf": token}, {"origin": "null"}),
            ({**form, "csrf": token}, {"cookie": f"{COOKIE}=another"}),
        ):
            answer = await visitor.post("/do/create-topic", data=data, headers=headers)
            assert answer.status_code == 403, (data, headers)
            message = {**data, "topic": "TBW102", "body": "forged"}
            assert (await visitor.post("/do/send-message", data=message, headers=headers)).status_code == 403
        assert (await visitor.get("/do/create-topic", params=form)).status_code == 405
        big = await visitor.post("/do/create-topic", data={"csrf": token, "name": "x" * 1_000_000})
        assert big.status_code == 413
        assert "<h1>Error</h1>" in big.text
        assert "256 KiB" in big.text
        big = await visitor.post("/api/v1/do/create-topic", data={"csrf": token, "name": "x" * 1_000_000})
        assert big.status_code == 413
        assert "256 KiB" in big.json()["error"]
    async with AdminClient(open_cluster.name_server) as admin:
        assert "forged" not in await admin.topic_list()


async def test_read_only(open_cluster: EmbeddedCluster) -> None:
    async with browser(Settings(open_cluster.name_server, read_only=True)) as visitor:
        html = (await visitor.get("/topics")).text
        assert "/do/" not in html
        token = re.search(r"csrf", html)
        assert token is None
        answer = await visitor.post("/api/v1/do/create-topic", data={"name": "x", "cluster": CLUSTER})
        assert answer.status_code == 403


async def test_life_of_a_topic_and_its_audit(open_cluster: EmbeddedCluster, tmp_path: Path) -> None:
    settings = Settings(open_cluster.name_server, tables_fresh_s=30, directory=tmp_path)
    async with browser(settings) as visitor, AdminClient(open_cluster.name_server) as admin:
        token = token_in((await visitor.get("/topics")).text)
        form = {"name": "lived", "cluster": CLUSTER, "queues": "3", "message_type": "FIFO", "csrf": token}
        answer = await visitor.post("/do/create-topic", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/topic?name=lived")

        async def routed() -> bool:
            return (await visitor.get("/api/v1/topic", params={"name": "lived"})).status_code == 200

        await until(routed)
        html = (await visitor.get("/topic?name=lived")).text
        assert "topic lived is on 1 brokers" in html
        config = await admin.topic_config(open_cluster.brokers[0], "lived")
        assert (config.write_queue_nums, config.attributes) == (3, {"message.type": "FIFO"})
        # The change invalidates the cached topics, which can otherwise be 30 s old.
        rows = (await json_of(visitor, "topics", search="lived"))["table"]["rows"]
        assert [row["name"] for row in rows] == ["lived"]
        assert (await change(visitor, "create-topic", name="lived", cluster=CLUSTER)).status_code == 502
        altered = {"name": "lived", "cluster": CLUSTER, "write_queues": "0", "read_queues": "4", "perm": "r"}
        assert (await change(visitor, "alter-topic", **altered)).status_code == 200
        config = await admin.topic_config(open_cluster.brokers[0], "lived")
        assert (config.write_queue_nums, config.perm, config.attributes) == (0, 4, {"message.type": "FIFO"})
        answer = await change(visitor, "send-message", topic="lived", body="a secret", keys="k")
        assert answer.status_code == 502, answer.text
        answer = await change(visitor, "delete-topic", name="lived", cluster=CLUSTER, typed="live")
        assert answer.status_code == 400
        assert (await change(visitor, "delete-topic", name="lived", cluster=CLUSTER, typed="lived")).status_code == 200
        assert "lived" not in await admin.topic_list()
    lines = [msgspec.json.decode(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["change"], line["outcome"][:9]) for line in lines] == [
        ("create-topic", "requested"),
        ("create-topic", "topic liv"),
        ("create-topic", "requested"),
        ("create-topic", "failed: t"),
        ("alter-topic", "requested"),
        ("alter-topic", "topic liv"),
        ("send-message", "requested"),
        ("send-message", "failed: t"),
        ("delete-topic", "requested"),
        ("delete-topic", "failed: t"),
        ("delete-topic", "requested"),
        ("delete-topic", "topic liv"),
    ]
    assert lines[0]["arguments"] == {"name": "lived", "cluster": CLUSTER, "queues": "3", "message_type": "FIFO"}
    assert lines[6]["arguments"] == {"topic": "lived", "body": "***", "keys": "k"}
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


async def test_what_cant_be_written_down_isnt_done(open_cluster: EmbeddedCluster, tmp_path: Path) -> None:
    (tmp_path / "audit.log").mkdir()
    async with browser(Settings(open_cluster.name_server, directory=tmp_path)) as visitor:
        answer = await change(visitor, "create-topic", name="unwritten", cluster=CLUSTER)
        assert answer.status_code == 502
        assert "audit log" in answer.json()["error"]
    async with AdminClient(open_cluster.name_server) as admin:
        assert "unwritten" not in await admin.topic_list()


def test_a_line_of_the_audit_log_is_complete_or_isnt_there(tmp_path: Path) -> None:
    """A full disk may write only a part of a line, and a kill may interrupt one."""
    path = tmp_path / "audit.log"
    audit = Audit(path)
    audit.write("ann", "::1", "create-topic", {"name": "first"}, "requested")
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(GantryError, match="audit log"):
            audit.write("ann", "::1", "create-topic", {"name": "second"}, "requested")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    with path.open("ab") as file:
        file.write(before[:20])
    audit.write("ann", "::1", "create-topic", {"name": "third"}, "requested")
    lines = path.read_bytes().splitlines()
    assert lines[1] == before[:20]
    assert [msgspec.json.decode(line)["arguments"]["name"] for line in (lines[0], lines[2])] == ["first", "third"]


async def test_a_password_is_in_no_log_and_on_no_page(stranger: httpx.AsyncClient, tmp_path: Path) -> None:
    await log_in(stranger, "root", SECRET)
    answer = await change(stranger, "save-user", cluster=CLUSTER, username="bob", password="bobspass1")
    assert answer.status_code == 200, answer.text
    assert "bobspass1" not in (tmp_path / "audit.log").read_text()
    users = await stranger.get("/users")
    assert "bob" in users.text
    api = await stranger.get("/api/v1/users")
    for text in (users.text, api.text):
        assert "bobspass1" not in text
        assert SECRET not in text
    answer = await change(stranger, "delete-user", cluster=CLUSTER, username="bob", typed="bob")
    assert answer.status_code == 200
    broker = (await json_of(stranger, "brokers"))["table"]["rows"][0]["address"]
    page = await stranger.get("/broker", params={"address": broker})
    assert SECRET not in page.text


# -- tables ---------------------------------------------------------------------------------------------------------


def test_failed_logins_make_their_address_wait() -> None:
    attempts = LoginAttempts()
    for n in range(MAX_FAILURES):
        assert attempts.wait_s("a", n) == 0
        attempts.failed("a", n)
    assert attempts.wait_s("a", MAX_FAILURES) == WITHIN_S - MAX_FAILURES
    assert attempts.wait_s("b", MAX_FAILURES) == 0
    assert attempts.wait_s("a", WITHIN_S) == 0


def test_failed_logins_of_too_many_addresses_replace_the_oldest() -> None:
    attempts = LoginAttempts()
    for address in ("a", "b"):
        for n in range(MAX_FAILURES):
            attempts.failed(address, n)
    for n in range(MAX_KNOWN - 1):
        attempts.failed(f"many {n}", MAX_FAILURES)
    assert attempts.wait_s("a", MAX_FAILURES) == 0
    assert attempts.wait_s("b", MAX_FAILURES) > 0


def test_a_successful_login_removes_one_failed_attempt() -> None:
    attempts = LoginAttempts()
    for n in range(MAX_FAILURES):
        attempts.failed("a", n)
    attempts.succeeded("a", 2)
    assert attempts.wait_s("a", MAX_FAILURES) == 0
    # Only this attempt is removed.
    attempts.failed("a", MAX_FAILURES)
    assert attempts.wait_s("a", MAX_FAILURES) > 0


def test_sessions_end() -> None:
    sessions = Sessions()
    view: Any = object()
    idle = sessions.begin("ann", "admin", view, 0.0)
    assert sessions.find(idle, IDLE_S - 1) is not None
    assert sessions.find(idle, 2 * IDLE_S) is None
    busy = sessions.begin("ann", "admin", view, 0.0)
    at = 0.0
    while at <= LONGEST_S:
        assert sessions.find(busy, at) is not None
        at += IDLE_S / 2
    assert sessions.find(busy, at) is None
    first = sessions.begin("ann", "admin", view, 0.0)
    for _ in range(MAX_SESSIONS):
        sessions.begin("ann", "admin", view, 0.0)
    assert len(sessions) == MAX_SESSIONS
    assert sessions.find(first, 0.0) is None
    assert len(sessions.take_ended()) == 3


def test_a_cookie_that_was_made_up() -> None:
    sessions = Sessions()
    cookie = sessions.cookie_of("one")
    assert sessions.id_of(cookie) == "one"
    for wrong in (None, "", "one", cookie[:-1], "two" + cookie[3:], Sessions().cookie_of("one"), "x" * 10_000, "é.é"):
        assert sessions.id_of(wrong) is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"login": "file"}, "--users"),
        ({"login": "cluster", "users_file": Path("x")}, "--users"),
        ({"login": "magic"}, "one of"),
        ({"certificate": Path("x")}, "key"),
    ],
)
def test_settings_that_contradict_themselves(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Settings("127.0.0.1:9876", **options).check()


def test_with_a_login_everywhere() -> None:
    Settings("127.0.0.1:9876", host="0.0.0.0", login="cluster").check()
