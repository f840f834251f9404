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
from gantrymq.client.admin.auth import acl_of
from gantrymq.client.admin.client import AdminClient
from gantrymq.errors import BrokerError, ConfigError
from gantrymq.protocol.bodies.auth import UserInfo
from gantrymq.protocol.codes import RequestCode, ResponseCode
from gantrymq.protocol.command import RemotingCommand, SerializeType
from gantrymq.protocol.message_id import decode_offset_message_id
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


async def test_ways_round_a_policy(start: StartBroker, connect: Callable[..., Awaitable[Peer]]) -> None:
    """Requests that name what the user may use, and mean something else."""
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    for topic in ("orders", "secret", "%RETRY%poppers_orders"):
        broker.topics.create_if_absent(topic, 1)
    async with AdminClient(hooks=[ROOT]) as admin:
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl(
            [address], acl_of("User:alice", ["Topic:orders", "Group:poppers"], ["Pub", "Sub"], [], "Allow")
        )
        alice = await connect(broker, AclHook("alice", "secret12"))
        reply = RequestCode.SEND_REPLY_MESSAGE_V2
        assert (await alice.send("secret", b"x", code=reply)).code == ResponseCode.NO_PERMISSION
        assert (
            await alice.send("orders", b"x", code=reply)
        ).remark == "reply message properties[REPLY_TO_CLIENT] is null"
        others = await alice.send("%RETRY%others", b"x", producer_group="poppers")
        assert "no permission to access Group:others" in str(others.remark)
        mode = b'{"topic":"orders","consumerGroup":"poppers","mode":"POP","popShareQueueNum":0}'
        refused = await alice.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode)
        assert "It needs Update" in str(refused.remark)
        ask = b'{"topic":"secret","consumerGroup":"poppers","clientId":"c"}'
        assert (await alice.ask(RequestCode.QUERY_ASSIGNMENT, body=ask)).code == ResponseCode.NO_PERMISSION


async def test_what_came_back_is_acknowledged_with_the_rights_to_pop_it(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]]
) -> None:
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    broker.topics.create_if_absent("orders", 1)
    async with AdminClient(hooks=[ROOT]) as admin:
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl(
            [address], acl_of("User:alice", ["Topic:orders", "Group:poppers"], ["Pub", "Sub"], [], "Allow")
        )
        alice = await connect(broker, AclHook("alice", "secret12"))
        await alice.send("orders", b"x")
        broker.topics.create_if_absent("%RETRY%poppers_orders", 1)
        fields = {"consumerGroup": "poppers", "queueId": "0", "offset": "0", "extraInfo": "0 0 60000 0 1 broker-a 0 0"}
        for topic, code in (
            ("%RETRY%poppers_orders", ResponseCode.SUCCESS),
            ("%RETRY%poppers+orders", ResponseCode.TOPIC_NOT_EXIST),
            ("%RETRY%poppers_secret", ResponseCode.NO_PERMISSION),
            ("%RETRY%others_orders", ResponseCode.NO_PERMISSION),
        ):
            request = RemotingCommand.request(RequestCode.ACK_MESSAGE, fields={**fields, "topic": topic})
            assert (await alice.connection.invoke(request)).code == code, topic
        # Of such a name may be the retry topic of a group poppers_orders: it is popped from by way of its topic.
        pull = {"maxMsgNums": "1", "invisibleTime": "1000", "pollTime": "0", "bornTime": "0", "initMode": "0"}
        request = RemotingCommand.request(
            RequestCode.POP_MESSAGE, fields={**fields, **pull, "topic": "%RETRY%poppers_orders"}
        )
        assert (await alice.connection.invoke(request)).code == ResponseCode.NO_PERMISSION


async def test_an_asked_producer_may_end_its_transaction(
    start: StartBroker, connect: Callable[..., Awaitable[Peer]]
) -> None:
    """Apache's client then sends the question's topic, that of half messages, back."""
    broker = await start(USERS)
    address = f"127.0.0.1:{broker.port}"
    async with AdminClient(hooks=[ROOT]) as admin:
        await admin.create_user([address], UserInfo("alice", "secret12"))
        await admin.create_acl([address], acl_of("User:alice", ["Topic:orders"], ["Pub"], [], "Allow"))
        alice = await connect(broker, AclHook("alice", "secret12"))
        half = await alice.send("orders", b"x", properties={"TRAN_MSG": "true", "PGROUP": "producers"}, sys_flag=4)
        place = {
            "producerGroup": "producers",
            "tranStateTableOffset": half.ext_fields["queueOffset"],
            "commitLogOffset": str(decode_offset_message_id(half.ext_fields["msgId"])[1]),
            "commitOrRollback": "8",
            "fromTransactionCheck": "true",
            "msgId": "KEY",
        }
        end = RequestCode.END_TRANSACTION
        denied = await alice.ask(end, fields=place | {"topic": "secret"})
        assert denied.code == ResponseCode.NO_PERMISSION
        assert (await alice.ask(end, fields=place | {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"})).code == 0
        assert broker.store.queue("orders", 0).max_offset == 1
