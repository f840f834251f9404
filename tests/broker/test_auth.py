"""A broker with access control, either way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from broker_support import Peer, config

from gantrymq.auth.config import AuthConfig
from gantrymq.broker.broker import Broker
from gantrymq.client.acl_hook import AclHook
from gantrymq.client.admin_auth import acl_of
from gantrymq.client.admin_client import AdminClient
from gantrymq.errors import BrokerError, ConfigError
from gantrymq.protocol.auth_body import UserInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import SerializeType
from gantrymq.remoting.client import RemotingClient

PLAIN_ACL = """
accounts:
  - accessKey: producer1
    secretKey: secret-of-1
    topicPerms: [orders=PUB]
  - accessKey: operator
    secretKey: secret-of-0
    admin: true
"""
ROOT = AclHook("root", "rootpass")
USERS = AuthConfig(
    authentication_enabled=True,
    authorization_enabled=True,
    init_authentication_user='{"username":"root","password":"rootpass"}',
    inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"innerpass"}',
)

StartBroker = Callable[[AuthConfig], Awaitable[Broker]]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def start(tmp_path: Path, stack: AsyncExitStack) -> StartBroker:
    async def start(auth: AuthConfig) -> Broker:
        broker = Broker(config(tmp_path / "store", auth=auth))
        await broker.start()
        stack.push_async_callback(broker.stop)
        return broker

    return start


@pytest.fixture(params=[SerializeType.JSON, SerializeType.ROCKETMQ], ids=["json", "binary"])
def connect(request: pytest.FixtureRequest, stack: AsyncExitStack) -> Callable[..., Awaitable[Peer]]:
    async def connect(broker: Broker, *hooks: AclHook) -> Peer:
        client = RemotingClient(hooks=hooks)
        stack.push_async_callback(client.close)
        return Peer(await client.connection(f"127.0.0.1:{broker.port}"), request.param)

    return connect


async def test_plain_acl(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "plain_acl.yml"
    file.write_text(PLAIN_ACL)
    broker = await start(AuthConfig(acl_enable=True, plain_acl_file=file))

    producer = await connect(broker, AclHook("producer1", "secret-of-1"))
    for i in range(3):
        assert (await producer.send("orders", b"body %d" % i)).code == 0
    denied = await producer.send("others", b"body")
    assert denied.code == ResponseCode.NO_PERMISSION
    assert denied.remark == "No default permission for topic:others: accessKey=producer1 needs PUB, has DENY"
    pull = await producer.pull("orders")
    assert pull.remark == "No permission for topic:orders: accessKey=producer1 needs SUB, has PUB"
    config_change = await producer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
    assert "Need admin permission" in str(config_change.remark)

    stranger = await connect(broker)
    assert (await stranger.send("orders", b"body")).remark == "No accessKey is configured"
    liar = await connect(broker, AclHook("producer1", "guessed"))
    assert (await liar.send("orders", b"body")).remark == "Check signature failed for accessKey=producer1"

    operator = await connect(broker, AclHook("operator", "secret-of-0"))
    assert (await operator.pull("orders")).code == 0

    file.write_text(PLAIN_ACL.replace("[orders=PUB]", "[orders=PUB|SUB]\n    groupPerms: [consumers=SUB]"))
    broker.access.reload()
    assert (await producer.pull("orders")).code == 0
    file.write_text("accounts: [")
    broker.access.reload()
    assert (await producer.pull("orders")).code == 0
    assert "secret-of" not in caplog.text


async def test_users_and_policies(start: StartBroker, connect: Callable[..., Awaitable[Peer]]) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    async with AdminClient(hooks=[ROOT]) as admin:
        assert [user.username for user in await admin.users(address)] == ["inner", "root"]
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl(
            [address], acl_of("User:alice", ["Topic:orders", "Group:g*"], ["Pub", "Sub"], [], "Allow")
        )

        alice = await connect(broker, AclHook("alice", "secret12"))
        assert (await alice.send("orders", b"body")).code == 0
        assert (await alice.pull("orders", group="group")).code == 0
        assert (await alice.send("others", b"body")).code == ResponseCode.NO_PERMISSION
        denied = await alice.pull("orders", group="another")
        assert "User:alice has no permission to access Group:another from 127.0.0.1" in str(denied.remark)

        await admin.update_user([address], UserInfo("alice", user_status="disable"))
        assert (await alice.send("orders", b"body")).remark == "User:alice is disabled."
        await admin.delete_user([address], "alice")
        assert (await alice.send("orders", b"body")).remark == "User:alice is not found."

        settings = await admin.broker_config(address)
        assert "rootpass" not in str(settings)
        with pytest.raises(BrokerError, match="authorizationEnabled"):
            await admin.update_broker_config([address], {"authorizationEnabled": "false"})
        await admin.update_broker_config([address], {"defaultTopicQueueNums": "3"})
        assert broker.config.auth == USERS


async def test_only_super_users_make_super_users(start: StartBroker) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    async with AdminClient(hooks=[ROOT]) as admin, AdminClient(hooks=[AclHook("alice", "secret12")]) as alice:
        await admin.create_user([address], UserInfo("alice", "secret12"))
        with pytest.raises(BrokerError, match=r"Cluster:DefaultCluster from 127\.0\.0\.1, no matched policies"):
            await alice.create_user([address], UserInfo("bob", "secret12"))
        await admin.create_acl([address], acl_of("User:alice", ["Cluster:*"], ["All"], [], "Allow"))
        await alice.create_user([address], UserInfo("bob", "secret12"))
        for change in (
            alice.create_user([address], UserInfo("eve", "secret12", "Super")),
            alice.update_user([address], UserInfo("alice", user_type="Super")),
            alice.update_user([address], UserInfo("root", "guessed1")),
            alice.delete_user([address], "root"),
        ):
            with pytest.raises(BrokerError, match="d by super user"):
                await change
        with pytest.raises(BrokerError, match="username is blank"):
            await admin.create_user([address], UserInfo(" ", "secret12"))
        assert await admin.user(address, "eve") is None
        assert await admin.acl(address, "User:bob") is None


async def test_plain_acl_needs_a_file(start: StartBroker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rocketmq\.acl\.plain\.file"):
        await start(AuthConfig(acl_enable=True))
    with pytest.raises(ConfigError, match=r"none\.yml"):
        await start(AuthConfig(acl_enable=True, plain_acl_file=tmp_path / "none.yml"))


async def test_without_access_control_handlers_are_called_at_once(start: StartBroker) -> None:
    broker = await start(AuthConfig())
    assert broker._handlers[RequestCode.SEND_MESSAGE_V2].__name__ == "send"
