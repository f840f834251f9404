"""Access control: Apache's clients and mqadmin with our broker, and our clients with Apache's broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import PROGRAM_TIMEOUT_S, SERIALIZE_TYPES, command_line
from servers import Server, gantry_broker, gantry_namesrv, java_broker, java_namesrv

from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.client.credentials import Credentials
from gantrymq.client.producing.producer import Producer
from gantrymq.errors import BrokerError, GantryError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.codes import ResponseCode
from gantrymq.protocol.message import Message

pytestmark = pytest.mark.interop(feature="access control", clients="java", servers="gantry")

PLAIN_ACL = """
accounts:
  - accessKey: rocketmq1
    secretKey: 12345678
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [acl_JSON=PUB|SUB, acl_ROCKETMQ=PUB|SUB]
    groupPerms: [acl_group=SUB]
"""
ROOT, ROOT_PASSWORD = "rootuser", "rootpass"
USERS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT, "password": ROOT_PASSWORD}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "innerpass"}),
}
_PROVIDERS = "org.apache.rocketmq.auth.{0}.provider.{1}{2}Provider"
#: Providers that Java does not set by default. Our broker does not need these keys.
JAVA_PROVIDERS = {
    f"{kind}{key}Provider": _PROVIDERS.format(kind, prefix, kind.capitalize() + key)
    for kind in ("authentication", "authorization")
    for key, prefix in (("", "Default"), ("Metadata", "Local"))
}


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = gantry_namesrv(tmp_path_factory.mktemp("namesrv"))
    yield server
    server.kill()


def acl_client(
    namesrv: str, access_key: str, secret_key: str, topic: str, home: Path, serialize_type: str = "JSON"
) -> list[dict[str, Any]]:
    """Returns the output of Apache's signing clients."""
    arguments = (namesrv, access_key, secret_key, topic, "acl_group", "5")
    return [
        json.loads(line)
        for line in java(
            "org.gantrymq.interop.AclClient", *arguments, home=home, serialize_type=serialize_type
        ).splitlines()
        if line.startswith("{")
    ]


def mqadmin(home: Path, *arguments: str) -> str:
    """Returns the output of Apache's mqadmin, which signs as the root user."""
    (home / "conf").mkdir(exist_ok=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: {ROOT}\nsecretKey: {ROOT_PASSWORD}\n")
    return java("org.apache.rocketmq.tools.command.MQAdminStartup", *arguments, home=home)


def java(main_class: str, *arguments: str, home: Path, serialize_type: str = "JSON") -> str:
    command = command_line(
        main_class, *arguments, home=home, serialize_type=serialize_type, options=["-XX:TieredStopAtLevel=1"]
    )
    result = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S)
    return result.stdout + result.stderr


def test_java_clients_and_plain_acl(namesrv: Server, tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    directory.mkdir()
    (directory / "plain_acl.yml").write_text(PLAIN_ACL)
    broker = gantry_broker(directory, namesrv.address, aclEnable="true")
    try:
        bodies = {f"body {i}" for i in range(5)}
        for serialize_type in SERIALIZE_TYPES:
            topic = f"acl_{serialize_type}"
            lines = acl_client(namesrv.address, "rocketmq1", "12345678", topic, tmp_path, serialize_type)
            assert [line for line in lines if "sent" in line] == [{"sent": "SEND_OK"}] * 5
            assert {line["body"] for line in lines if "body" in line} == bodies

        wrong_key = acl_client(namesrv.address, "rocketmq1", "87654321", "acl_JSON", tmp_path)
        assert wrong_key == [
            {"code": ResponseCode.NO_PERMISSION, "remark": "Check signature failed for accessKey=rocketmq1"}
        ]
        denied = acl_client(namesrv.address, "rocketmq1", "12345678", "acl_denied", tmp_path)
        assert denied == [
            {
                "code": ResponseCode.NO_PERMISSION,
                "remark": "No default permission for topic:acl_denied: accessKey=rocketmq1 needs PUB, has DENY",
            }
        ]
    finally:
        broker.kill()


def test_mqadmin_and_java_clients_and_users(namesrv: Server, tmp_path: Path) -> None:
    broker = gantry_broker(tmp_path / "broker", namesrv.address, **USERS)
    try:
        at = ("-b", broker.address)
        assert f"create user to {broker.address} success" in mqadmin(
            tmp_path, "createUser", *at, "-u", "alice", "-p", "12345678", "-n", namesrv.address
        )
        listed = [line.split() for line in mqadmin(tmp_path, "listUser", *at).splitlines()]
        assert ["alice", "12345678", "Normal", "enable"] in listed
        assert [ROOT, ROOT_PASSWORD, "Super", "enable"] in listed

        denied = acl_client(namesrv.address, "alice", "12345678", "acl_allowed", tmp_path)
        assert "User:alice has no permission to access Topic:acl_allowed from 127.0.0.1" in denied[0]["remark"]
        policy = ("-s", "User:alice", "-r", "Topic:acl_*,Group:acl_group", "-a", "Pub,Sub", "-i", "127.0.0.1")
        assert "success" in mqadmin(tmp_path, "createAcl", *at, *policy, "-d", "Allow")
        shown = mqadmin(tmp_path, "listAcl", *at, "-s", "alice")
        assert "User:alice" in shown
        assert "[Pub, Sub]" in shown
        assert "[127.0.0.1]" in shown
        lines = acl_client(namesrv.address, "alice", "12345678", "acl_allowed", tmp_path, "ROCKETMQ")
        assert {line["body"] for line in lines if "body" in line} == {f"body {i}" for i in range(5)}

        assert "success" in mqadmin(tmp_path, "deleteAcl", *at, "-s", "User:alice", "-r", "Topic:acl_*")
        assert "Topic:acl_*" not in mqadmin(tmp_path, "getAcl", *at, "-s", "User:alice")
        assert "success" in mqadmin(tmp_path, "updateUser", *at, "-u", "alice", "-s", "disable")
        assert "disable" in mqadmin(tmp_path, "getUser", *at, "-u", "alice")
        assert "success" in mqadmin(tmp_path, "deleteUser", *at, "-u", "alice")
        assert "alice" not in mqadmin(tmp_path, "listUser", *at)
    finally:
        broker.kill()


@pytest.mark.interop(clients="gantry", servers="java")
async def test_our_clients_and_apaches_users(tmp_path: Path) -> None:
    namesrv = java_namesrv(tmp_path / "namesrv")
    try:
        broker = java_broker(tmp_path / "broker", namesrv.address, **USERS, **JAVA_PROVIDERS)
        try:
            await _use_as_users(namesrv.address, broker.address)
        finally:
            broker.kill()
    finally:
        namesrv.kill()


async def _use_as_users(namesrv: str, broker: str) -> None:
    """Makes requests with and without the necessary permission with our clients."""
    async with AdminClient(namesrv) as stranger:
        with pytest.raises(BrokerError, match="username cannot be null"):
            await stranger.users(broker)
    async with AdminClient(namesrv, credentials=Credentials(ROOT, "guessed1")) as liar:
        with pytest.raises(BrokerError, match="check signature failed"):
            await liar.users(broker)
    async with AdminClient(namesrv, credentials=Credentials(ROOT, ROOT_PASSWORD)) as admin:
        await admin.create_user([broker], UserInfo("alice", "12345678"))
        assert await admin.user(broker, "alice") == UserInfo("alice", "12345678", "Normal", "enable")
        assert await admin.user(broker, "bob") is None
        await admin.create_acl([broker], acl_of("User:alice", ["Topic:acl_allowed"], ["Pub"], ["127.0.0.1"], "Allow"))
        acl = await admin.acl(broker, "User:alice")
        assert acl is not None
        assert acl.policies[0].entries[0].resource == "Topic:acl_allowed"
        assert [found.subject for found in await admin.acls(broker, "alice")] == ["User:alice"]

        credentials = Credentials("alice", "12345678")
        async with Producer(namesrv, "acl_producer", credentials=credentials, retry_times=0) as producer:
            for i in range(3):
                await producer.send(Message("acl_allowed", b"body %d" % i))
            with pytest.raises(GantryError, match="User:alice has no permission to access Topic:acl_denied"):
                await producer.send(Message("acl_denied", b"body"))

        await admin.delete_acl([broker], "User:alice")
        await admin.delete_user([broker], "alice")
        assert [user.username for user in await admin.users(broker, "ali")] == []
